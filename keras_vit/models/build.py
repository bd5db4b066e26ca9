"""A model of either family by its variant's name."""

import re
from typing import Any, Unpack

from keras_vit.models.arguments import Arguments
from keras_vit.models.bit import BiT, BiTSpec
from keras_vit.models.spec import ViTSpec
from keras_vit.models.vit import ViT


def build(variant: str | ViTSpec | BiTSpec, **arguments: Unpack[Arguments]) -> ViT | BiT:
    """A ViT or BiT.

    Args:
        variant: a ViT's name ("B/16", "R50+B/16"), a BiT's ("R50x1"), a ViTSpec or a BiTSpec.
        **arguments: the other arguments of the class's constructor.

    Raises:
        ValueError: for an unknown variant or argument.
    """
    bit = isinstance(variant, BiTSpec) or (isinstance(variant, str) and re.fullmatch(r"R\d+x\d+", variant))
    family: Any = BiT if bit else ViT
    return family(variant, **arguments)
