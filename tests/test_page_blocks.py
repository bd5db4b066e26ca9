"""The Python blocks of README and docs run, page by page, with small models and data instead of large ones.

Two pages are longer programs with known results: test_migration.py runs them.
"""

import base64
import functools
import inspect
import json
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from page_blocks import ROOT, blocks
from PIL import Image

import keras_vit
import keras_vit.models.variants
import keras_vit.sharing
from keras_vit.data.ops.op_registry import OPS
from keras_vit.evaluation import EVALUATORS

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:Even though the .tf.config.experimental_run_functions_eagerly"),
]
TINY = {"width": 16, "heads": 2, "mlp_dim": 16}
DEPTHS = {"attention": 12, "detection": 2, "models": 5}  # pages that name blocks by number; others have one
ELSEWHERE = ("migrating", "from_tensorflow_addons")
PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [path for path in PATHS if blocks(path) and path.stem not in ELSEWHERE]

# {page: {what its code says: what is smaller}}
SMALLER = {
    "prediction": {', engine="openvino"': "", 'read_index("features")': 'read_index("answers")'},
    "README": {"image_size=384": "image_size=32"},
    "attention": {"image_size=1024": "image_size=224"},
    "data": {"labels=None": "labels=labels", "224": "16", "256": "2", "1024": "8"},
    "detection": {'"S/16"': '"Ti/16"', "(3, 6, 9)": "(1,)"},
    "distillation": {'"S/16"': '"Ti/16", image_size=32', "epochs=10": "epochs=1"},
    "multi_worker": {"224": "32", "256": "4", "epochs=10": "epochs=1"},
    "models": {
        **{"Resizing(224, 224)": "Resizing(32, 32)", "image_size=96": "image_size=32", "192": "16"},
        **{"token_merging=8": "token_merging=1, image_size=64", "block_07": "block_03", "[3, 7, -1]": "[1, 3, -1]"},
        **{'"decode|random_flip", 64': '"decode|random_flip", 4', "steps_per_epoch=100": "steps_per_epoch=1"},
    },
    "pretraining": {
        '"S/16", ': '"S/16", image_size=32, ',
        **{"image_size=16, depth=6, width=128, heads=4, mlp_dim=256": "image_size=4, depth=1, width=16, heads=2"},
        **{"512": "16", "rows=8": "rows=2", "epochs=10": "epochs=1", "224": "32"},
        **{"65_536, local_size=96, local_crops=8": "64, hidden=16, bottleneck=8, local_size=16, local_crops=2"},
    },
    "segmentation": {"384": "32", "epochs=15": "epochs=1", '"setr_mla"': '"setr_mla", head_options={"width": 8}'},
    "text": {"depth=4, width=192, heads=3, mlp_dim=768, outputs=192": "depth=1, width=16, heads=2, outputs=16"},
}


def pixels(count, size, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), dtype="uint8")


def classifier(**options):
    """A ViT for 32 px, of the size that the fixture `small` gives to all variants, with a random head."""
    model = keras_vit.ViT("Ti/16", **{"image_size": 32, **options})
    if model.classes is not None:
        head = model.get_layer("head")
        head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    return model


def tokenizers():
    """{kind: a small tokenizer's file}."""
    return json.loads((ROOT / "tests" / "io" / "tokenizers.json").read_text())["files"]


def pairs():
    """A DualEncoder with its tokenizer."""
    words = keras_vit.Tokenizer(tokenizers()["siglip2"], 64)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=words.size, outputs=16, depth=1, **TINY)
    return keras_vit.DualEncoder(classifier(classes=None), text, tokenizer=words)


def segmenter(**options):
    return keras_vit.SegmentationModel("Ti/16", "linear", 2, image_size=32, class_names=["a", "b"], **options)


KINDS = {  # {part of a name that pages load: its small model}
    "naflex": lambda: classifier(classes=None, pool="map"),
    "siglip": pairs,
    "vit-mae": lambda: keras_vit.MaskedAutoencoder(
        "Ti/16", image_size=32, decoder_depth=1, decoder_width=16, decoder_heads=2, decoder_mlp_dim=16
    ),
    "depth-anything": lambda: keras_vit.DepthModel("Ti/16", kind="relative", image_size=32, head_options={"width": 8}),
    "runs/rooms": lambda: keras_vit.DepthModel("Ti/16", "linear", image_size=32),
    "runs/streets": lambda: segmenter(colors=[(0, 0, 200), (200, 0, 0)]),
    "runs/teacher": lambda: classifier(classes=10),
    "runs/x": lambda: keras_vit.ViT("Ti/4", image_size=8, channels=1, classes=10, preprocessing="decode(1)"),
    "": lambda: classifier(classes=1000),
}
REAL_LOAD = keras_vit.load


