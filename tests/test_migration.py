"""The code in docs/migrating.md and docs/from_tensorflow_addons.md runs and gives what the pages say; the names in them
exist.
"""

import pathlib
import re

import keras
import numpy as np
import pytest
from page_blocks import ROOT, blocks
from small_models import run_eagerly

import keras_vit
import keras_vit.inspection
from keras_vit import training
from keras_vit.checkpoints.adapt import model_weights

pytestmark = pytest.mark.filterwarnings("ignore:Even though the .tf.config.experimental_run_functions_eagerly")

PATHS = {name: ROOT / "docs" / f"{name}.md" for name in ("migrating", "from_tensorflow_addons")}
PAGES = {name: path.read_text() for name, path in PATHS.items()}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names that the pages' code uses: images, labels. It runs in a folder of its own, eagerly: each function is
    called once.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras_vit.Model, "_resolve_auto_jit_compile", lambda self: False)
    run_eagerly(True)
    rng = np.random.default_rng(0)
    yield {"images": rng.integers(0, 256, (8, 96, 96, 3), dtype="uint8"), "labels": np.arange(8) % 10}
    run_eagerly(False)


def vit(**kwargs):
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/16", image_size=96, depth=4, width=24, heads=3, mlp_dim=16, classes=10, **kwargs)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) * 0.3 for w in model.get_weights()])
    return model


@pytest.mark.extended
def test_the_code_of_the_guides_runs_and_keeps_the_weights(names):
    google, erf = (
        vit(mlp_activation="gelu_tanh", mean=127.5, std=127.5),
        vit(mlp_activation="gelu", mean=127.5, std=127.5),
    )
    for name in ("B_16.npz", "ViT-B_16_imagenet21k+imagenet2012.npz"):
        keras_vit.save(google, name, format="google")
    keras_vit.save(erf, "mine.npz", format="google")
    erf.preprocessing = "decode|resize(106, method='bicubic')|central_crop(96, 96)"
    keras_vit.save(erf, "timm_folder", format="timm")
    keras_vit.save(erf, "vit_folder", format="huggingface")
    pathlib.Path("mine.safetensors").write_bytes(pathlib.Path("timm_folder/model.safetensors").read_bytes())
    keras.utils.save_img("photo.jpg", names["images"][0], scale=False)
    for i, image in enumerate(names["images"]):
        folder = pathlib.Path("photos", "abc"[i % 3])
        folder.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(folder / f"{i}.png", image, scale=False)
    models = []
    for block in blocks(PATHS["migrating"]):
        block.run(names)
        models.append(names.get("model"))
    assert names["evaluated"].element_spec[0].shape[1:] == (96, 96, 3) and names["names"] == ("a", "b", "c")
    assert models[0].classes == 10 and keras_vit.load("mine.keras").classes == 10
    assert names["logits"].shape == (1, 10) and names["shaded"].shape == (1, 96, 96, 3)
    assert float(keras.ops.max(names["maps"])) == pytest.approx(1.0, abs=0.2)
    np.testing.assert_allclose(
        keras_vit.load("mine.npz", image_size=96, mlp_activation="gelu").predict(names["images"], verbose=0),
        keras_vit.load("mine.safetensors", mean=127.5, std=127.5, **names["facts"]).predict(names["images"], verbose=0),
        atol=1e-5,
    )
    hub, last = keras_vit.load("for_the_hub"), models[-1]
    assert list(hub.class_names) == ["cat", "dog", "owl"]
    for path, array in model_weights(last).items():
        np.testing.assert_array_equal(model_weights(hub)[path], array)
    assert names["attention"][3].shape == (8, 3, 37, 37) and names["hidden"].shape == (8, 37, 24)


def numpy_focal(rows, logits, alpha=0.25, gamma=2.0):
    """The formula of tensorflow-addons: the mean over examples of the sum over classes."""
    p = 1 / (1 + np.exp(-logits.astype("float64")))
    cross_entropy = -(rows * np.log(p) + (1 - rows) * np.log(1 - p))
    p_t, alpha_t = rows * p + (1 - rows) * (1 - p), rows * alpha + (1 - rows) * (1 - alpha)
    return (alpha_t * (1 - p_t) ** gamma * cross_entropy).sum(-1).mean()


@pytest.mark.extended
def test_the_replacements_of_tensorflow_addons_run_and_are_right(names):
    names["model"] = keras_vit.ViT("Ti/32", image_size=96, depth=1, width=16, heads=2, mlp_dim=16, classes=10)
    for block in blocks(PATHS["from_tensorflow_addons"]):
        block.run(names)
    model, images = names["model"], names["images"].astype("float32")
    logits = model.predict(images, verbose=0)
    np.testing.assert_allclose(keras_vit.load("averaged.keras").predict(images, verbose=0), logits, atol=1e-5)
    assert float(names["loss"]) == pytest.approx(numpy_focal(np.eye(10)[names["labels"]], logits), rel=1e-4)
    np.testing.assert_array_equal(np.asarray(names["moved"])[:, 2:, 3:], images[:, :-2, :-3])
    assert not np.asarray(names["moved"])[:, :2].any()
    # A quarter of a turn is exact: the page's matrix at 90 degrees against numpy's.
    code = next(block.code for block in blocks(PATHS["from_tensorflow_addons"]) if "rotated" in block.code)
    exec(code.replace("radians(30)", "radians(90)"), names)
    np.testing.assert_allclose(names["rotated"], np.rot90(images, axes=(1, 2)), atol=0.05)
    names["callback"] = names["SaveAverages"]()
    names["callback"].set_model(model)
    names["callback"].on_epoch_end(0)
    assert pathlib.Path("averages_00.keras").exists()


@pytest.mark.parametrize("page", PAGES)
def test_the_names_in_the_pages_exist(page):
    """Dotted names of keras, keras_vit and `training`, and names of published models."""
    text = PAGES[page]
    roots = {"keras": keras, "keras_vit": keras_vit, "training": training}
    dotted_names = set(re.findall(r"(?<![\w./])((?:keras|keras_vit|training)(?:\.\w+)+)(?![\w/-])", text))
    missing = []
    for dotted in dotted_names:
        root, *parts = dotted.split(".")
        value = roots[root]
        for part in parts:
            value = getattr(value, part, None)
        missing += [dotted] if value is None else []
    assert len(dotted_names) > 10 and not missing
    known = set(keras_vit.list_models("*"))
    assert not set(re.findall(r'load\("((?:augreg|imagenet2012|imagenet21k|deit)/[^"]+)"', text)) - known


def test_further_names_in_the_tables_are_in_keras():
    """Names without their module, after another one in the same row."""
    for module, names in {
        "optimizers": "Adafactor Lion Muon Nadam ScheduleFreeAdamW MultiOptimizer Lamb",
        "layers": (
            "RandomShear RandomTranslation RandomPerspective RandomSaturation RandomColorJitter AdaptiveMaxPooling2D"
            " AugMix"
        ),
        "activations": "hard_shrink soft_shrink tanh_shrink sparsemax",
        "metrics": "FBetaScore PearsonCorrelation",
    }.items():
        for name in names.split():
            assert hasattr(getattr(keras, module), name) and name in PAGES["from_tensorflow_addons"]
