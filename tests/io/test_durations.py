"""Durations in a config as steps."""

import pytest

from keras_vit.runs import resolve_steps


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (7, 7),
        ("7", 7),
        ("2k", 2000),
        ("7 steps", 7),
        ("10k steps", 10_000),
        ("3 epochs", 30),
        ("1 epoch", 10),
        ("1k examples", 10),
        ("5%", 10),
        ("0.5M examples", 5000),
    ],
)
def test_durations(duration, steps):
    assert resolve_steps(duration, batch_size=100, examples=1000, total=200) == steps


def test_duration_mistakes():
    with pytest.raises(ValueError, match='"3 epoches" is not a duration'):
        resolve_steps("3 epoches", 1, 1)
    with pytest.raises(ValueError, match="cannot be"):
        resolve_steps("5%", 1, 1)
