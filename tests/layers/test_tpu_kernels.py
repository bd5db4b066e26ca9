"""layers.kernels: kernels, interpreted step by step, against plain JAX; and which program they are in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreters import Interpreter

from keras_vit.layers.kernels import layer_norm, self_check, short_rows


def arrays(count, *shape, seed=0):
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), jnp.bfloat16) for _ in range(count)]


def plain_attention(q, k, v, heads):
    b, n, d = q.shape
    q, k, v = (x.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3) for x in (q, k, v))
    weights = jax.nn.softmax(q * jnp.asarray((d // heads) ** -0.5, q.dtype) @ k.swapaxes(2, 3))
    return (weights @ v).transpose(0, 2, 1, 3).reshape(b, n, d)


def plain_fork(x, gamma, beta, epsilon):
    wide = x.astype("float32")
    y = (wide - wide.mean(-1, keepdims=True)) / jnp.sqrt(wide.var(-1, keepdims=True) + epsilon) * gamma + beta
    return x, y.astype(x.dtype)


def with_gradients(function, given, upstream):
    """The results of a function and the gradients of what it was given, as one list of float32 arrays."""

    def both(given, upstream):
        results, back = jax.vjp(function, *given)
        return results, back(jax.tree.map(lambda y, g: g.astype(y.dtype), results, upstream))

    return [np.asarray(x, "float32") for x in jax.tree.leaves(jax.jit(both)(given, upstream))]


def assert_as_near(found, rounded, exact):
    """`found` is at most as far from `exact` as `rounded` is, the plain form in bfloat16, plus a step of bfloat16."""
    for ours, theirs, true in zip(found, rounded, exact, strict=True):
        step = 2**-8 * np.abs(true).max()
        assert np.abs(ours - true).max() <= np.abs(theirs - true).max() + step


@pytest.mark.parametrize(
    "n, heads, c",
    [(9, 2, 72), *(pytest.param(*shape, marks=pytest.mark.extended) for shape in ((1, 3, 64), (5, 1, 256)))],
)
def test_attention_and_its_gradients(n, heads, c):
    given, [g] = arrays(3, 2, n, heads * c), arrays(1, 2, n, heads * c, seed=1)
    found = with_gradients(lambda *x: short_rows.attend(*x, heads, True), given, g)
    plain = functools.partial(plain_attention, heads=heads)
    assert_as_near(
        found, with_gradients(plain, given, g), with_gradients(plain, [x.astype("float32") for x in given], g)
    )


def test_large_scores_do_not_overflow_and_tokens_are_told_apart():
    x = 60.0 * jnp.eye(5, 64, dtype="bfloat16")[None]
    y = short_rows.attend(x, x, x, 1, True)
    np.testing.assert_allclose(np.asarray(y[0], "float32"), np.asarray(x[0], "float32"), atol=1e-3)


@pytest.mark.extended
def test_heads_in_several_programs_are_those_in_one(monkeypatch):
    given, [g] = arrays(3, 1, 9, 256), arrays(1, 1, 9, 256, seed=1)

    def attend(*x):
        return short_rows.attend(*x, 4, True)

    whole = with_gradients(attend, given, g)
    assert short_rows._width(9, 256, 64) == 256
    monkeypatch.setattr(short_rows, "ROOM", 100_000)
    assert short_rows._width(9, 256, 64) == 128
    for a, b in zip(with_gradients(attend, given, g), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_that_are_short_enough():
    """B/16, L/16, H/14 and B/16 at 384 pixels; not So400m at 378, nor B/16 at 1024."""
    for shape in ((197, 768, 12), (197, 1024, 16), (257, 1280, 16), (577, 768, 12)):
        assert short_rows.fits(*shape), shape
    for shape in ((729, 1152, 16), (4097, 768, 12)):
        assert not short_rows.fits(*shape), shape


@pytest.mark.parametrize("n, d", [(17, 64), pytest.param(1, 40, marks=pytest.mark.extended)])
def test_normalisation_and_its_gradients(n, d):
    [x, g, also] = arrays(3, 3, n, d)
    gamma, beta = (jnp.asarray(np.random.default_rng(2).normal(size=(1, d)), "float32") for _ in range(2))
    found = with_gradients(lambda *given: layer_norm.fork(*given, 1e-6, True), (x, gamma, beta), (also, g))
    exact = with_gradients(functools.partial(plain_fork, epsilon=1e-6), (x.astype("float32"), gamma, beta), (also, g))
    for ours, true in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, true, rtol=2**-7, atol=2**-8)


def test_a_large_mean_costs_no_digits():
    x = (1000 + jnp.arange(8.0)[None, None] * 8).astype("bfloat16")  # 1000, 1008, ... are exact in bfloat16
    _, y = layer_norm.fork(x, jnp.ones((1, 8)), jnp.zeros((1, 8)), 0.0, True)
    np.testing.assert_allclose(np.asarray(y[0, 0], "float32"), (np.arange(8) - 3.5) / np.arange(8).std(), rtol=2**-7)


KERNELS = ["attention_backward", "attention_forward", "norm_backward", "norm_forward"]


def loss_of_a_block(strategy, model_parallel, attention_dropout):
    """(a function of (variables, x), its arguments): a number made of a block's outputs in bfloat16 on some devices."""
    import keras

    import keras_vit

    engine = keras_vit.strategy(strategy, model_parallel=model_parallel).engine
    keras.distribution.set_distribution(engine)
    keras.utils.set_random_seed(0)
    block = keras_vit.layers.TransformerBlock(4, 64, attention_dropout=attention_dropout, dtype="mixed_bfloat16")
    block.build((None, 7, 32))
    fixed = [v.value for v in block.non_trainable_variables]
    x, g = arrays(2, 8, 7, 32)

    def loss(variables, x):
        y, _ = block.stateless_call(variables, fixed, x, training=True)
        return (y.astype("float32") * g.astype("float32")).sum()

    return jax.value_and_grad(loss), ([v.value for v in block.trainable_variables], x)


