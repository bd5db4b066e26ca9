"""Own heads on Hugging Face's backbones: what the head reads is known from shapes, or asked for."""

import keras
import numpy as np
import pytest
from golden_files import golden_arrays, write
from safetensors.numpy import save_file
from sampled import pixels

import keras_vit


def saved(name, folder, others):
    """The path of a golden's backbone with other arrays, and arguments of load."""
    fields, path, arguments = write(name, folder)
    (folder / "config.json").unlink()
    body = {key: array for key, array in golden_arrays(name).items() if not key.startswith("classifier")}
    save_file({**body, **others}, path)
    return (
        path,
        {"heads": 2, "mlp_activation": "gelu", "epsilon": 1e-6, "pool": "token", **arguments},
        pixels(*fields["image_size"]),
    )


def dense(rng, inputs, outputs):
    return rng.normal(size=(outputs, inputs)).astype("float32"), rng.normal(size=outputs).astype("float32")


def class_token(model, images):
    """(b, d) after the last normalisation."""
    return np.asarray(keras.Model(model.input, model.tokens)(images))[:, 0]


@pytest.mark.extended
def test_a_pooler_before_the_head_is_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    (w, b), (w2, b2) = dense(rng, 16, 16), dense(rng, 16, 3)
    others = {"vit.pooler.dense.weight": w, "vit.pooler.dense.bias": b, "fc.weight": w2, "fc.bias": b2}
    path, arguments, x = saved("hf_vit", tmp_path, others)
    with pytest.raises(ValueError, match=r"(?s)pooler, 16, if the head reads pooler_output; None if .*pre_logits=\?\)"):
        keras_vit.load(path, **arguments)
    without = keras_vit.load(path, pre_logits=None, **arguments)
    token = class_token(without, x)
    np.testing.assert_allclose(without(x), token @ w2.T + b2, atol=1e-5)
    pooled = keras_vit.load(path, pre_logits=16, **arguments)
    np.testing.assert_allclose(pooled(x), np.tanh(token @ w.T + b) @ w2.T + b2, atol=1e-5)


def test_a_head_on_dinov2_reads_the_token_unless_it_is_twice_as_wide(tmp_path):
    w, b = dense(np.random.default_rng(0), 16, 3)
    path, arguments, x = saved("hf_dinov2", tmp_path, {"head.weight": w, "head.bias": b})
    model = keras_vit.load(path, **arguments)
    assert model.spec.pool == "token"
    np.testing.assert_allclose(model(x), class_token(model, x) @ w.T + b, atol=1e-5)
