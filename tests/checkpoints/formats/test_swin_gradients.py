"""Gradients of Swin V1 and V2 are those of Hugging Face's transformers (goldens/gradients.npz)."""

import golden_files
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from sampled import pixels

import keras_vit


def gradients(name, folder):
    """{name in a file: gradient} of a golden's model: conversions are linear, so gradients are saved as weights."""
    fields, path, arguments = golden_files.write(name, folder)
    model = keras_vit.load(path, **arguments)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(pixels(*fields["image_size"])) ** 2)
    found = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for weight, gradient in zip(model.trainable_variables, found):
        weight.assign(gradient)
    keras_vit.save(model, folder / "gradients", "huggingface")
    return safetensors.numpy.load_file(folder / "gradients" / "model.safetensors")


@pytest.mark.extended
@pytest.mark.parametrize("name", ["hf_swin", "hf_swinv2"])
def test_gradients_are_transformers(name, tmp_path):
    prefix = f"{name}/gradients/"
    with np.load(golden_files.FOLDER / "gradients.npz") as file:
        expected = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
    found = gradients(name, tmp_path)
    errors = {key: np.linalg.norm(found[key] - each) / np.linalg.norm(each) for key, each in expected.items()}
    assert max(errors.values()) <= 1e-3, errors
