"""TPU chips, and slices of them by name: "v5e:4x4".

Rates and memory are from the public datasheets. `clock` is the unit of XLA's cycle estimates: the bfloat16 rate divided
by the products per cycle of the chip's matrix units.
"""

import dataclasses
import math
import re

from keras_vit.io.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of TPU chip.

    Attributes:
        flops: operations per second, in bfloat16.
        bandwidth: bytes per second between chip and HBM.
        memory: bytes of HBM.
        interconnect: bytes per second to and from other chips, over all links.
        clock: cycles per second.
    """

    flops: float
    bandwidth: float
    memory: float
    interconnect: float
    clock: float


CHIPS = {
    "v4": Chip(275e12, 1228e9, 32e9, 300e9, 1.05e9),
    "v5e": Chip(197e12, 819e9, 16e9, 200e9, 1.5e9),
    "v5p": Chip(459e12, 2765e9, 95e9, 600e9, 1.75e9),
    "v6e": Chip(918e12, 1640e9, 32e9, 448e9, 1.75e9),
}
_EXAMPLES = "v5e:4x4, v6e:2x2, v4:2x2x1, v5p:2x2x1"


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice such as "v5e:4x4": its name, kind of chip (a name of CHIPS) and number of chips."""

    name: str
    kind: str
    chips: int

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]


def parse_slice(name: str) -> Slice:
    """Parses a slice's name; ValueError, with the nearest kind of chip, if the name is not a slice."""
    kind, colon, shape = name.strip().partition(":")
    if kind not in CHIPS:
        raise ValueError(
            f'"{name}" is not a TPU slice: unknown chip "{kind}".{did_you_mean(kind, CHIPS)} Examples: {_EXAMPLES}.'
        )
    if not colon or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        raise ValueError(f'"{name}" is not a TPU slice: expected a colon and a shape. Examples: {_EXAMPLES}.')
    return Slice(f"{kind}:{shape}", kind, math.prod(map(int, shape.split("x"))))
