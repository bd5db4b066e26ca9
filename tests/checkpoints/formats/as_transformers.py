"""Compares models of Hugging Face's files with transformers' goldens."""

import json
import re

import numpy as np
import safetensors.numpy
from dense_files import golden, image, size_of

import keras_vit


def assert_detects_as_transformers(name, folder, model):
    """Compares a detector's logits, boxes and masks, if any, with those of a golden, at each of its sizes."""
    for text, expected in golden(name)["outputs"].items():
        size, expected = size_of(text), np.array(expected)
        at_size = model if size == model.image_size else keras_vit.load(folder, image_size=size)
        outputs = at_size(image(*size))
        k = outputs["logits"].shape[-1]
        logits, boxes, masks = np.split(expected, [k, k + 4], axis=1)
        np.testing.assert_allclose(outputs["logits"][0], logits, rtol=0, atol=1e-5)
        x, y, w, h = boxes.T
        boxes = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
        np.testing.assert_allclose(outputs["boxes"][0], boxes, rtol=0, atol=1e-5)
        if "masks" in outputs:
            found = np.reshape(outputs["masks"], (-1, len(masks))).T  # (h' * w', q) -> (q, h' * w')
            np.testing.assert_allclose(found, masks, rtol=0, atol=3e-5)
    assert model.class_names == ("wall", "sky", "tree")


def assert_same_arrays(folder, model, copy, idle=None):
    """Saves a golden's model to the folder `copy`: names and arrays are those in `folder`, but for what no code reads:
    counters, and arrays with a name that matches `idle`, which have its shape.
    """
    keras_vit.save(model, copy, format="huggingface")
    written, original = (safetensors.numpy.load_file(path / "model.safetensors") for path in (copy, folder))
    assert {key for key in written if not key.endswith("num_batches_tracked")} == original.keys()
    for key, array in original.items():
        if idle and re.search(idle, key):
            assert written[key].shape == array.shape
        else:
            np.testing.assert_array_equal(written[key], array, err_msg=key)
    assert keras_vit.load(copy).get_config() == model.get_config()


def assert_saved_alike(name, folder, model, copy):
    """`assert_same_arrays`, and the same config.json."""
    assert_same_arrays(folder, model, copy)
    config, theirs = json.loads((copy / "config.json").read_text()), golden(name)["config"]
    assert {key for key, value in config.items() if theirs.get(key, value) != value} <= {"transformers_version"}
