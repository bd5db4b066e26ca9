"""Runs of a segmentation model on scenes of rectangles: they learn, resume bit for bit, leave a model and a report."""

import contextlib
import dataclasses
import functools
import math
import shutil

import numpy as np
import pytest
import short_runs
from interpreters import Fork, Interpreter
from ml_collections import ConfigDict
from PIL import Image
from small_models import eager

import keras_vit
from keras_vit.data import from_arrays, usual_splits
from keras_vit.data.mask_pixels import count_pixels
from keras_vit.data.splits import split_range
from keras_vit.distribution import Strategy, strategy
from keras_vit.planning import dry_run
from keras_vit.runs import RunDirectory, prepare
from keras_vit.segmentation.pixel_losses import pixel_class_weights
from keras_vit.tasks import find_task
from trainers import config_files, evaluate

NAMES = ("ground", "box", "stripe")
COLORS = {"ground": (0, 60, 0), "box": (200, 0, 0), "stripe": (0, 0, 200), "void": (255, 255, 255)}
PAINT = {"ground": 90, "box": 220, "stripe": 20}  # in the image
SIZE = (36, 40)


def scene(rng):
    """(image, class numbers, 3 for void) of a box and a stripe on the ground, with a void border on the left."""
    numbers = np.zeros(SIZE, "uint8")
    top, left = rng.integers(0, 20), rng.integers(0, 24)
    numbers[top : top + 14, left : left + 14] = 1
    numbers[(row := rng.integers(0, 32)) : row + 4] = 2
    image = np.array(list(PAINT.values()))[numbers][..., None] + rng.integers(-15, 16, (*SIZE, 3))
    numbers[:, :2] = 3
    return image.astype("uint8"), numbers


@functools.cache
def drawn():
    """20 scenes: images (20, h, w, 3) and class numbers (20, h, w)."""
    rng = np.random.default_rng(0)
    return tuple(map(np.stack, zip(*(scene(rng) for _ in range(20)))))


def in_memory(text, split, *_):
    """In the place of a folder, whose decoding takes most of a small run: a slice of the scenes."""
    images, numbers = (array[slice(*split_range(split, 20))] for array in drawn())
    masks = np.where(numbers == 3, 255, numbers)[..., None].astype("uint8")
    colors = tuple(COLORS[name] for name in NAMES)
    return from_arrays(images, None, NAMES, text, {"mask": masks}, colors=colors)


@pytest.fixture(scope="module", autouse=True)
def without_files():
    with pytest.MonkeyPatch.context() as patch:
        for module in (keras_vit.data, usual_splits, prepare):
            patch.setattr(module, "open_source", in_memory)
        yield


@pytest.fixture
def scenes(tmp_path):
    """A folder of the images, and of masks in colours that class_dict.csv names."""
    table = np.array(list(COLORS.values()), "uint8")
    for part in ("images", "masks"):
        (tmp_path / "scenes" / part).mkdir(parents=True)
    for i, (image, numbers) in enumerate(zip(*drawn())):
        Image.fromarray(image).save(tmp_path / "scenes" / "images" / f"{i:02d}.png")
        Image.fromarray(table[numbers]).save(tmp_path / "scenes" / "masks" / f"{i:02d}.png")
    rows = [",".join(map(str, (name, *color))) for name, color in COLORS.items()]
    (tmp_path / "scenes" / "class_dict.csv").write_text("\n".join(["name,r,g,b", *rows]))
    return tmp_path / "scenes"


