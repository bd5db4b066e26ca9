"""Learning rates and durations.

A duration is a number of steps, or text: "150 epochs", "10k steps", "1.5M examples", "5%" (of the whole run).
"""

import math
import re

import keras
from keras import ops

from keras_vit.layers.registration import serializable

_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
_DURATION = re.compile(r"([\d.]+(?:e\d+)?)\s*([kM]?)\s*(steps?|epochs?|examples?|%|)")


def resolve_steps(duration, batch_size, examples, total=None):
    """Steps in `duration`.

    Args:
        duration: an integer of steps, or "N steps | epochs | examples | %", N with k or M.
        batch_size: examples a step.
        examples: examples an epoch.
        total: steps of the whole run, for "%".

    Raises:
        ValueError: for text that is no duration, or "%" where there is no whole.
    """
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        return int(duration)
    match = _DURATION.fullmatch(str(duration).strip())
    if not match:
        raise ValueError(
            f'"{duration}" is no duration. Write a number of steps, or such as "150 epochs", "10k steps", "1M examples", "5%".'
        )
    number, unit = float(match.group(1)) * _UNITS[match.group(2)], match.group(3)
    if unit == "%":
        if total is None:
            raise ValueError(f'The length of the whole run cannot be "{duration}" of itself: give steps, epochs or examples.')
        return int(round(number / 100 * total))
    if unit.startswith("epoch"):
        return max(1, math.ceil(number * examples / batch_size))
    if unit.startswith("example"):
        return max(1, math.ceil(number / batch_size))
    return int(number)


def _cosine(progress, *_):
    return 0.5 * (1.0 + ops.cos(math.pi * progress))


def _linear(progress, *_):
    return 1.0 - progress


def _constant(progress, *_):
    return ops.ones_like(progress)


def _rsqrt(_, since, __):
    return 1.0 / ops.sqrt(1.0 + since)


def _staircase(_, __, whole):
    """A tenth from 30, 60 and 90% of the run on (BiT, arXiv 1912.11370)."""
    return ops.power(10.0, -sum(ops.cast(whole > share, "float32") for share in (0.3, 0.6, 0.9)))


# A decay maps (progress 0..1 behind the warm-up, steps since it over `timescale`, share of the run, warm-up and all) to a factor.
DECAYS = {"cosine": _cosine, "linear": _linear, "rsqrt": _rsqrt, "constant": _constant, "staircase": _staircase}


@serializable
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to `peak`, then a decay.

    Args:
        peak: the highest learning rate.
        total: steps of the whole run.
        warmup: of those, steps of warm-up.
        decay: "cosine" or "linear" (both to `final`), "rsqrt" (1 / sqrt, with a linear cool-down), "constant" or "staircase" (a tenth at
            30, 60 and 90% of the run).
        final: the rate at the end of cosine and linear.
        timescale: rsqrt falls by sqrt(2) in the first so many steps.
        cooldown: rsqrt ends with so many steps of linear decay to 0.
    """

    def __init__(self, peak, total, warmup=0, decay="cosine", final=0.0, timescale=10_000, cooldown=0):
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(f'Unknown decay "{decay}". Valid: {", ".join(DECAYS)}.')
        if not 0 <= warmup <= total:
            raise ValueError(f"The warm-up must lie within the run: got warmup={warmup} of total={total} steps.")
        self.peak = peak
        self.total = total
        self.warmup = warmup
        self.decay = decay
        self.final = final
        self.timescale = timescale
        self.cooldown = cooldown

    def __call__(self, step):
        step = ops.cast(step, "float32")
        since = ops.maximum(step - self.warmup, 0.0)
        progress = ops.minimum(since / max(self.total - self.warmup, 1), 1.0)
        factor = DECAYS[self.decay](progress, since / self.timescale, step / self.total)
        rate = self.final + (self.peak - self.final) * factor
        if self.warmup:
            rate = ops.where(step < self.warmup, self.peak * step / self.warmup, rate)
        if self.cooldown:
            rate = rate * ops.clip((self.total - step) / self.cooldown, 0.0, 1.0)
        return rate

    def get_config(self):
        names = "peak total warmup decay final timescale cooldown"
        return {name: getattr(self, name) for name in names.split()}
