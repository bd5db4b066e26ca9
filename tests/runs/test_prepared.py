"""What a config means: what is refused without data, with data, and of a model; what a plan knows of its data and its
model.
"""

import json
import re
import types

import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.sources.base import RandomAccess
from keras_vit.planning import dry_run
from keras_vit.runs import prepare, run, training_run
from keras_vit.runs.grid import parse_grid
from keras_vit.runs.prepare import check, planned_data, split_size
from trainers import config_files

DATASETS = config_files.packaged("lib.datasets").DATASETS
SMALL = {"depth": 2, "width": 32, "heads": 2, "mlp_dim": 64}


@pytest.fixture
def config():
    return config_files.load_config("digits_pretrain")


def planned(config):
    """The Prepared of a plan."""
    return check(config).on(*planned_data(config.data, DATASETS)).without_checkpoint()[0]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("total", 0, 'The run has no steps: --config.total="0"'),
        ("total", -5, '--config.total: "-5" is not a duration'),
        ("total", float("nan"), "is not a duration"),
        ("evaluate", "0 steps", '--config.evaluate="0 steps". Set at least one step'),
        ("checkpoint", 0, '--config.checkpoint="0". Set at least one step'),
        (
            "evaluate",
            0.1,
            '--config.evaluate: "0.1" is not a whole number of steps. For that share of the whole run write "10%"',
        ),
        ("evals.knn", {"every": 0}, '--config.evals.knn.every="0". Set at least one step'),
        ("batch_size", 0, "--config.batch_size=0: expected an integer of 1 or more"),
        ("keep", 0, "--config.keep=0: expected an integer of 1 or more"),
        ("early_stopping", "0 steps", 'early_stopping="0 steps". Set at least one step'),
        ("micro_batches", 0, "--config.micro_batches=0: expected an integer of 1 or more"),
        ("micro_batches", 5, "--config.micro_batches=5: a device's 64 images per batch cannot be split"),
        ("steps_per_execution", 0, "--config.steps_per_execution=0: expected an integer of 1 or more"),
        ("model.batch_size", 8, 'model.batch_size: a model has no "batch_size". Write --config.batch_size'),
        (
            "model.learning_rate",
            8,
            'model.learning_rate: a model has no "learning_rate". Write --config.optimizer.learning_rate',
        ),
        ("optimizer.learning_rate", 0.0, "--config.optimizer.learning_rate=0.0: expected a number above 0"),
        ("optimizer.clip_norm", -1.0, "--config.optimizer.clip_norm=-1.0: expected a number above 0, or None"),
        ("head", "rest", 'Unknown config.head="rest". Did you mean "reset"'),
        ("resample", "bicubik", 'Did you mean "bicubic"'),
        ("evals.few_shot", {"shots": (1,)}, "config.evals.few_shot: .* needs training data: set its source"),
    ],
)
def test_what_makes_no_sense_is_refused_without_data(config, key, value, message):
    config_files.keys.set_key(config, key.split("."), value)
    with pytest.raises(ValueError, match=message):
        check(config)


def test_runs_plans_and_sweeps_ask_the_same_before_any_data_is_opened(config, tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "open_data", None)
    with pytest.raises(ValueError, match="The sweep's point keep=0: --config.keep=0: expected"):
        parse_grid("keep=1,0", config)
    config.keep = 0
    with pytest.raises(ValueError, match="^--config.keep=0: expected"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="^--config.keep=0: expected"):
        dry_run.plan(config, DATASETS)


def test_mixing_needs_pairs_on_every_device(config):
    config.update(batch_size=6, mixup=0.2)
    check(config)
    with pytest.raises(
        ValueError, match="--config.mixup: Mixup and CutMix mix pairs of images, and each of 2 devices has 3"
    ):
        check(config, replicas=2)
    config.update(mixup=None)
    check(config, replicas=2)


def test_an_empty_evaluation_split_is_refused(config, monkeypatch):
    sources = {"train": types.SimpleNamespace(size=8), "test": types.SimpleNamespace(size=0)}
    monkeypatch.setattr(prepare, "open_source", lambda name, split, *_: sources[split])
    with pytest.raises(ValueError, match="digits, test, has no examples"):
        prepare.open_data(config.data, None)


@pytest.mark.parametrize("evaluation, warned", [("val", True), ("test", False)])
def test_images_of_scenes_in_both_splits_are_named(config, monkeypatch, evaluation, warned):
    names = {"train": ["a.jpg", "b.jpg"], "val": ["c.jpg", "b.jpg"], "test": ["c.jpg"]}

    def source(name, split, *_):
        own = tf.constant(names[split])
        return RandomAccess(
            name, ("cat",), None, lambda i: {}, lambda i: own[i], count=len(names[split]), most_objects=1
        )

    lines = []
    monkeypatch.setattr(prepare, "open_source", source)
    monkeypatch.setattr(prepare, "log_once", lambda level, text: lines.append(text))
    config.data.update(source="boxes:x", train="train", evaluation=evaluation, cache=False)
    prepare.open_data(config.data, None)
    expected = ["boxes:x: 1 image of val is also in train, such as b.jpg: the measures say little about new images."]
    assert [line.partition(" Remove")[0] for line in lines] == (expected if warned else [])


