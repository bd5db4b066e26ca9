"""layers.tpu.self_check: the CPU stands for a TPU, and kernels are interpreted. Which programs get kernels, and what is
said, if a kernel agrees with ordinary operations, differs, fails, or is not asked.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_vit.layers.tpu import bias, chosen, layer_norm, self_check, short_rows

KERNELS = [
    ("attention", short_rows, "attend"),
    ("layer normalization", layer_norm, "fork"),
    ("bias gradients", bias, "add"),
]


@pytest.fixture
def checks(monkeypatch):
    """Pretends that this process has a TPU; a list of what is compared."""
    compare, found = self_check._difference, []

    def interpreted(run):
        return lambda *given, **options: run(*given, **{**options, "interpret": True})

    for module in (short_rows, layer_norm):
        monkeypatch.setattr(module, "run", interpreted(module.run))
    monkeypatch.setattr(self_check, "local_tpus", jax.local_devices)
    monkeypatch.setattr(self_check, "_difference", lambda *given: (found.append(given[:2]), compare(*given))[1])
    monkeypatch.delenv(self_check.SETTING, raising=False)
    self_check.trusted.cache_clear()
    yield found
    self_check.trusted.cache_clear()


def kernels_of_a_program():
    """The kernels that a program has while it is traced, and the warnings."""
    found = []

    def layer(x):
        found.append(
            {
                "attention": chosen.attention(x, 128, 2) is not None,
                "layer normalization": chosen.normalization(x, 1e-6) is not None,
                "bias gradients": self_check.trusted("bias gradients", "bfloat16"),
            }
        )
        return x.astype("float32").sum()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.jit(jax.grad(layer))(jnp.ones((2, 17, 128), "bfloat16"))
    return {name for name, kernel in found[0].items() if kernel}, [str(warning.message) for warning in caught]


def test_kernels_that_agree_are_used_and_compared_once(checks):
    names = {name for name, *_ in KERNELS}
    assert kernels_of_a_program() == (names, [])
    assert kernels_of_a_program() == (names, [])
    assert sorted(checks) == sorted((name, "bfloat16") for name in names)


def times(factor):
    return lambda kernel: lambda *given: jax.tree.map(lambda y: y * factor, kernel(*given))


def failing(_):
    def kernel(*given):
        raise NotImplementedError("no such instruction")

    return kernel


@pytest.mark.parametrize(
    ("kernel", "broken", "words"),
    [
        (KERNELS[0], times(1.1), "differs from ordinary operations by "),
        (KERNELS[1], times(np.nan), "by nan"),
        (KERNELS[2], failing, "NotImplementedError: no such instruction"),
    ],
)
def test_a_kernel_that_differs_or_fails_is_left_out_with_one_warning(monkeypatch, checks, kernel, broken, words):
    name, module, function = kernel
    monkeypatch.setattr(module, function, broken(getattr(module, function)))
    others = {other for other, *_ in KERNELS if other != name}
    kernels, [message] = kernels_of_a_program()
    assert kernels == others
    assert message.startswith(f"The TPU kernel for {name} in bfloat16 ") and words in message
    assert f"device: {jax.local_devices()[0]}" in message and "KERAS_VIT_TPU_KERNELS=on" in message
    assert kernels_of_a_program() == (others, [])
    assert len(checks) == len(KERNELS)


@pytest.mark.parametrize(("setting", "kernels"), [("on", {name for name, *_ in KERNELS}), ("off", set())])
def test_a_setting_replaces_the_comparison(monkeypatch, checks, setting, kernels):
    monkeypatch.setenv(self_check.SETTING, setting)
    assert kernels_of_a_program() == (kernels, []) and not checks


def test_an_unknown_setting_is_an_error(monkeypatch, checks):
    monkeypatch.setenv(self_check.SETTING, "maybe")
    with pytest.raises(ValueError, match="'maybe'. Valid: check, on, off"):
        kernels_of_a_program()


def test_without_a_tpu_nothing_is_compared(monkeypatch, checks):
    monkeypatch.setattr(self_check, "local_tpus", list)
    assert kernels_of_a_program() == ({name for name, *_ in KERNELS}, []) and not checks
