"""Short forms of the config's most used keys: --epochs=5 is --config.total="5 epochs". Imports no engine."""

import dataclasses
import re
from collections.abc import Callable

from .without_engine import package_module

source_names = package_module("data.source_names")


def _epochs(text):
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"--epochs={text}: expected a number, such as --epochs=5.")
    return f"{text} epochs"


@dataclasses.dataclass(frozen=True)
class ShortForm:
    """A row of the table: a flag, the key that it sets, its help, and the key's value from the flag's."""

    name: str
    key: str
    help: str
    value: Callable[[str], str] = str

    @property
    def text(self) -> str:
        return f"{self.help} By default the config's {self.key}."


SHORT_FORMS = (
    ShortForm(
        "data",
        "data.source",
        "A folder of photographs with one subfolder per class, for segmentation of images and masks, for detection of"
        " images and annotations; a table (.csv, .jsonl), TFRecords, or a name of tensorflow-datasets.",
    ),
    ShortForm("init", "init", "What finetune starts from: a published name such as deit/tiny, a run or a file."),
    ShortForm("epochs", "total", "The length of training, in passes over the training images.", _epochs),
    ShortForm("batch_size", "batch_size", "Images per training step."),
    ShortForm("learning_rate", "optimizer.learning_rate", "The highest learning rate."),
    ShortForm("image_size", "model.image_size", "In pixels; the preprocessing follows."),
)
# Flags of timm's train.py, by the key that sets the same (docs/migrating.md).
_OF_TIMM = {
    "batch_size": "b",
    "data.eval_preprocess": "crop_pct",
    "data.train_preprocess": "aa color_jitter hflip remode reprob scale train_interpolation",
    "dtype": "amp amp_dtype",
    "init": "initial_checkpoint pretrained",
    "jit_compile": "torchcompile",
    "keep": "checkpoint_hist",
    "loss.label_smoothing": "smoothing",
    "loss.name": "bce_loss bce_sum",
    "micro_batches": "grad_accum_steps",
    "model.drop_path": "drop_path",
    "model.image_size": "img_size",
    "model.remat": "grad_checkpointing",
    "optimizer.clip_norm": "clip_grad",
    "optimizer.ema": "model_ema model_ema_decay",
    "optimizer.learning_rate": "lr",
    "optimizer.name": "opt",
    "schedule.decay": "sched",
    "schedule.warmup": "warmup_epochs",
}
FROM_TIMM = {theirs: key for key, names in _OF_TIMM.items() for theirs in names.split()}
# Ops that begin with one or two numbers, the size of their images.
_SIZED = re.compile(
    r"(?P<op>\b(?:resize|central_crop|random_crop|random_resized_crop|scene_crop|pad_to|letterbox|scale_jitter)\()"
    r"(?P<sizes>(?:height=)?\d+(?:, *(?:width=)?\d+)?)(?=[,)])"
)


def take(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Takes the short forms out of the arguments; returns ({name: text}, the rest).

    Raises:
        ValueError: for a flag without a value.
    """
    given, rest, arguments = {}, argv[:1], iter(argv[1:])
    for argument in arguments:
        flag, equals, text = argument.partition("=")
        name = flag.lstrip("-")
        if not flag.startswith("-") or name not in {row.name for row in SHORT_FORMS}:
            rest.append(argument)
            continue
        text = text if equals else next(arguments, "")
        if not text or (not equals and text.startswith("--")):
            raise ValueError(f"--{name} has no value. Write --{name}=VALUE.")
        given[name] = text
    return given, rest


def _data_dir(argv):
    """The --data_dir in `argv`, or None."""
    return next((arg.partition("=")[2] for arg in argv if re.match("--?data_dir=", arg)), None)


def is_local(source: str, argv: list[str]) -> bool:
    """Whether --data names files, and not a dataset of tensorflow-datasets, below a --data_dir in `argv`."""
    return source_names.with_kind(source, _data_dir(argv)).partition(":")[0] in source_names.KINDS


def resized(text: str, old: int, new: int) -> str:
    """A preprocessing text for images of `new` pixels instead of `old`: sizes keep their ratio to the image's.

    Raises:
        ValueError: if no op in it sets the size.
    """

    def scaled(match):
        sizes = re.sub(r"\d+", lambda number: str(round(int(number[0]) * new / old)), match["sizes"])
        return f"{match['op']}{sizes}"

    changed, count = _SIZED.subn(scaled, text)
    if not count:
        raise ValueError(f'no op in "{text}" sets the size of the images')
    return changed


def _preprocessing(size, config, argv):
    """Overrides of the preprocessing texts that `argv` leaves, for images of another size."""
    old = config.model.image_size
    if not size.isdecimal() or not isinstance(old, int):
        raise ValueError(
            f"--image_size={size}: expected pixels, of square images. For others set --config.model.image_size,"
            " --config.data.train_preprocess and --config.data.eval_preprocess."
        )
    for key in ("train_preprocess", "eval_preprocess"):
        flag = f"--config.data.{key}"
        if any(arg.partition("=")[0] == flag for arg in argv):
            continue
        try:
            yield f"{flag}={resized(config.data[key], old, int(size))}"
        except ValueError as error:
            raise ValueError(f"--image_size={size}: {error}. Set {flag} to one that does.") from None


def as_overrides(given: dict[str, str], config, argv: list[str]) -> list[str]:
    """The overrides --config.KEY=VALUE that short forms stand for.

    Args:
        given: {name: text}.
        config: the ConfigDict that they change.
        argv: the other arguments.

    Raises:
        ValueError: for a key that is also set by its long form, or a value that cannot be.
    """
    overrides = []
    for row in SHORT_FORMS:
        if row.name not in given:
            continue
        if any(arg.partition("=")[0].lstrip("-") == f"config.{row.key}" for arg in argv):
            raise ValueError(f"--{row.name} and --config.{row.key} set the same: give one of them.")
        value = row.value(given[row.name])
        if row.name == "data":
            value = source_names.match_kind(value, config.data.source, _data_dir(argv))
        overrides.append(f"--config.{row.key}={value}")
    if "image_size" in given:
        overrides += _preprocessing(given["image_size"], config, argv)
    return overrides
