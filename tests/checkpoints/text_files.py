"""Dual encoders of other libraries, written again from their goldens: names and shapes of arrays, config and outputs.

goldens/text/*.json is written by originals_text.py; the values of the arrays are sampled by name (sampled.py).
"""

import functools
import json
import pathlib

import numpy as np
import safetensors.numpy
from sampled import sample

FOLDER = pathlib.Path(__file__).parent / "goldens" / "text"
SIZE, SCALE = 32, 0.1


def value(name, shape):
    """An array of a golden's file, by its name."""
    numbers = {"logit_scale": 2.0, "logit_bias": -3.0}
    return np.full(shape, numbers[name], "float32") if name in numbers else sample(name, shape, SCALE)


def image():
    """Two images of noise, uint8."""
    return np.random.RandomState(0).randint(0, 256, (2, SIZE, SIZE, 3)).astype("uint8")


def tokens(config):
    """Token ids of three texts, with CLIP's end at another place in each."""
    text = config["text_config"]
    found = np.random.RandomState(1).randint(3, text["vocab_size"] - 1, (3, text["max_position_embeddings"]))
    if config["model_type"] == "clip":
        found[[0, 1, 2], [3, 7, 5]] = text["eos_token_id"]
    return found.astype("int32")


def mixed():
    """(patches (3, 16, 8, 8, 3) uint8 of noise, grids (3, 2)): images of three aspects, two with padding."""
    patches = np.random.RandomState(2).randint(0, 256, (3, 16, 8, 8, 3)).astype("uint8")
    return patches, np.array([[4, 4], [2, 5], [3, 1]], "int32")


@functools.cache
def golden(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def write(name, folder):
    """Writes the file of a golden as transformers would."""
    fields = golden(name)
    arrays = {key: value(key, shape) for key, shape in fields["shapes"].items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields["config"]))
    mean, std = fields["normalisation"]
    processor = {"rescale_factor": 1 / 255, "image_mean": mean, "image_std": std}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
