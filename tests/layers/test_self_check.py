"""layers.kernels.self_check: the CPU stands for a TPU and a GPU, whose kernels are interpreted or XLA's. Which programs
get kernels, and what is said, if a kernel agrees with ordinary operations, differs, fails, or is not asked.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_vit.layers.kernels import bias, chosen, cudnn, layer_norm, self_check, short_rows

KERNELS = [
    ("attention", short_rows, "attend"),
    ("layer normalization", layer_norm, "fork"),
    ("bias gradients", bias, "add"),
    ("cuDNN attention", cudnn, "attend"),
]
SETTINGS = (self_check.TPU_KERNELS, self_check.DOT_PRODUCT_ATTENTION)


@pytest.fixture
def checks(monkeypatch):
    """Pretends that this process has a TPU and a GPU; a list of what is compared."""
    compare, found = self_check._difference, []

    def interpreted(run):
        return lambda *given, **options: run(*given, **{**options, "interpret": True})

    for module in (short_rows, layer_norm):
        monkeypatch.setattr(module, "run", interpreted(module.run))
    monkeypatch.setattr(cudnn, "usable", lambda x, width: True)
    monkeypatch.setattr(cudnn, "_IMPLEMENTATION", "xla")
    monkeypatch.setattr(self_check, "local_devices", lambda platform: jax.local_devices())
    monkeypatch.setattr(self_check, "_difference", lambda *given: (found.append(given[:2]), compare(*given))[1])
    for setting in SETTINGS:
        monkeypatch.delenv(setting, raising=False)
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
                "cuDNN attention": chosen.cudnn(jnp.zeros((2, 197, 128), "bfloat16"), 64),
            }
        )
        return x.astype("float32").sum()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.jit(jax.grad(layer))(jnp.ones((2, 17, 128), "bfloat16"))
    return {name for name, kernel in found[0].items() if kernel}, [str(warning.message) for warning in caught]


@pytest.mark.extended
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
    "broken",
    [
        {0: (times(1.1), "differs from ordinary operations by "), 2: (failing, "NotImplementedError: no such instr")},
        pytest.param({1: (times(np.nan), "by nan")}, marks=pytest.mark.extended),
        {3: (times(1.1), "differs from ordinary operations by ")},
    ],
    ids=["attention and bias", "normalization", "cuDNN"],
)
def test_kernels_that_differ_or_fail_are_left_out_with_a_warning_each(monkeypatch, checks, broken):
    for i, (change, _) in broken.items():
        _, module, function = KERNELS[i]
        monkeypatch.setattr(module, function, change(getattr(module, function)))
    others = {name for i, (name, *_) in enumerate(KERNELS) if i not in broken}
    kernels, messages = kernels_of_a_program()
    assert kernels == others
    for (i, (_, words)), message in zip(broken.items(), messages, strict=True):
        platform, setting = ("GPU", SETTINGS[1]) if i == 3 else ("TPU", SETTINGS[0])
        assert message.startswith(f"The {platform} kernel for {KERNELS[i][0]} in bfloat16 ") and words in message
        assert f"device: {jax.local_devices()[0]}" in message and f"{setting}=on forces" in message
    assert kernels_of_a_program() == (others, [])
    assert len(checks) == len(KERNELS)


def test_a_setting_replaces_the_comparison_and_without_a_device_nothing_is_compared(monkeypatch, checks):
    everything = {name for name, *_ in KERNELS}
    for setting, kernels in (("on", everything), ("off", set())):
        for name in SETTINGS:
            monkeypatch.setenv(name, setting)
        self_check.trusted.cache_clear()
        assert kernels_of_a_program() == (kernels, [])
    monkeypatch.setenv(SETTINGS[0], "maybe")
    self_check.trusted.cache_clear()
    with pytest.raises(ValueError, match="'maybe'. Valid: check, on, off"):
        kernels_of_a_program()
    for name in SETTINGS:
        monkeypatch.delenv(name)
    monkeypatch.setattr(self_check, "local_devices", lambda platform: [])
    assert kernels_of_a_program() == (everything, []) and not checks