def small(row="linear", **options):
    """The recipe for a tiny model: evaluations and checkpoints at 2 and 4."""
    config = config_files.load_config(f"segmentation:{row}")
    config.update(total="4 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=8, keep_best=False)
    config.schedule.update(warmup="0 steps")
    config.model.update(variant="Ti/8", image_size=32, depth=2, width=16, heads=2, mlp_dim=16)
    config.data.update(source="masks:scenes", train="train[:16]", evaluation="train[16:]")
    config.data.train_preprocess = "decode|random_crop(32)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.optimizer.update(learning_rate=3e-3)
    config.update_from_flattened_dict(options)
    return config


@pytest.fixture
def config():
    return small()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    options = {"head_options": {"width": 8, "stages": 2}, "auxiliary": 0.4}
    config = small("setr_pup", **{"model.depth": 1})
    config.objective.update(options, dice=0.0)
    config.loss.class_weights = None  # the evaluator measures the plain cross-entropy
    return short_runs.whole_and_resumed(config, tmp_path_factory.mktemp("runs"))


def task_of(config):
    return find_task("segmentation")(config)


@pytest.mark.extended
def test_it_learns_and_measures_as_it_trains(done):
    first, last = done.records
    assert last["loss"] < first["loss"] and last["val_loss"] < first["val_loss"]
    for name in ("miou", "pixel_accuracy", "mean_accuracy", "loss"):
        assert done.measures[name] == pytest.approx(last[f"val_{name}"], rel=1e-5), name
    assert done.measures["examples"] == 4 and 0 <= done.evaluation["boundary_f"] <= 1


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    assert done.state == done.resumed


@pytest.mark.extended
def test_it_leaves_the_model_alone_with_names_colours_and_preprocessing(done):
    model = keras_vit.load(done.folder)
    assert type(model) is keras_vit.SegmentationModel and model.auxiliary == 0 and model.class_names == NAMES
    assert model.colors == tuple(COLORS[name] for name in NAMES)
    assert model.preprocessing == done.config.data.eval_preprocess
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype="uint8")
    np.testing.assert_array_equal(model.predict(images, verbose=0), done.model.predict(images, verbose=0))


@pytest.mark.extended
def test_its_report_shows_classes_confusions_and_pictures(done):
    for words in ("mIoU", "Learning curves", "Confusion matrix", "boundary F", "of pixels correct"):
        assert words in done.page, words
    assert all(f"rgb({' '.join(map(str, COLORS[name]))})" in done.page for name in NAMES)
    assert done.page.count('class="compared"') == 4 and f"{done.measures['miou']:.2%}" in done.page


@pytest.mark.extended
def test_the_binary_evaluates_it(done, binary, tmp_path):
    printed = binary(evaluate, model=str(done.folder), output=str(tmp_path), batch_size=8)
    assert f"mIoU {done.measures['miou']:.2%}" in printed and "4 examples" in printed
    assert 'class="compared"' in (tmp_path / "report.html").read_text()


@pytest.mark.extended
def test_a_file_of_a_model_is_evaluated_as_what_it_is(done, binary, tmp_path):
    shutil.copy(done.folder / "model.keras", tmp_path)
    given = {"model": str(tmp_path / "model.keras"), "data": "masks:scenes", "split": "train[16:]"}
    assert f"mIoU {done.measures['miou']:.2%}" in binary(evaluate, batch_size=8, **given)


@functools.cache
def two():
    """MirroredStrategy on two devices. A process can have only one."""
    return strategy("mirrored")


def on_one_and_two(folder):
    """(last record, weights as lists) of a run of two steps on one device, eagerly, and of one on two."""
    found, prepare.open_source = [], in_memory
    for name, chosen, way in (("one", Strategy(), eager), ("two", two(), contextlib.nullcontext)):
        options = {"model.depth": 1, "optimizer.name": "momentum"}  # Adam makes steps of a gradient of 1e-9
        config = small("setr_naive", total="2 steps", evaluate="2 steps", **options)
        config.objective.update(head_options={"width": 8}, auxiliary=0.4)
        config.data.evaluation = "train[15:]"  # 5 in batches of 8
        with way():
            model = short_runs.ended(config, f"{folder}/{name}", chosen)
        found.append((RunDirectory(f"{folder}/{name}").metrics()[-1], [w.tolist() for w in model.get_weights()]))
    return found


