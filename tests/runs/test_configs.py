"""Every row of every shipped config resolves and fits its model, and every config trains."""

import functools
import itertools
import json
import math
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import from_arrays, parse
from keras_vit.evaluation import features
from keras_vit.layers.embedding.patches import pair
from keras_vit.models import make_bit_spec, make_spec, whiten
from keras_vit.pretraining.image_gpt import image_gpt_spec
from keras_vit.runs import prepare, training_run
from keras_vit.runs.config import resolve
from keras_vit.runs.optimizer import make_optimizer
from keras_vit.tasks import find_task
from keras_vit.tasks.classification import spec_overrides, variant
from trainers import config_files

SMALL = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
NAMES = config_files.config_names()
# One of each source, start and kind of model that no run of tests/tasks has.
TRAINED = "cifar10_stem cifar10_finetune augreg mae_finetune igpt_finetune".split()
# These train in tests/tasks, which draw images with masks, boxes, depths and texts for them.
ELSEWHERE = "depth detection instances segmentation lit digits_pretrain digits_finetune folder_finetune igpt".split()
OTHERS = [name for name in NAMES if name not in TRAINED + ELSEWHERE]
DATASETS = config_files.packaged("lib.datasets").DATASETS


def rows(name):
    """What may stand behind the colon of a config: every combination of its choices."""
    module = config_files.packaged(name)
    choices, only = getattr(module, "CHOICES", {}), getattr(module, "ONLY", {})
    combinations = itertools.product(*choices.values())
    return list(
        dict.fromkeys(
            ",".join(word for what, word in zip(choices, words) if what not in only or only[what] in words)
            for words in combinations
        )
    )


def spec_of(config):
    """The whole spec of a config's model."""
    overrides = spec_overrides(config)
    if config.task == "autoregressive":
        return image_gpt_spec(config.model.variant, overrides.pop("palette"), overrides)
    name = variant(config)
    return (make_spec if "/" in name else make_bit_spec)(name, **overrides)


def shrunk_text(text, factor):
    """A preprocessing text with the sizes of its crops and resizes scaled."""
    sizes = r"((?:random_resized_crop|random_crop|central_crop|resize)\()(\d+)((?:, )\d+)?"

    def scaled(match):
        numbers = [
            max(1, math.ceil(int(number) * factor))
            for number in re.findall(r"\d+", match.group(2) + (match.group(3) or ""))
        ]
        return match.group(1) + ", ".join(map(str, numbers))

    return re.sub(sizes, scaled, text)


def shrink(name, **data):
    """A shipped config made to take a few steps of a tiny model on tiny images."""
    config = config_files.load_config(name)
    config.update(evaluate="2 steps", checkpoint="2 steps", batch_size=8, jit_compile=False)
    config.schedule.update(warmup="1 steps", cooldown="0 steps")
    if config.task == "dino":
        config.objective.update(outputs=16, hidden=8, bottleneck=4, local_crops=1, frozen="1 steps")
    if "samples" in config.evals:
        config.evals.samples = {"every": "2 steps", "count": 1, "images": 1, "completions": 1}
    for options in config.evals.values():
        if "block" in options:
            options.block = 0  # the only one
    config.data.update(shuffle_buffer=20, **data)
    config.whiten = config.whiten and 32
    if config.data.source == "digits":
        config.data.evaluation += "[:16]"
    spec, whole = spec_of(config), config.model.image_size
    if hasattr(spec, "units"):
        config.model.update(units=(1, 1), width_factor=0.5)
        size = 32
    else:
        config.model.update(
            SMALL, **({"pre_logits": 16} if spec.pre_logits else {}), **({"palette": 8} if spec.palette else {})
        )
        size = min(whole, 2 * spec.stride[0])
    config.model.image_size = size
    for part in (config.data, *config.evals.values()):
        for key in (key for key in part if key.endswith("preprocess")):
            part[key] = shrunk_text(part[key], size / whole)
    return config


def arrays(*_):
    """In the place of any dataset: 36 images of 6 classes."""
    images = np.random.default_rng(0).integers(0, 256, (36, 36, 40, 3), dtype="uint8")
    return from_arrays(images, np.arange(36) % 6, class_names=tuple("abcdef"))


def untrained(name, path):
    """The model that a shipped config begins with, saved as a file."""
    config = shrink(name)
    source, _ = prepare.open_data(config.data, None)
    model = find_task(config.task)(config).build(source)
    model.save(path)
    return model


