"""Durations in a config: a number of steps, or text such as "150 epochs", "10k steps", "1.5M examples", "5%" (of the whole run)."""

import math
import re

_MULTIPLIERS = {"": 1, "k": 1_000, "M": 1_000_000}
_DURATION = re.compile(r"([\d.]+(?:e\d+)?)\s*([kM]?)\s*(steps?|epochs?|examples?|%|)")


def resolve_steps(duration: int | float | str, batch_size: int, examples: int, total: int | None = None) -> int:
    """The number of steps in `duration`.

    Args:
        duration: a number of steps, or "N steps | epochs | examples | %", where N may end in k or M.
        batch_size: examples per step.
        examples: examples per epoch.
        total: steps of the whole run, for "%".

    Raises:
        ValueError: for text that is not a duration, or "%" where the total is not known.
    """
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        return int(duration)
    match = _DURATION.fullmatch(str(duration).strip())
    if not match:
        raise ValueError(
            f'"{duration}" is not a duration. Write a number of steps, or text such as "150 epochs", "10k steps", "1M examples", "5%".'
        )
    number, unit = float(match.group(1)) * _MULTIPLIERS[match.group(2)], match.group(3)
    if unit == "%":
        if total is None:
            raise ValueError(f'The length of the whole run cannot be "{duration}" of itself: use steps, epochs or examples.')
        return int(round(number / 100 * total))
    if unit.startswith("epoch"):
        return max(1, math.ceil(number * examples / batch_size))
    if unit.startswith("example"):
        return max(1, math.ceil(number / batch_size))
    return int(number)
