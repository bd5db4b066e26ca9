"""Micro-batches on one device equal one large batch, up to rounding. On several devices: tests/distribution."""

import keras
import numpy as np
import pytest
from small_models import data, dense, dense_on_images, dense_on_rows, distance, reordered, rows, trained

from benchmarks.strategies import limit
from keras_vit.distribution import strategy
from keras_vit.training import AdamW, Mixup, SoftmaxCrossEntropy

ONE = strategy("one")


def adamw():
    return AdamW(1e-3, epsilon=1e-4, global_clipnorm=0.1, decay=0.1)


@pytest.mark.extended
def test_micro_batches_are_one_large_batch():
    x, y = rows(48)
    whole = trained(ONE, adamw, x, y, make=dense)
    rounding = distance(whole, trained(ONE, adamw, reordered(x), reordered(y), make=dense))
    assert distance(whole, trained(ONE, adamw, x, y, micro_batches=4, make=dense)) <= limit(rounding)


@pytest.mark.extended
def test_keras_accumulation_on_one_device_is_one_large_batch():
    def adam(**options):
        return keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1, **options)

    def accumulating():
        return adam(gradient_accumulation_steps=4)

    x, y = rows(48)
    large = trained(ONE, adam, x, y, batch_size=16, make=dense)
    rounding = distance(large, trained(ONE, adam, reordered(x, 16), reordered(y, 16), batch_size=16, make=dense))
    assert distance(large, trained(ONE, accumulating, x, y, batch_size=4, make=dense)) <= limit(rounding)


def stepped(parts, reduction, n):
    """(the weights after an epoch of SGD on n weighted examples, 16 at once, the loss that fit reports)."""
    weights = np.where(np.arange(n) == 5, 0.0, np.linspace(0.5, 3, n)).astype("float32")
    x, y = rows(n)
    model = dense_on_rows("sgd")
    model.micro_batches = parts
    model.compile(keras.optimizers.SGD(0.1), SoftmaxCrossEntropy(reduction=reduction), jit_compile=False)
    history = model.fit(x, y, batch_size=16, sample_weight=weights, shuffle=False, verbose=0)
    return [v.numpy() for v in model.trainable_variables], history.history["loss"][0]


@pytest.mark.parametrize(
    ("reduction", "n"),
    [
        ("sum", 16),
        ("sum", 21),  # parts of 2 and 1 at the end
        ("mean_with_sample_weight", 21),
        ("sum_over_batch_size", 18),  # fewer examples than parts
    ],
)
def test_other_reductions_and_batches_are_those_of_the_whole_batch(reduction, n):
    (whole, loss), (parts, loss_of_parts) = (stepped(count, reduction, n) for count in (1, 4))
    for a, b in zip(parts, whole):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)


def test_a_sum_with_regularizers_is_refused():
    model = dense_on_rows("sgd")
    model.layers[-1].kernel_regularizer = keras.regularizers.L2(1e-3)
    model.layers[-1].kernel.regularizer = keras.regularizers.L2(1e-3)
    model.micro_batches = 4
    model.compile("sgd", SoftmaxCrossEntropy(reduction="sum"), jit_compile=False)
    with pytest.raises(ValueError, match="regularizers would count once for every micro-batch"):
        model.fit(*rows(16), verbose=0)


@pytest.mark.extended
def test_what_is_set_after_a_fit_counts_in_the_next():
    """mixing and micro_batches are part of the compiled step."""
    x, y = data(16)
    model = dense_on_images()
    model.compile(keras.optimizers.SGD(0.0), SoftmaxCrossEntropy(), jit_compile=False)

    def loss():
        return model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history["loss"][0]

    plain = loss()
    model.mixing = Mixup(1.0, model.output_shape[-1])
    assert abs(loss() - plain) > 1e-3
    model.mixing = None
    assert loss() == pytest.approx(plain, rel=1e-6)
    model.micro_batches = 3
    with pytest.raises(ValueError, match="16 cannot be split into 3 micro-batches"):
        loss()