def prepared(name, tmp_path, request):
    """(config, data_dir) of a shipped config on data that is here."""
    own = config_files.load_config(name).data.source
    if name == "cifar10_finetune":  # as prepared by tensorflow-datasets
        data_dir = str(request.getfixturevalue("shared_data") / "tensorflow_datasets")
        config = shrink(name, train="train[:100]", evaluation="test[:20]")
    else:
        config, data_dir = shrink(name), None
        if own != "digits":
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(prepare, "open_source", arrays)
            patch.setattr(features, "open_source", arrays)
    if name == "cifar10_finetune":  # from a checkpoint of another library's, as its docstring says
        keras_vit.save(keras_vit.ViT("Ti/16", image_size=32, **SMALL), tmp_path / "theirs", "timm")
        config.init = str(tmp_path / "theirs" / "model.safetensors")
    elif name == "distillation":
        teacher = untrained("cifar10_scratch", tmp_path / "teacher.keras")
        teacher.layers[-1].kernel.assign_add(np.ones((16, 6)))  # a head of zeros is refused
        teacher.save(tmp_path / "teacher.keras")
        config.objective.teacher = str(tmp_path / "teacher.keras")
    elif name == "igpt_finetune":
        model = untrained("igpt", tmp_path / "first.keras")
        config = config_files.load_config(name)
        config.update(init=str(tmp_path / "first.keras"), evaluate="2 steps", checkpoint="2 steps", batch_size=8)
        size = model.image_size[0]
        for key in ("train_preprocess", "eval_preprocess"):
            config.data[key] = shrunk_text(config.data[key], size / config.model.image_size)
        config.model.image_size = size
    return config, data_dir


def unfinished(prepared, model, *_):
    """Instead of `finish`: the model as it is trained, without an evaluation and a report."""
    return model, {"top1": 0.0, "loss": 0.0, "examples": 20}


_released = pytest.mark.release("configs", "fit", "models", "runs", "tasks")


@pytest.mark.extended
@pytest.mark.parametrize("name", [*TRAINED, *(pytest.param(name, marks=_released) for name in OTHERS)])
def test_a_config_trains(name, tmp_path, request, monkeypatch, eagerly):
    """Eagerly and up to the last step: the tests of the tasks resume, and end whole."""
    config, data_dir = prepared(name, tmp_path, request)
    config.total, whitened = "2 steps", []
    monkeypatch.setattr(training_run, "finish", unfinished)
    monkeypatch.setattr(training_run, "whiten", lambda *given: whitened.append(len(given[1])) or whiten(*given))
    training_run.run(config, tmp_path / "run", data_dir)
    check_files(tmp_path / "run", [2])
    assert whitened == ([32] if config.whiten else [])


def check_files(run, steps):
    """A run's folder holds its files, and its records are of these steps, and finite."""
    assert {path.name for path in run.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoints", "tensorboard"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == steps and all(
        math.isfinite(r.get("loss", 0) + r["val_loss"]) for r in records
    )
    resolved = json.loads((run / "config.json").read_text())
    assert resolved["total"] == steps[-1] and isinstance(resolved["schedule"]["warmup"], int)


@functools.cache
def image_shape(text, encoded):
    """(whether a preprocessing is random, the shape of its images): traced only."""
    example, ops = tf.constant("") if encoded else tf.zeros((8, 8, 1), tf.uint8), parse(text)
    images = tf.data.Dataset.from_tensors(example).map(
        lambda image: ops.image(image, tf.constant([0, 0], tf.int64) if ops.random else None)
    )
    return ops.random, tuple(images.element_spec.shape)


@pytest.mark.extended
@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_every_config_resolves_and_fits_its_model(name):
    """The durations lie within the run, the optimizer is there, and both preprocessings give the images that the model
    takes.
    """
    for row in rows(name):
        config = config_files.load_config(f"{name}:{row}" if row else name)
        known = {} if config.data.source in DATASETS else {"examples": 1000, "classes": 7}
        train, _ = prepare.planned_data(config.data, DATASETS, **known)
        resolved = resolve(config, train.size)
        assert 0 <= resolved["schedule"]["warmup"] <= resolved["total"], row
        assert make_optimizer(resolved) is not None
        spec, size = spec_of(config), pair(config.model.image_size, "image_size")
        assert hasattr(spec, "units") or not any(side % spec.stride[0] for side in size), row
        for key, may_be_random in (("train_preprocess", True), ("eval_preprocess", False)):
            parse(config.data[key])
            if key == "train_preprocess" and config.task == "dino":  # whose crops have texts of their own
                continue
            # Tracing it takes a while, and the size stays.
            text = re.sub(r"\|rand_augment\(2, \d+\)", "", config.data[key])
            random, shape = image_shape(text, encoded=config.data.source != "digits")
            assert shape == (*size, config.model.channels) and random <= may_be_random, (row, key)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("augreg:mediun1", 'augreg: "mediun1" is not a choice.*strength: none, light1.*variant: B/16.*data: imagenet'),
        ("augreg:none,light1", '"none" and "light1" are both of strength'),
        ("mae_finetune:B/16,1percent", '"1percent" is for cifar10 alone, not for B/16: leave it out, or choose'),
        ("distillation:6min,deit", '"6min" is for cifar10 alone, not for deit'),
        ("digits_pretrain:B/16", '"digits_pretrain" takes no argument, got "B/16"'),
        ("augre:none", 'no config "augre". Did you mean "augreg"'),
        ("/none/own.py", "There is no config file"),
        (str(pathlib.Path(__file__).parents[2] / "setup.cfg"), 'setup.cfg" is not a Python file'),
    ],
)
def test_names_and_choices_are_refused_with_what_is_valid(name, message):
    with pytest.raises(ValueError, match=message):
        config_files.load_config(name)


