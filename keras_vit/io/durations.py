"""Durations in a config: whole steps, or text such as "150 epochs", "10k steps", "1.5M examples", "5%" (of the run).

"3 epochs or 64 steps" is the longer of the two.
"""

import math
import re

_MULTIPLIERS = {"": 1, "k": 1_000, "M": 1_000_000}
_DURATION = re.compile(r"(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([kM]?)\s*(steps?|epochs?|examples?|%|)")


def _whole(number, duration):
    """A whole number of steps, allowing for the rounding of products such as 2.3 * 1000."""
    steps = round(number)
    if not math.isclose(number, steps, rel_tol=1e-9):
        fix = f'For that share of the whole run write "{100 * number:g}%".' if number < 1 else f"Write {steps}."
        raise ValueError(f'"{duration}" is not a whole number of steps. {fix}')
    return steps


def _parse(duration):
    """(number, unit) of a duration; unit "" for steps."""
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        number, unit = float(duration), ""
    else:
        match = _DURATION.fullmatch(str(duration).strip())
        number, unit = (float(match[1]) * _MULTIPLIERS[match[2]], match[3]) if match else (math.nan, "")
    if not 0 <= number < math.inf:
        raise ValueError(
            f'"{duration}" is not a duration. Write a number of steps, or text such as "150 epochs", "10k steps", "1M'
            ' examples", "5%".'
        )
    if unit in ("", "step", "steps"):
        return _whole(number, duration), unit
    return number, unit


def _choices(duration):
    """The durations of which a duration is the longest."""
    return duration.split(" or ") if isinstance(duration, str) else [duration]


def is_nothing(duration: int | float | str) -> bool:
    """Whether a duration is 0 in any unit.

    Raises:
        ValueError: for malformed text, a negative number, or a fraction of a step.
    """
    return all(_parse(choice)[0] == 0 for choice in _choices(duration))


def in_examples(duration: int | float | str, batch_size: int) -> int | float | str:
    """A duration that keeps its length under another batch size: steps become text in examples; others stay.

    Raises:
        ValueError: for malformed text, a negative number, or a fraction of a step.
    """
    choices = _choices(duration)
    for i, (number, unit) in enumerate(map(_parse, choices)):
        if unit in ("", "step", "steps"):
            choices[i] = f"{number * batch_size} examples"
    return " or ".join(choices) if len(choices) > 1 else choices[0]


def resolve_steps(duration: int | float | str, batch_size: int, examples: int, total: int | None = None) -> int:
    """The number of steps in `duration`.

    Args:
        duration: whole steps, or "N steps | epochs | examples | %", where N may end in k or M; or several, joined by
            "or", for the longest.
        batch_size: examples per step.
        examples: examples per epoch.
        total: steps of the whole run, for "%".

    Raises:
        ValueError: for malformed text, a negative number, a fraction of a step, or "%" without a total.
    """
    return max(_resolved(choice, batch_size, examples, total) for choice in _choices(duration))


def _resolved(duration, batch_size, examples, total):
    number, unit = _parse(duration)
    if unit == "%":
        if total is None:
            raise ValueError(
                f'The length of the whole run cannot be "{duration}" of itself: use steps, epochs or examples.'
            )
        return int(round(number / 100 * total))
    if unit.startswith("epoch"):
        return math.ceil(number * examples / batch_size)
    if unit.startswith("example"):
        return math.ceil(number / batch_size)
    return number