def kernels_in_programs(attention_dropout):
    """The kernels in a TPU's program for a block's training step, and in a CPU's."""
    step, given = loss_of_a_block("one", None, attention_dropout)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    exported = [
        jax.export.export(jax.jit(step), platforms=[chip], disabled_checks=allowed)(*given) for chip in ("tpu", "cpu")
    ]
    return [[name for name in KERNELS if name in program.mlir_module()] for program in exported]


def steps_of_a_block(strategy, model_parallel):
    """(loss, gradients) of a block by plain operations, and by kernels that are interpreted and, while the step is
    traced, checked.
    """
    step, given = loss_of_a_block(strategy, model_parallel, 0.0)
    plain = jax.jit(step)(*given)
    choose, run, devices = jax.lax.platform_dependent, short_rows.run, self_check.local_devices
    try:
        self_check.local_devices = lambda platform: jax.local_devices()
        self_check.trusted.cache_clear()
        jax.lax.platform_dependent = lambda *given, tpu, default: tpu(*given)
        short_rows.run = layer_norm.run = lambda *given, **options: run(*given, **{**options, "interpret": True})
        kernels = jax.jit(lambda *given: step(*given))(*given)
    finally:
        jax.lax.platform_dependent, short_rows.run, layer_norm.run = choose, run, run
        self_check.local_devices = devices
    assert all(self_check.trusted(kernel, "bfloat16") for kernel in ("attention", "layer normalization"))
    return [
        (float(loss), [np.asarray(g, "float32").tolist() for g in gradients]) for loss, gradients in (plain, kernels)
    ]


@pytest.mark.processes
def test_a_block_trains_by_kernels_on_tpus_and_by_plain_operations_elsewhere():
    """The batch and the heads split over two devices each."""
    with Interpreter("jax", devices=4) as other:
        assert other.run(kernels_in_programs, 0.0) == [KERNELS, []]
        assert other.run(kernels_in_programs, 0.1) == [[name for name in KERNELS if "norm" in name], []]
        (loss, gradients), (by_kernels, gradients_by_kernels) = other.run(steps_of_a_block, "model", 2)
    assert by_kernels == pytest.approx(loss, abs=1)  # the sum of 1,792 terms, each rounded to bfloat16
    for plain, kernel in zip(gradients, gradients_by_kernels, strict=True):  # keys' biases have none but rounding
        np.testing.assert_allclose(kernel, plain, atol=0.06 * max(np.abs(plain).max(), 1.0))
