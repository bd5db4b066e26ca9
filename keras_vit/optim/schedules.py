"""Learning-rate schedules: linear warm-up, decay and cool-down."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.io.suggest import check_known
from keras_vit.layers.registration import serializable


def _cosine(progress, *_):
    return 0.5 * (1.0 + ops.cos(math.pi * progress))


def _linear(progress, *_):
    return 1.0 - progress


def _constant(progress, *_):
    return ops.ones_like(progress)


def _rsqrt(_, since, __):
    return 1.0 / ops.sqrt(1.0 + since)


def _staircase(_, __, whole):
    """A tenth after 30, 60 and 90% of the run (BiT, arXiv 1912.11370)."""
    return ops.power(10.0, -sum(ops.cast(whole > share, "float32") for share in (0.3, 0.6, 0.9)))


# (progress after the warm-up, 0 to 1; steps since the warm-up / `timescale`; share of the run) -> factor.
DECAYS = {"cosine": _cosine, "linear": _linear, "rsqrt": _rsqrt, "constant": _constant, "staircase": _staircase}


@serializable
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to `peak`, then a decay.

    Steps are batches: with an optimizer's gradient_accumulation_steps=k, an update takes k of them. With
    model.micro_batches, a step is an update.

    Args:
        peak: highest learning rate.
        total: steps of the whole run.
        warmup: steps of warm-up, part of `total`.
        decay: "cosine" or "linear" (both down to `final`), "rsqrt" (1 / sqrt, with a linear cool-down), "constant", or
            "staircase" (a tenth at 30, 60 and 90% of the run).
        final: rate at the end of cosine and linear.
        timescale: steps in which rsqrt first falls by sqrt(2).
        cooldown: steps at the end over which the rate falls linearly to 0.

    Raises:
        ValueError: for an unknown decay, or a warm-up longer than the run.
    """

    def __init__(
        self,
        peak: float,
        total: int,
        warmup: int = 0,
        decay: str = "cosine",
        final: float = 0.0,
        timescale: float = 10_000,
        cooldown: int = 0,
    ):
        super().__init__()
        check_known(decay, "decay", DECAYS)
        if not 0 <= warmup <= total:
            raise ValueError(f"The warm-up must fit into the run: got warmup={warmup} of total={total} steps.")
        if peak < 0 or final < 0 or timescale <= 0 or cooldown < 0:
            raise ValueError(
                "WarmupSchedule expects peak, final and cooldown of at least 0 and a positive timescale. Got"
                f" peak={peak}, final={final}, timescale={timescale}, cooldown={cooldown}."
            )
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

    def get_config(self) -> dict[str, Any]:
        names = "peak total warmup decay final timescale cooldown"
        return {name: getattr(self, name) for name in names.split()}