@pytest.mark.processes
def test_two_replicas_end_where_one_device_does(tmp_path):
    with Interpreter(devices=2) as replicas:
        (one, ours), (both, theirs) = replicas.run(on_one_and_two, str(tmp_path))
    for name in ("loss", "miou", "val_loss", "val_miou", "val_pixel_accuracy", "val_mean_accuracy"):
        assert one[name] == pytest.approx(both[name], rel=1e-3), name
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.extended
def test_a_classifier_of_another_size_is_the_encoder(config, tmp_path):
    fields = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16}
    vit = keras_vit.ViT("Ti/8", image_size=64, classes=7, **fields)
    vit.save(tmp_path / "vit.keras")
    config.update(init=str(tmp_path / "vit.keras"))
    source = in_memory("masks:scenes", "train")
    model = task_of(config).model(source)
    assert model.image_size == (32, 32) and model.classes == 3 and model.output_shape == (None, 32, 32, 3)
    for name in ("block_00", "block_01"):
        ours, theirs = (part.get_layer(name).get_weights() for part in (model, vit))
        assert all(np.array_equal(*pair) for pair in zip(ours, theirs))
    text = dry_run.plan(config, {})
    assert f"{model.count_params():,} parameters, all trained" in text and "SegmentationLoss" in text


@pytest.mark.extended
def test_a_segmentation_model_keeps_its_head_or_gets_a_new_one(done, tmp_path):
    config = done.config.copy_and_resolve_references()
    config.update(init=str(done.folder), head="keep")
    config.model.image_size = 64
    config.data.eval_preprocess = "decode|resize(64, 64)"
    source = in_memory("masks:scenes", "train")
    model, old = task_of(config).model(source), keras_vit.load(done.folder)
    assert model.image_size == (64, 64) and model.auxiliary == 0.4
    assert all(np.array_equal(*pair) for pair in zip(model.head.get_weights(), old.head.get_weights()))
    config.head = "reset"
    fresh = task_of(config).model(source)
    assert not all(np.array_equal(*pair) for pair in zip(fresh.head.get_weights(), old.head.get_weights()))
    ours, theirs = (part.get_layer("block_00").get_weights() for part in (fresh, old))
    assert all(np.array_equal(*pair) for pair in zip(ours, theirs))


@pytest.mark.extended
def test_a_head_that_would_be_wrong_is_not_kept(done, tmp_path):
    config = done.config.copy_and_resolve_references()
    keras_vit.load(done.folder, head="reset", classes=3).save(tmp_path / "classifier.keras")
    config.update(init=str(tmp_path / "classifier.keras"), head="keep")
    with pytest.raises(ValueError, match="the head of a SegmentationModel, and .* contains a ViT.*--config.head=reset"):
        task_of(config).model(in_memory("masks:scenes", "train"))
    config.update(init=str(done.folder), head="keep")
    source = in_memory("masks:scenes", "train")
    for names, message in (
        (("a", "b"), "has 3 classes, but the data has 2: start with a new head: --config.head=reset"),
        (("box", "ground", "stripe"), "Its head would be wrong"),
    ):
        with pytest.raises(ValueError, match=message):
            task_of(config).model(dataclasses.replace(source, class_names=names))
    config.objective.head, config.objective.head_options = "linear", {}
    with pytest.raises(
        ValueError, match="has the head setr_pup, but the config has linear.*--config.objective.head=setr_pup"
    ):
        task_of(config).model(source)


@pytest.mark.extended
@pytest.mark.parametrize("head", [*config_files.packaged("segmentation").HEADS])
def test_every_row_of_the_recipe_gives_a_class_for_every_pixel(head):
    config = small(head)
    model = task_of(config).build(in_memory("masks:scenes", "train"))
    delivered = task_of(config).deliver(model)
    assert delivered.output_shape == (None, 32, 32, 3) and delivered.head_name == head
    assert isinstance(model.output, dict) == (config.objective.auxiliary > 0)
    if head == "eomt":
        assert model.head_options["annealing_steps"] == 4  # all of the run


def test_the_backbone_can_be_frozen(config):
    config.linear_probe = True
    model = task_of(config).build(in_memory("masks:scenes", "train"))
    assert {v.path.split("/")[0] for v in model.trainable_variables} == {"head"}


