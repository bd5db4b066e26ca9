"""Durations in a config: a whole number of steps, or text such as "150 epochs", "10k steps", "1.5M examples", "5%" (of
the whole run).
"""

import math
import re

_MULTIPLIERS = {"": 1, "k": 1_000, "M": 1_000_000}
_DURATION = re.compile(r"(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([kM]?)\s*(steps?|epochs?|examples?|%|)")


def _whole(number, duration):
    """A number of steps, whole except for the rounding of a product such as 2.3 * 1000."""
    steps = round(number)
    if not math.isclose(number, steps, rel_tol=1e-9):
        mend = f'For that share of the whole run write "{100 * number:g}%".' if number < 1 else f"Write {steps}."
        raise ValueError(f'"{duration}" is not a whole number of steps. {mend}')
    return steps


def _parse(duration):
    """(number, unit) of a duration; the unit is "" for steps."""
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


def is_nothing(duration: int | float | str) -> bool:
    """Whether a duration is 0 of whatever its unit is.

    Raises:
        ValueError: for text that is not a duration, a negative number, or steps that are not whole.
    """
    return _parse(duration)[0] == 0


def in_examples(duration: int | float | str, batch_size: int) -> int | float | str:
    """A duration that stays as long when the batch has another size: one in steps as text in examples, another as it
    is.

    Raises:
        ValueError: for text that is not a duration, a negative number, or steps that are not whole.
    """
    number, unit = _parse(duration)
    return f"{number * batch_size} examples" if unit in ("", "step", "steps") else duration


def resolve_steps(duration: int | float | str, batch_size: int, examples: int, total: int | None = None) -> int:
    """The number of steps in `duration`.

    Args:
        duration: a whole number of steps, or "N steps | epochs | examples | %", where N may end in k or M.
        batch_size: examples per step.
        examples: examples per epoch.
        total: steps of the whole run, for "%".

    Raises:
        ValueError: for text that is not a duration, a negative number, steps that are not whole, or "%" where the total
            is not known.
    """
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
