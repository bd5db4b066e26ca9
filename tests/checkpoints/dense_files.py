"""Files of transformers' dense models, written again from goldens/dense/*.json: names, shapes and outputs.

originals_dense.py writes these. Values are sampled by name, as in golden_files.py.
"""

import functools
import json
import pathlib

import numpy as np
import safetensors.numpy
from sampled import sample

FOLDER = pathlib.Path(__file__).parent / "goldens" / "dense"
EVERY = 3  # pixels: the outputs of every third row and column are kept
SCALE = 0.19
_LAST_BIASES = ("head.head.4.bias", "head.conv3.bias")


@functools.cache
def golden(name):
    """The fields of a golden: library, config, preprocessor, shapes and outputs, {"HxW": (h, w, classes)}."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def value(name, shape):
    """A float32 array: variances are positive, and depths are far from the last ReLU, which would hide them.

    EoMT's buffers have the values of a trained model: no masked attention, weights of the loss.
    """
    if name == "attn_mask_probs":
        return np.zeros(shape, "float32")
    if name == "criterion.empty_weight":
        return np.append(np.ones(shape[0] - 1), 0.1).astype("float32")
    array = sample(name, shape, SCALE)
    if name.endswith("running_var"):
        return 1 + np.abs(array)
    return array + 2 if name in _LAST_BIASES and tuple(shape) == (1,) else array


def write(name, folder):
    """Writes the folder of a golden as save_pretrained would; returns {name: array}."""
    fields = golden(name)
    arrays = {key: value(key, shape) for key, shape in fields["shapes"].items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    for file, content in (("config", fields["config"]), ("preprocessor_config", fields["preprocessor"])):
        (folder / f"{file}.json").write_text(json.dumps(content))
    return arrays


def image(height, width):
    """One image of noise, uint8, channels last."""
    return np.random.RandomState(0).randint(0, 256, (1, height, width, 3)).astype("uint8")


def size_of(text):
    """(height, width) of "HxW"."""
    return tuple(map(int, text.split("x")))