def test_class_weights_are_by_pixels(config):
    source, (_, numbers) = in_memory("masks:scenes", "train"), drawn()
    counts, every = count_pixels(source), np.bincount(numbers.ravel())[:3]  # 3 is void
    np.testing.assert_array_equal(counts, every)
    config.loss.class_weights = "balanced"
    weights = task_of(config).loss(source).class_weights
    np.testing.assert_allclose(weights, every.sum() / (3 * every), rtol=1e-6)
    assert tuple(weights) == tuple(pixel_class_weights(counts))


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("linear", {"mixup": 0.2, "cutmix": 1.0}, "Segmentation does not use some options.*mixup=None.*cutmix=None"),
        ("linear", {"loss.name": "sigmoid"}, "loss.name=softmax"),
        ("linear", {"head": "probe"}, 'Unknown config.head="probe"'),
        ("linear", {"loss.label_smoothing": 1.5}, "--config.objective or --config.loss: label_smoothing"),
        (
            "linear",
            {"objective.cross_entropy": 0.0, "objective.dice": 0.0},
            "--config.objective or --config.loss: Expected weights",
        ),
        (
            "eomt",
            {"objective.dice": 1.0, "loss.class_weights": "log"},
            "config.objective.dice, config.loss.class_weights would",
        ),
        ("eomt", {"objective.auxiliary": 0.0}, "set objective.auxiliary=1.0"),
    ],
)
def test_options_that_it_would_ignore_are_refused(row, options, message):
    with pytest.raises(ValueError, match=message):
        task_of(small(row, **options)).check_config()


def test_data_without_masks_and_other_classes_are_refused(config):
    images = np.zeros((2, 32, 32, 3), "uint8")
    plain, task = from_arrays(images, [0, 1], class_names=("a", "b")), task_of(config)
    masks = in_memory("masks:scenes", "train")
    with pytest.raises(ValueError, match="Segmentation needs masks, but .*masks:FOLDER"):
        task.check_data(plain, plain)
    other = ConfigDict({"void": 255, "class_names": ("ground", "box")})
    with pytest.raises(ValueError, match="classes of .* differ"):
        task.check_data(masks, other)
    with pytest.raises(ValueError, match="has one class"):
        task.check_data(one := ConfigDict({"void": 255, "class_names": ("box",)}), one)
    depth = keras_vit.SegmentationModel("Ti/8", "linear", 1, image_size=16, depth=1, width=8, heads=1, mlp_dim=8)
    with pytest.raises(ValueError, match='"segmentation" has one output per pixel: it does not give masks'):
        task.check_model(depth, plain)


@pytest.mark.parametrize(("part", "message"), [(0, "there is nothing to learn"), (1, "no score is defined")])
def test_masks_of_void_alone_are_refused_before_training(part, message):
    whole = in_memory("masks:scenes", "train")
    masks = np.full((4, 36, 40, 1), 255, "uint8")
    void = from_arrays(drawn()[0][:4], None, NAMES, "masks:scenes", {"mask": masks}, colors=whole.colors)
    with pytest.raises(ValueError, match=f"no pixel of the 4 masks has a class, all are void, so {message}"):
        task_of(small()).check_data(*((whole, void) if part else (void, whole)))


@pytest.mark.extended
def test_its_plan_counts_the_model(config):
    text = dry_run.plan(config, {})
    model = task_of(config).build(in_memory("masks:scenes", "train"))
    trained = sum(math.prod(v.shape) for v in model.trainable_variables)
    assert f"{trained:,} parameters, all trained" in text and "3 classes" in text and "head_rate 5" in text
    assert "activations 8 x" in text


@pytest.mark.processes
def test_a_folder_of_images_and_masks_trains_with_one_command(scenes, tmp_path):
    """In a separate process, with --data=FOLDER alone."""
    small_model = "variant=Ti/8 depth=1 width=16 heads=2 mlp_dim=16 image_size=32".split()
    flags = [f"--config.model.{text}" for text in small_model]
    flags += [
        "--config.data.train_preprocess=decode|random_crop(32)",
        "--config.data.eval_preprocess=decode|resize(32, 32)",
    ]
    flags += ["--config.total=1", "--config.schedule.warmup=0", "--config.batch_size=16", "--check_memory=False"]
    flags += ["--config=segmentation:linear", f"--data={scenes}", f"--workdir={tmp_path / 'run'}"]
    done = Fork("trainers.finetune", *flags, output=tmp_path / "printed")
    assert done.wait() == 0, done.printed()[-2000:]
    model = keras_vit.load(tmp_path / "run")
    assert model.class_names == NAMES and model.colors == tuple(COLORS[name] for name in NAMES)
    assert "20 images" in done.printed() or "16 training examples" in done.printed()
