"""Durations in a config as steps."""

import pytest

from keras_vit.io.durations import in_examples
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
        ("2.3k", 2300),
        ("0.5 epochs", 5),
        (60.0, 60),
        ("3 epochs or 25 steps", 30),
        ("3 epochs or 64 steps", 64),
    ],
)
def test_durations(duration, steps):
    assert resolve_steps(duration, batch_size=100, examples=1000, total=200) == steps


def test_duration_mistakes():
    with pytest.raises(ValueError, match='"3 epoches" is not a duration'):
        resolve_steps("3 epoches", 1, 1)
    with pytest.raises(ValueError, match="cannot be"):
        resolve_steps("5%", 1, 1)


@pytest.mark.parametrize(
    ("duration", "fix"),
    [
        (0.05, 'share of the whole run write "5%"'),
        ("0.75 steps", 'write "75%"'),
        (60.7, "Write 61"),
        ("1.2345k", "Write 1234"),
    ],
)
def test_steps_are_whole(duration, fix):
    with pytest.raises(ValueError, match=f'"{duration}" is not a whole number of steps.*{fix}'):
        resolve_steps(duration, 1, 1, 100)


@pytest.mark.parametrize("duration", [500, "500", "5k steps", "3 epochs", "1500 examples"])
def test_a_duration_in_examples_is_as_long_for_another_batch(duration):
    same = in_examples(duration, 100)
    assert resolve_steps(same, 100, 1000) == resolve_steps(duration, 100, 1000)
    assert resolve_steps(same, 500, 1000) * 5 == pytest.approx(resolve_steps(duration, 100, 1000), abs=5)


def test_a_share_of_the_run_stays_one():
    assert in_examples("5%", 100) == "5%"
