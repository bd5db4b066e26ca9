"""Muon against a singular value decomposition, and against Keras' own."""

import keras
import numpy as np
import pytest
from small_models import data
from trajectories import gradients, run, variables

import keras_vit
from keras_vit.optim.muon import is_hidden, orthogonalized
from keras_vit.runs.saving import run_state
from keras_vit.training import AdamW, Muon, SoftmaxCrossEntropy


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (9, 5)])
def test_a_matrix_keeps_its_singular_vectors_and_gets_values_near_one(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype("float32")
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    values = u.T @ keras.ops.convert_to_numpy(orthogonalized(keras.ops.convert_to_tensor(matrix))) @ v.T
    np.testing.assert_allclose(values, np.diag(np.diag(values)), atol=1e-4)
    assert 0.65 < np.diag(values).min() and np.diag(values).max() < 1.25


def test_hidden_kernels_take_keras_steps_and_the_rest_those_of_adamw():
    """Keras' Muon without its decay; its Adam puts epsilon elsewhere, so the bias is compared with our AdamW."""
    rate = 0.1 * 0.2 * 3**0.5  # which Keras multiplies in float64
    theirs = keras.optimizers.Muon(rate, momentum=0.9, weight_decay=None, adam_weight_decay=None, rms_rate=None)
    ours = run(Muon(0.1, momentum=0.9, beta_2=0.99))
    np.testing.assert_allclose(ours[0], run(theirs)[0], atol=1e-5)
    np.testing.assert_array_equal(ours[1], run(AdamW(0.1, beta_2=0.99))[1])


def test_decay_is_decoupled_and_a_convolution_is_a_matrix():
    (kernel, _), gradient = variables(), gradients(0)[0]
    plain, decayed = run(Muon(0.1), 1)[0], run(Muon(0.1, decay=0.5), 1)[0]
    np.testing.assert_allclose(decayed, plain - 0.1 * 0.5 * kernel.numpy(), atol=1e-6)
    convolution = keras.Variable(kernel.numpy().reshape(1, 3, 1, 2), name="kernel")
    optimizer = Muon(0.1)
    optimizer.build([convolution])
    optimizer.apply([gradient.reshape(1, 3, 1, 2)], [convolution])
    np.testing.assert_allclose(convolution.numpy().reshape(3, 2), plain, atol=1e-6)


def test_first_and_last_layer_are_adamws_and_hidden_kernels_have_no_second_moment():
    model = keras_vit.ViT("Ti/4", image_size=32, depth=1, width=32, heads=2, mlp_dim=64, classes=4, conv_stem=(8, 8))
    hidden = {v.path for v in model.trainable_variables if is_hidden(v.path, v.shape)}
    dense = [
        f"block_00/{name}/kernel" for name in ("attention/query", "attention/key", "attention/value", "attention/out")
    ]
    assert hidden == {
        "stem_conv2/kernel",
        "patch_encoder/kernel",
        *dense,
        "block_00/mlp/hidden/kernel",
        "block_00/mlp/out/kernel",
    }
    optimizer = Muon()
    optimizer.build(model.trainable_variables)
    velocities = [v for v in optimizer.variables if v.path.endswith("velocity")]
    assert len(velocities) == len(model.trainable_variables) - len(hidden)


@pytest.mark.extended
def test_it_trains_and_continues_bit_for_bit_from_its_state(tiny, eagerly):
    x, y = data(8)
    model, resumed = tiny(depth=1), tiny(depth=1)
    for one in (model, resumed):
        one.compile(Muon(0.01, decay=0.1, global_clipnorm=1.0), SoftmaxCrossEntropy(), jit_compile=False)
        one.optimizer.build(one.trainable_variables)
    losses = model.fit(x, y, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < 0.85 * losses[0]
    run_state.restore(resumed, run_state.collect(model))
    for one in (model, resumed):
        one.fit(x, y, batch_size=8, verbose=0)
    ours, theirs = run_state.collect(model), run_state.collect(resumed)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_it_round_trips_and_refuses_what_would_diverge():
    optimizer = Muon(0.1, momentum=0.9, decay=0.2, layer_decay=0.5)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(copy) is Muon and copy.get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match="Muon: momentum must be at least 0 and below 1, got 1"):
        Muon(momentum=1)


@pytest.mark.parametrize(
    "name", ["mae/decoder_pred", "masked_patches/patch_head", "next_color", "head", "head_dist", "vit/stem_conv1"]
)
def test_the_last_layers_of_pre_training_are_adamws_too(name):
    assert not is_hidden(f"{name}/kernel", (16, 48)) and is_hidden("decoder_block_00/mlp/dense/kernel", (16, 48))
