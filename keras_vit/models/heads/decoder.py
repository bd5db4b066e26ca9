"""Heads on an encoder's blocks: their options, facts about the encoder, and the layers that these make.

A head is a frozen dataclass of its options with a method `decoder`, from facts about the encoder to its layers.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.io.suggest import check_known
from keras_vit.layers.arguments import is_integer


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Facts about the encoder of a dense head.

    Attributes:
        spec: of any family, a families.Spec.
        image_size: pixels (height, width).
    """

    spec: Any
    image_size: tuple[int, int]

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.spec.strides)

    def taps(self, given: Sequence[int] | None, shares: Sequence[float]) -> tuple[int, ...]:
        """Numbers of blocks, from 0: those given, negative ones from the end, or at these shares of the depth.

        Raises:
            ValueError: for a block that does not exist, or another number of them than the head takes (any if it has
                one share).
        """
        if given is None:
            return tuple(max(round(self.depth * share) - 1, 0) for share in shares)
        numbers: list[Any] = list(given) if isinstance(given, (list, tuple, range)) else [given]
        if not numbers or not all(is_integer(i) and -self.depth <= i < self.depth for i in numbers):
            raise ValueError(
                f"taps should be numbers of blocks, from 0 to {self.depth - 1}, such as"
                f" {self.taps(None, shares)}, got {given!r}."
            )
        if len(shares) not in (1, len(numbers)):
            raise ValueError(f"This head takes {len(shares)} taps, got {len(numbers)}: {tuple(numbers)}.")
        return tuple(int(i) % self.depth for i in numbers)

    def taps_of_one_stride(self, head: str, given: Sequence[int] | None, shares: Sequence[float]) -> tuple[int, ...]:
        """`taps`; ValueError naming `head` unless their maps have one size."""
        numbers = self.taps(given, shares)
        strides = [self.spec.strides[i] for i in numbers]
        if len(set(strides)) > 1:
            raise ValueError(
                f'The head "{head}" takes maps of one size, and blocks {numbers} of this encoder have the strides'
                f' {", ".join(str(max(stride)) for stride in strides)}. Choose the head "upernet" or "linear", or'
                ' blocks of one stage, head_options={"taps": (...)}.'
            )
        return numbers


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The layers of a dense head.

    Attributes:
        taps: numbers of the blocks that give its maps.
        head: the layer called "head", from maps [(b, h, w, d), ...] to logits (b, h', w', classes).
        neck: the layer called "neck", from maps to the maps that head and auxiliary heads take, or None.
        auxiliary: (index of a map, layer from [that map] to logits) of each auxiliary head; their names are
            "auxiliary_0"...
        normalised: numbers of the blocks with maps taken after the encoder's last normalisation.
        class_tokens: whether the neck takes the maps' class tokens too, [(b, d), ...].
        joins: whether the neck's queries join the tokens of the blocks `taps` instead (heads/eomt.py).
    """

    taps: tuple[int, ...]
    head: keras.layers.Layer
    neck: keras.layers.Layer | None = None
    auxiliary: tuple[tuple[int, keras.layers.Layer], ...] = ()
    normalised: tuple[int, ...] = ()
    class_tokens: bool = False
    joins: bool = False

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """Neck, head and auxiliary heads."""
        return [*([] if self.neck is None else [self.neck]), self.head, *(layer for _, layer in self.auxiliary)]


def option_names(head: type) -> tuple[str, ...]:
    """The names of a head's options."""
    return tuple(field.name for field in dataclasses.fields(head))


def check_options(name: str, options: Iterable[str], valid: Sequence[str]) -> None:
    """Refuses options that the head `name` does not have: ValueError with the nearest."""
    for option in options:
        check_known(option, f'The head "{name}": option', valid)


def with_options(name: str, head: type, options: Mapping[str, Any]) -> Any:
    """The head `name` of this class with these options; ValueError for an unknown option, or an invalid one."""
    check_options(name, options, option_names(head))
    return head(**options)


def check_joinable(name: str, spec: Any, positions: str, others: bool) -> None:
    """Refuses an encoder whose tokens those of the head `name` cannot join.

    Args:
        name: of the head.
        spec: the encoder's.
        positions: the positions that the head needs, in words.
        others: whether the encoder has others.
    """
    final_norm = getattr(spec, "final_norm", True) and not getattr(spec, "fc_norm", False)
    among_all = getattr(spec, "windows", 1) == 1 and not getattr(spec, "has_pattern", False)
    all_patches = getattr(spec, "token_merging", None) is None and not getattr(spec, "patch_dropout", 0)
    needs = {
        "a ViT": spec.has_attention,
        "a normalisation after its blocks (final_norm=True, fc_norm=False)": final_norm,
        'attention among all patches (windows=1, attention="global")': among_all,
        positions: not others,
        "all patches (no token_merging, no patch_dropout)": all_patches,
        "attention in both directions (causal=False)": not getattr(spec, "causal", False),
    }
    for needed, met in needs.items():
        if not met:
            raise ValueError(f'The head "{name}" needs an encoder with {needed}.')
