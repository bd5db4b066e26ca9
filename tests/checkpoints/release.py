"""Writes the golden files of a release: what this version saves, for every later version to load.

    python tests/checkpoints/release.py

Run it once, when the version in keras_vit/version.py is released; the files in released/VERSION are never written again.
"""

import json
import pathlib

import keras
import numpy as np
from drawn import draw, pixels

import keras_vit

SIZE = {"depth": 1, "width": 8, "heads": 2, "mlp_dim": 16, "classes": 3, "class_names": ["a", "b", "c"]}
# Name of the file: (variant, arguments, format).
FILES = {
    "vit.keras": ("Ti/4", {"image_size": (8, 12), "registers": 1, "layer_scale": 0.1, "dropout": 0.1, **SIZE}, "keras"),
    "map.keras": (
        "Ti/4",
        {"image_size": 8, "pool": "map", "preprocessing": "decode|resize(8, 8)", "dtype": "mixed_bfloat16", **SIZE},
        "keras",
    ),
    "vit.npz": ("Ti/4", {"image_size": (8, 12), "gelu": "tanh", **SIZE}, "google"),
    "timm": ("Ti/4", {"image_size": (8, 12), "distillation_token": True, **SIZE}, "timm"),
    "huggingface": ("Ti/4", {"image_size": 8, **SIZE}, "huggingface"),
}


def make(variant, arguments):
    """The file's model; every weight is drawn from its path."""
    model = keras_vit.ViT(variant, **arguments)
    for weight in model.weights:
        weight.assign(draw(weight.path.split("/", 1)[-1], weight.shape, 0.2))
    return model


def main():
    folder = pathlib.Path(__file__).parent / "released" / keras_vit.__version__
    folder.mkdir(parents=True)
    expected = {}
    for name, (variant, arguments, form) in FILES.items():
        keras.utils.set_random_seed(0)
        model = make(variant, arguments)
        keras_vit.save(model, folder / name, format=form)
        expected[name] = np.asarray(model(pixels(*model.image_size))).tolist()
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
