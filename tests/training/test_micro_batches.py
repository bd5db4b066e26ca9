"""Micro-batches on one device equal one large batch, up to rounding. On several devices: tests/distribution."""

import keras
import pytest
from small_models import data, dense, distance, reordered, rows, small, trained

from benchmarks.strategies import limit
from keras_vit.distribution import strategy
from keras_vit.training import AdamW

ONE = strategy("one")


def adamw():
    return AdamW(1e-3, epsilon=1e-4, global_clipnorm=0.1, decay=0.1)


@pytest.mark.parametrize(("make", "examples", "parts"), [(small, data, 2), (dense, rows, 4)])
def test_micro_batches_are_one_large_batch(make, examples, parts):
    x, y = examples(48)
    whole = trained(ONE, adamw, x, y, make=make)
    rounding = distance(whole, trained(ONE, adamw, reordered(x), reordered(y), make=make))
    assert distance(whole, trained(ONE, adamw, x, y, micro_batches=parts, make=make)) <= limit(rounding)


def test_keras_accumulation_on_one_device_is_one_large_batch():
    def adam(**options):
        return keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1, **options)

    def accumulating():
        return adam(gradient_accumulation_steps=4)

    x, y = rows(48)
    large = trained(ONE, adam, x, y, batch_size=16, make=dense)
    rounding = distance(large, trained(ONE, adam, reordered(x, 16), reordered(y, 16), batch_size=16, make=dense))
    assert distance(large, trained(ONE, accumulating, x, y, batch_size=4, make=dense)) <= limit(rounding)
