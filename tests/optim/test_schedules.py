"""Learning-rate schedules at chosen steps."""

import numpy as np
import pytest

from keras_vit.training import WarmupSchedule


@pytest.mark.parametrize(
    ("decay", "values"),
    [
        ("cosine", {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("linear", {0: 0.0, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("constant", {5: 0.5, 10: 1.0, 100: 1.0}),
        ("rsqrt", {10: 1.0, 40: 0.5, 90: 1 / 3}),
    ],
)
def test_schedules(decay, values):
    schedule = WarmupSchedule(1.0, total=100, warmup=10, decay=decay, timescale=10)
    for step, value in values.items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-6)


def test_rsqrt_cools_down_to_zero():
    schedule = WarmupSchedule(1.0, total=100, decay="rsqrt", timescale=10, cooldown=20)
    assert float(schedule(100)) == 0.0
    assert float(schedule(90)) == pytest.approx(0.5 / np.sqrt(10), rel=1e-5)


def test_schedule_mistakes():
    with pytest.raises(ValueError, match="Valid: cosine, linear, rsqrt, constant"):
        WarmupSchedule(1.0, 10, decay="cosin")
    with pytest.raises(ValueError, match="warmup=20 of total=10"):
        WarmupSchedule(1.0, 10, warmup=20)


@pytest.mark.parametrize("arguments", [{"peak": -1.0}, {"final": -1.0}, {"timescale": 0}, {"cooldown": -1}], ids=str)
def test_rates_below_0_are_refused(arguments):
    with pytest.raises(ValueError, match="WarmupSchedule expects"):
        WarmupSchedule(**{"peak": 1e-3, "total": 10, **arguments})