def test_words_stand_in_any_order_and_the_first_is_the_default():
    one, other = (
        config_files.load_config(f"augreg:{text}") for text in ("imagenet21k,S/32,strong2", "strong2,S/32,imagenet21k")
    )
    assert one.to_dict() == other.to_dict() and one.model.variant == "S/32" and one.mixup == 0.8
    default = config_files.load_config("augreg")
    assert (default.model.variant, default.mixup, default.data.source) == ("B/16", None, "imagenet2012")


def test_table_4_holds_out_what_the_paper_holds_out():
    """Section D.1.1: 10% of Pets and Flowers, 2% of CIFAR, 1% of ImageNet."""
    for task, train, held_out in (
        ("imagenet", 1_268_355, 12_812),
        ("cifar100", 49_000, 1_000),
        ("pets", 3_312, 368),
        ("flowers", 2 * 918, 2 * 102),
    ):
        data = config_files.load_config(f"paper_finetune:{task}").data
        counts = DATASETS[data.source][1]
        sizes = [prepare.split_size(data.source, split, counts) for split in (data.dev_train, data.dev_evaluation)]
        assert sizes == [train, held_out], task


def test_polyak_averaging_is_for_imagenet_at_the_higher_resolution():
    averaged = {
        row for row in rows("paper_finetune") if config_files.load_config(f"paper_finetune:{row}").optimizer.ema
    }
    assert averaged == {f"{variant},imagenet,high" for variant in ("B/16", "B/32", "L/16", "L/32", "H/14")}
    sizes = {v: config_files.load_config(f"paper_finetune:{v},high").model.image_size for v in ("L/16", "H/14")}
    assert sizes == {"L/16": 512, "H/14": 518}


@pytest.mark.parametrize(
    ("examples", "side", "rule"),
    [
        (50_000, 32, (10_000, 500, 0.1, 160, 128)),
        (1_281_167, 300, (20_000, 500, 0.1, 512, 480)),
        (3_680, 300, (500, 100, 0.0, 512, 480)),
        (19_999, 95, (500, 100, 0.0, 160, 128)),
        (20_000, 96, (10_000, 500, 0.1, 512, 480)),
        (500_000, 96, (20_000, 500, 0.1, 512, 480)),
    ],
)
def test_the_bit_hyperrule(examples, side, rule):
    """Figures of arXiv 1912.11370, section 3.3, and of its published code."""
    assert tuple(config_files.packaged("bit_hyperrule").hyperrule(examples, side, side).values()) == rule


def test_the_staircase_falls_at_30_60_and_90_percent():
    """The published rule's rates for CIFAR-10: .003 from step 500, a tenth behind steps 3000, 6000 and 9000."""
    from keras_vit.runs.optimizer import make_schedule

    config = config_files.load_config("bit_hyperrule:cifar10")
    schedule = make_schedule(resolve(config, 50_000))
    rates = [float(schedule(step)) for step in (250, 500, 3000, 3001, 6000, 6001, 9000, 9001, 9999)]
    np.testing.assert_allclose(rates, [0.0015, 0.003, 0.003, 3e-4, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6], rtol=1e-5)


def test_vtab_has_800_examples_to_train_on_and_200_to_choose_by():
    vtab, datasets = config_files.packaged("lib.vtab"), DATASETS
    assert len(vtab.TASKS) == 19
    groups = [group for group, *_ in vtab.TASKS.values()]
    assert [groups.count(group) for group in ("natural", "specialized", "structured")] == [7, 4, 8]
    for task in vtab.TASKS:
        data = config_files.load_config(f"vtab_finetune:{task}").data
        sizes = [
            prepare.split_size(task, split, datasets[data.source][1])
            for split in (data.dev_train, data.dev_evaluation, data.train)
        ]
        assert sizes == [800, 200, 1000], task
        assert prepare.split_size(task, data.evaluation, datasets[data.source][1]) >= 711


def test_the_recipes_page_has_every_config_and_what_it_shows_loads():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
    assert [name for name in NAMES if f"`{name}" not in page] == []
    shown = [text for text in re.findall(r"`(?:--config=)?([\w]+:[^`=]+)`", page) if text.partition(":")[0] in NAMES]
    assert len(shown) > 10
    for text in shown:
        config_files.load_config(text)