@pytest.mark.parametrize(
    "train, evaluation, warned",
    [
        ("train[:80%]", "train[80%:]", ""),
        ("train[:4]", "train[80%:]", ""),  # 12 of 20 images, and the last 4
        ("train", "train[80%:]", "evaluated on train[80%:], which has some of its images"),
        ("train", "train", "evaluated on train, which has some of the training images"),
        ("train[:17]", "train[80%:]", "1 image of train[80%:] is also in train[:17]"),
    ],
)
def test_evaluation_on_training_images_is_warned_about(config, monkeypatch, photos, train, evaluation, warned):
    lines = []
    monkeypatch.setattr(prepare, "log_once", lambda level, text: lines.append(text))
    config.data.update(source=f"folder:{photos}", train=train, evaluation=evaluation, cache=False)
    prepare.open_data(config.data, None)
    assert [warned in line for line in lines] == ([True] if warned else [])


@pytest.mark.parametrize(
    ("split", "examples"),
    [
        ("train", 1_020),
        ("train+validation", 2_040),
        ("train[:90%]+validation[:90%]", 1_836),
        ("test[100:300]", 200),
        ("test[-49:]", 49),
    ],
)
def test_sizes_of_splits(split, examples):
    """Against the counts of Oxford Flowers that its catalogue tells."""
    assert split_size("flowers", split, {"train": 1_020, "validation": 1_020, "test": 6_149}) == examples


def test_sizes_are_those_of_prepared_data(shared_data):
    import tensorflow_datasets as tfds

    splits = tfds.builder("cifar10", data_dir=shared_data / "tensorflow_datasets").info.splits
    known = DATASETS["cifar10"][1]
    for split in ("train", "test", "train[:98%]", "train[33%:]", "train[:1234]", "train[:98%]+test[5%:]"):
        assert split_size("cifar10", split, known) == splits[split].num_examples


def test_versions_of_a_dataset_are_known_by_its_name():
    config = config_files.load_config("cifar10_scratch")
    config.data.source = "cifar10:3.0.2"
    assert planned_data(config.data, DATASETS)[0].size == 50_000


def test_local_data_are_counted_and_none_is_invented(photos, tmp_path):
    data = config_files.load_config("folder_finetune").data
    data.source = "folder:photos"
    train, held_out = planned_data(data, DATASETS, data_dir=photos.parent)
    assert (train.size, held_out.size, train.class_names) == (16, 4, ("dark", "light"))
    assert train.class_counts().sum() == 16
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(photos.rglob("*.jpg"))]
    (tmp_path / "labels.csv").write_text("\n".join(["image,label", *rows]))
    data.source = f"csv:{tmp_path}/labels.csv"
    assert [split.size for split in planned_data(data, DATASETS)] == [16, 4]
    assert planned_data(data, DATASETS, examples=7, classes=3)[0].size == 7
    data.source = "folder:none"
    with pytest.raises(OSError, match="There is no folder"):
        planned_data(data, DATASETS)


def test_a_plan_refuses_data_that_the_task_cannot_learn_from(config):
    with pytest.raises(ValueError, match='has one class, "0"'):
        check(config).on(*planned_data(config.data, {"digits": (1, {"train": 10, "test": 5})}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("loss.name", "hinge", 'Unknown loss "hinge". Valid: softmax, sigmoid'),
        ("loss.class_weights", "1,2", 'class_weights="1,2": expected "balanced" or 10 numbers'),
        ("mixup", -1.0, "alpha must be positive"),
        ("model.pool", "tokn", 'Did you mean "token"'),
        ("model.qk_norm", "yes", "qk_norm must be True or False, got 'yes'"),
    ],
)
def test_what_a_model_cannot_be_or_learn_is_refused_by_a_plan(config, key, value, message):
    config_files.keys.set_key(config, key.split("."), value)
    with pytest.raises(ValueError, match=re.escape(message)):
        planned(config).model_without_values()


@pytest.mark.extended
def test_preprocessing_that_does_not_fit_the_model_is_an_error():
    config = config_files.load_config("cifar10_scratch")
    config.data.eval_preprocess = "decode|resize(40, 40)"
    with pytest.raises(ValueError, match=r"gives images of \(40, 40, 3\), the model takes \(32, 32, 3\)"):
        dry_run.plan(config, DATASETS)


def run_directory(path, model, delivered=None):
    """What a run of the model leaves: its description, and what it delivers."""
    (path / "config.json").write_text(json.dumps({"model_spec": model.get_config()}))
    (delivered or model).save(path / "model.keras")
    return str(path)


