"""Flags that several binaries share, and their values as arguments of keras_vit. Imports no engine."""

import importlib

from absl import flags as absl_flags

from . import flags


def define_data_dir():
    flags.path("data_dir", None, "The folder of tensorflow-datasets' prepared data; by default its own.")


def define_windows(default="whole"):
    """The flags of a segmentation model that sees images of any size; `windows` has their values."""
    flags.enum(
        "window", default, ["whole", "slide"], "How a segmentation model sees an image: resized, or window by window."
    )
    flags.number(
        "overlap", 1 / 3, "The share of a window that the next one sees again, below 1.", lowest=0, highest=0.99
    )
    flags.number("scale", None, "The factor of an image's sides for windows; by default the least that fits a window.")
    flags.boolean("flips", False, "Averages the answers for an image and its mirror image.")
    for name in ("overlap", "scale"):
        flags.only_with(name, "window", lambda window: window == "slide", "--window=slide")


def windows(values):
    """The values of define_windows' flags as arguments of `SegmentationModel.segment`."""
    return {name: getattr(values, name) for name in ("window", "overlap", "scale", "flips")}


FINDING = ("threshold", "iou", "limit", "soft", "across_classes")


def define_finding():
    """The flags of detectors; `finding` has their values."""
    flags.number(
        "threshold",
        None,
        "Objects have scores above it; by default the threshold in the model, which its run chose, or 0.3.",
        lowest=0,
        highest=1,
    )
    flags.number(
        "iou",
        None,
        "Of boxes of a class that overlap by more, that with the highest score stays; by default 0.6.",
        lowest=0,
        highest=1,
    )
    flags.integer("limit", None, "The largest number of objects in an image; by default 100.", lowest=1)
    flags.boolean("soft", None, "Lowers the scores of overlapping boxes instead of removing them.")
    flags.boolean("across_classes", None, "Boxes of other classes count as overlapping, too.")


def finding(values):
    """The given flags of define_finding, as arguments of `DetectionModel.detect`."""
    given = {name: getattr(values, name) for name in FINDING}
    return {name: value for name, value in given.items() if value is not None}


TILES = ("tiles", "tile_overlap")


def define_tiles():
    """The flags of detectors that look at large images by tiles; `tiles` has their values."""
    flags.integer(
        "tiles",
        None,
        "Finds small objects in large images by overlapping tiles of so many pixels of the image, and returns up to 1,000"
        " of them; by default the image is seen as a whole.",
        lowest=1,
    )
    flags.number(
        "tile_overlap",
        0.2,
        "The share of a tile's sides that the next one sees again; smaller objects are whole in some tile.",
        lowest=0,
        highest=0.9,
    )
    flags.only_with("tile_overlap", "tiles", bool, "--tiles=PIXELS")


def tiles(values):
    """The values of define_tiles' flags, as arguments of `DetectionModel.detect`."""
    return {name: getattr(values, name) for name in TILES}


def define_broken_limit():
    flags.integer("broken_limit", 100, "The largest number of unreadable images.", lowest=0)


def define_run():
    """The flags of binaries that train."""
    flags.path(
        "workdir", None, "The run's directory; a run that is already there resumes. Required, but not for --dry_run."
    )
    define_data_dir()
    flags.string(
        "sweep",
        None,
        'Runs the config\'s own sweep, or a grid: --sweep="optimizer.learning_rate=1e-3,3e-3;mixup=None,0.2".',
    )
    flags.integer(
        "runs",
        1,
        "The number of runs, with seeds config.seed, config.seed + 1...; prints mean and standard deviation.",
        lowest=1,
    )
    flags.boolean("dry_run", False, "Only print what the run would do; needs no data.")
    flags.boolean(
        "check_memory",
        True,
        "Refuse a training step that is too large for the memory; False to start it anyway.",
    )
    flags.integer(
        "examples",
        None,
        "For --dry_run: the number of training examples, if the dataset is not a well-known one.",
        lowest=1,
    )
    flags.integer(
        "classes", None, "For --dry_run: the number of classes, if the dataset is not a well-known one.", lowest=1
    )
    flags.only_with("examples", "dry_run", bool, "--dry_run")
    flags.only_with("classes", "dry_run", bool, "--dry_run")
    absl_flags.register_multi_flags_validator(
        ["workdir", "dry_run"], lambda given: given["workdir"] or given["dry_run"], "--workdir=FOLDER is missing."
    )
    define_strategy()
    flags.string(
        "data_service",
        None,
        "grpc://HOST:PORT of a tf.data service that prepares the training batches; by default they are prepared here.",
    )


def define_strategy():
    flags.string(
        "strategy", "one", "one device; mirrored, multiworker or tpu; on JAX (KERAS_BACKEND=jax) data or model."
    )
    flags.string("tpu", None, "For --strategy=tpu: a TPU's name or address; by default this machine's, or TPU_NAME.")
    flags.integer(
        "model_parallel",
        None,
        "For --strategy=model: the number of devices over which a matrix is split; by default all of this machine's.",
        lowest=1,
    )
    flags.only_with("tpu", "strategy", lambda strategy: strategy == "tpu", "--strategy=tpu")
    flags.only_with("model_parallel", "strategy", lambda strategy: strategy == "model", "--strategy=model")


def define_beam():
    flags.string(
        "beam",
        None,
        'Options of Apache Beam, to run as its pipeline: --beam="--runner=FlinkRunner --flink_master=HOST:8081"; by'
        " default none is used.",
    )


def beam(module):
    """A module of keras_vit that needs Apache Beam; ImportError says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "apache_beam":
            raise
        raise ImportError("--beam needs Apache Beam: pip install apache-beam.") from None
