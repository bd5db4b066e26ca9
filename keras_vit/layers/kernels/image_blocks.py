"""Kernels with all tokens of one image, (1, n, width), in the chip's own memory."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl

LANES = 128
ROOM = 12 * 2**20  # bytes of the chip's own memory for a program, of the 16 MiB that XLA gives it


def padded(n: int, width: int, size: int) -> int:
    """Bytes of an array (n, width) on the chip, with padded rows and lanes; `size` is an element's."""
    group = 8 * 4 // size
    return size * -(-n // group) * group * -(-width // LANES) * LANES


def images(width: int | None = None) -> Callable[[tuple], pl.BlockSpec]:
    """The blocks of an array (b, n, d): one image's, with `width` of its d lanes; None for all."""
    return lambda shape: pl.BlockSpec((1, shape[1], width or shape[2]), lambda i, j: (i, 0, j))


def same(shape: tuple) -> pl.BlockSpec:
    """The block of an array that every program reads whole."""
    return pl.BlockSpec(shape, lambda i, j: (0,) * len(shape))


def run(
    kernel: Callable,
    taken: Sequence[tuple[Any, Callable]],
    made: Sequence[tuple[jax.ShapeDtypeStruct, Callable]],
    *,
    flops: int,
    exponentials: int = 0,
    parts: int = 1,
    interpret: bool = False,
) -> list:
    """Runs a kernel once for each image, or for each part of its lanes.

    Args:
        kernel: function of the blocks it reads and those it writes.
        taken: (array, its blocks) of each input; the first is (b, n, d).
        made: (shape and dtype, its blocks) of each output.
        flops, exponentials: of all runs, for XLA's scheduler.
        parts: of an image.
        interpret: run step by step without a TPU, as tests do.
    """
    programs = (taken[0][0].shape[0], parts)
    moved = sum(math.prod(array.shape) * array.dtype.itemsize for array, _ in (*taken, *made))
    named = kernel.func if isinstance(kernel, functools.partial) else kernel
    return pl.pallas_call(
        kernel,
        grid=programs,
        in_specs=[blocks(array.shape) for array, blocks in taken],
        out_specs=[blocks(spec.shape) for spec, blocks in made],
        out_shape=[spec for spec, _ in made],
        interpret=interpret,
        cost_estimate=pl.CostEstimate(flops=flops, transcendentals=exponentials, bytes_accessed=moved),
        name=named.__name__,
        metadata={"programs": str(math.prod(programs))},  # for planning/slice: XLA has no estimate of a kernel's time
    )(*(array for array, _ in taken))