def smaller(kind):
    """(a model of the kind on images of 16x16, what its run delivers)."""
    if kind == "mae":
        return keras_vit.MaskedAutoencoder(
            "Ti/4", 16, decoder_depth=1, decoder_width=16, decoder_heads=2, pool="gap", **SMALL
        ), None
    if kind == "bit":
        return keras_vit.BiT("R50x1", 32, classes=None, units=(1, 1, 1, 1)), None
    model = keras_vit.ViT("Ti/8", 16, classes=None, pool="gap", **SMALL)
    if kind == "dino":
        trained = keras_vit.DINO(model, outputs=8, hidden=8, bottleneck=4, local_size=8, local_crops=1)
        return trained, trained.teacher
    return model, None


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("dino", "classification"),
        *(pytest.param(kind, "classification", marks=pytest.mark.extended) for kind in ("mae", "bit")),
        pytest.param("vit", "dino", marks=pytest.mark.extended),
    ],
)
def test_a_plan_is_of_the_model_that_the_run_would_load(kind, task, tmp_path):
    config = config_files.load_config("cifar10_finetune" if task == "classification" else "dino:cifar10")
    config.init = run_directory(tmp_path, *smaller(kind))
    config.model = type(config)({"variant": None, "image_size": 32, "channels": 3, "remat": False})
    found = planned(config).model_without_values()
    loaded = check(config).task.model(planned_data(config.data, DATASETS)[0])
    assert [tuple(v.shape) for v in found.weights] == [tuple(v.shape) for v in loaded.weights]
    assert found.get_encoder().spec == loaded.get_encoder().spec


def test_a_plan_refuses_the_init_that_the_run_would_refuse(tmp_path):
    config = config_files.load_config("mae_finetune")
    config.init = run_directory(tmp_path, *smaller("mae"))
    with pytest.raises(ValueError, match="depth=6, width=128.*the weights fix depth=2, width=32"):
        dry_run.plan(config, DATASETS)
    config = config_files.load_config("mae:cifar10")
    config.init = str(tmp_path)
    with pytest.raises(ValueError, match=r"does not match config.model and config.objective: it has depth 2, not 6"):
        dry_run.plan(config, DATASETS)
    config = config_files.load_config("masked_patches:cifar10")
    config.init = str(tmp_path)
    with pytest.raises(ValueError, match="MaskedPatches expected a MaskedPatchPredictor in .* got another model"):
        dry_run.plan(config, DATASETS)
    config = config_files.load_config("igpt")
    config.init = str(tmp_path)
    with pytest.raises(ValueError, match="Autoregressive starts from random weights"):
        dry_run.plan(config, DATASETS)


@pytest.mark.extended
@pytest.mark.parametrize(("name", "target"), [("detection", (100, 7)), ("segmentation", (64, 64))])
def test_a_plan_knows_the_shapes_of_objects_and_masks(name, target):
    config = config_files.load_config(name)
    config.data.train_preprocess = "decode|resize(64, 64)|random_flip"
    data = planned_data(config.data, DATASETS, examples=10, classes=3)
    x, y = check(config).on(*data).example()
    assert (tuple(x.shape), tuple(y.shape)) == ((64, 64, 3), target)


def test_a_folder_without_a_model_may_hold_another(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    config = config_files.load_config("digits_finetune")
    config.init = str(tmp_path)
    data = planned_data(config.data, DATASETS)
    assert "may be another: " in check(config).on(*data).without_checkpoint()[1]
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json is not valid JSON"):
        planned(config)


@pytest.mark.extended
def test_a_variant_is_that_of_the_model_in_init_or_refused(tmp_path):
    config = config_files.load_config("cifar10_finetune")
    config.init = run_directory(tmp_path, keras_vit.ViT("Ti/8", 16, classes=None, depth=2))
    assert config.model.variant is None and planned(config).model_without_values().spec.width == 192
    config_files.keys.set_key(config, ("model", "depth"), 2)  # as its own key is compared by what the weights fix
    config.model.variant = "Ti/8"
    assert planned(config).model_without_values().spec.depth == 2
    config.model.variant = "B/16"
    with pytest.raises(
        ValueError, match=r"variant=B/16 does not match the model in .*: patch_size \(8, 8\), not \(16, 16\)"
    ):
        planned(config)
    with pytest.raises(ValueError, match="variant=B/16 does not match the model in .*Remove the variant"):
        check(config).task.model(planned_data(config.data, DATASETS)[0])
    config.model.variant = "R50x1"
    with pytest.raises(ValueError, match="variant=R50x1 does not match the model in .*: it is a ViT"):
        planned(config)


def test_positions_that_are_resampled_a_lot_trigger_a_warning(tmp_path):
    config = config_files.load_config("cifar10_finetune")
    config.init = run_directory(tmp_path, keras_vit.ViT("Ti/4", 32, classes=None, depth=1))
    ours = check(config).on(*planned_data(config.data, DATASETS))
    assert list(ours.notes()) == []  # 96 px are 24x24 patches, three times 8x8
    told = "is for images of 32x32 pixels, and this run trains at 96x96. --image_size=32 keeps its size."
    assert ours.size_note().endswith(told)
    config.model.image_size = 32
    assert not check(config).on(*planned_data(config.data, DATASETS)).size_note()
    config.model.image_size = 224
    (note,) = check(config).on(*planned_data(config.data, DATASETS)).notes()
    assert "images of 32x32 pixels, 8x8 patches; here they are 224x224, 56x56 patches" in note
    assert note.endswith("is probably better: --image_size=32.")