@functools.cache
def stand_in(kind, folder, depth):
    """The file of the small model of a row of KINDS, with this depth."""
    path = folder / f"{depth}_{kind.replace('/', '_')}{'.keras' if kind else ''}"
    keras_vit.save(KINDS[kind](), path, format="keras" if kind else "timm")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def load(files):
    """As keras_vit.load; a name that is no file here is that of a small model of its kind."""

    @functools.wraps(REAL_LOAD)
    def load(path, *args, **options):
        if pathlib.Path(path).exists():
            return REAL_LOAD(path, *args, **options)
        kind = next(kind for kind in KINDS if kind in path)
        file = stand_in(kind, files, keras_vit.models.variants.ROWS["Ti"]["depth"])
        model = REAL_LOAD(file, *args, **{k: v for k, v in options.items() if k != "key"})
        if not kind:
            model.preprocessing = "decode|resize({}, {})".format(*model.image_size)  # as in the catalogue
        return model

    return load


@pytest.fixture
def called(monkeypatch):
    """Functions that write for long, or to a network, only check their arguments."""

    def checked(module, name):
        signature = inspect.signature(getattr(module, name))
        monkeypatch.setattr(module, name, lambda *args, **options: signature.bind(*args, **options))

    checked(keras_vit, "export")
    checked(keras_vit.sharing, "share")


def tutorials_arrays():
    """The state dict of docs/reference/custom_names.md, with a tutorial's names."""
    keras_vit.save(classifier(classes=10), "own", "timm")
    arrays = safetensors.numpy.load_file("own/model.safetensors")
    names = {"blocks.": "stack.", "norm1": "before_attention", "norm2": "before_mlp", "pos_embed": "where"}
    for ours, theirs in names.items():
        arrays = {name.replace(ours, theirs): array for name, array in arrays.items()}
    return arrays


def write_files():
    """What pages name: a tokenizer, photographs, and the folders PHOTOS, photos (of two classes) and SCENES (with
    masks).
    """
    pathlib.Path("spiece.model").write_bytes(base64.b64decode(tokenizers()["siglip"]))
    for i, name in enumerate(("cats.png", "cat.jpg", "dog.jpg", "street.jpg", "room.jpg")):
        Image.fromarray(pixels(5, 40)[i]).save(name)
    for folder in ("PHOTOS", "photos/cat", "photos/dog", "SCENES/images", "SCENES/masks"):
        pathlib.Path(folder).mkdir(parents=True)
        for i in range(5):
            image = pixels(5, 40, 1)[i, ..., 0] // 128 if folder.endswith("masks") else pixels(5, 40)[i]
            Image.fromarray(image).save(f"{folder}/{i}.png")
    pathlib.Path("SCENES/classes.txt").write_text("ground\nsky\n")


def names_of(page):
    """What a page's code uses and the page describes: images, a model..."""
    size = {"pretraining": 4}.get(page, 32)
    names = {"keras_vit": keras_vit, "keras": keras, "images": pixels(4, size), "labels": np.arange(4)}
    if page in ("augmentation", "models", "sharing", "prediction"):
        names["model"] = classifier(classes=10)
    if page == "augmentation":
        names["boxes"] = np.array([[0.1, 0.2, 0.5, 0.6]])
    if page == "custom_names":
        safetensors.numpy.save_file(tutorials_arrays(), "mine.safetensors")
    if page == "data":
        masks, boxes = pixels(4, 32, 1), np.tile(np.float32([0.1, 0.2, 0.5, 0.6]), (4, 1, 1))
        names |= {"masks": masks, "boxes": boxes, "text": "resize(16, 16)", "step": 0, "host": 0, "hosts": 1}
    if page == "models":
        file = pathlib.Path("cat.jpg").read_bytes()
        names |= {"jpeg_bytes": file, "pil_image": Image.open("cat.jpg"), "array": pixels(1, 40)[0]}
        names |= {"dataset": tf.data.Dataset.from_tensors(file), "my_head": keras.layers.Dense(3)}
    if page == "pretraining":
        crops = {"global": np.stack([pixels(2, 32)] * 2, 1), "local": np.stack([pixels(2, 16)] * 2, 1)}
        names["dataset"] = tf.data.Dataset.from_tensors((crops, np.zeros(2)))
    if page == "text":
        names["labels"] = np.arange(4) % 2
        names["texts"] = ["a cat", "a dog", "two cats", "a"]
    return names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run(path, tmp_path, monkeypatch, eagerly, load, called):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras_vit, "load", load)
    monkeypatch.setattr(keras_vit, "strategy", lambda name, strategy=keras_vit.strategy: strategy("one"))
    monkeypatch.setattr(keras_vit.Model, "_resolve_auto_jit_compile", lambda self: False)
    for row in keras_vit.models.variants.ROWS.values():
        for field, value in {"depth": DEPTHS.get(path.stem, 1), **TINY}.items():
            monkeypatch.setitem(row, field, value)
    write_files()
    names = names_of(path.stem)
    before = set(EVALUATORS)
    with mock.patch.dict(OPS):  # pages register their own
        for block in blocks(path, SMALLER.get(path.stem)):
            block.run(names)
    for name in set(EVALUATORS) - before:
        if not EVALUATORS[name].__module__.startswith("keras_vit."):
            del EVALUATORS[name]  # the page's; the package's, registered when first used, stay


def test_few_blocks_are_not_run():
    reasons = [block.reason for path in PATHS for block in blocks(path) if block.reason]
    assert len(reasons) < 10, reasons
