"""layers.kernels.self_check: the CPU stands for a GPU, and XLA's attention for cuDNN's. Which programs get the kernel,
and what is said, if it agrees with ordinary operations, differs, fails, or is not asked.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_vit.layers.kernels import cudnn, self_check

SETTING = self_check.DOT_PRODUCT_ATTENTION


@pytest.fixture
def checks(monkeypatch):
    """Pretends that this process has a GPU; a list of the dtypes that are compared."""
    compare, found = self_check._difference, []
    monkeypatch.setattr(cudnn, "usable", lambda x, width: True)
    monkeypatch.setattr(cudnn, "_IMPLEMENTATION", "xla")
    monkeypatch.setattr(self_check, "local_gpus", jax.local_devices)
    monkeypatch.setattr(self_check, "_difference", lambda *given: (found.append(given[0]), compare(*given))[1])
    monkeypatch.delenv(SETTING, raising=False)
    self_check.trusted.cache_clear()
    yield found
    self_check.trusted.cache_clear()


def in_a_program():
    """(whether a program that is traced has the kernel, the warnings)."""
    found = []

    def layer(x):
        found.append(self_check.is_default(jnp.zeros((2, 197, 128), "bfloat16"), 64))
        return x.astype("float32").sum()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.jit(jax.grad(layer))(jnp.ones((2, 17, 128), "bfloat16"))
    return found[0], [str(warning.message) for warning in caught]


@pytest.mark.extended
def test_a_kernel_that_agrees_is_used_and_compared_once(checks):
    assert in_a_program() == in_a_program() == (True, [])
    assert checks == ["bfloat16"]


def times(factor):
    return lambda kernel: lambda *given: jax.tree.map(lambda y: y * factor, kernel(*given))


def failing(_):
    def kernel(*given):
        raise NotImplementedError("no such instruction")

    return kernel


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (times(1.1), "differs from ordinary operations by "),
        (times(np.nan), "by nan"),
        (failing, "NotImplementedError: no such instr"),
    ],
)
def test_a_kernel_that_differs_or_fails_is_left_out_with_a_warning(monkeypatch, checks, change, words):
    monkeypatch.setattr(cudnn, "attend", change(cudnn.attend))
    found, [message] = in_a_program()
    assert not found and message.startswith("cuDNN's attention in bfloat16 ") and words in message
    assert f"device: {jax.local_devices()[0]}" in message and f"{SETTING}=on forces" in message
    assert in_a_program() == (False, []) and len(checks) == 1


def test_a_setting_replaces_the_comparison_and_without_a_device_nothing_is_compared(monkeypatch, checks):
    for setting, used in (("on", True), ("off", False)):
        monkeypatch.setenv(SETTING, setting)
        self_check.trusted.cache_clear()
        assert in_a_program() == (used, [])
    monkeypatch.setenv(SETTING, "maybe")
    self_check.trusted.cache_clear()
    with pytest.raises(ValueError, match='"maybe". Valid: check, on, off'):
        in_a_program()
    monkeypatch.delenv(SETTING)
    monkeypatch.setattr(self_check, "local_gpus", lambda: [])
    assert in_a_program() == (True, []) and not checks
