"""A model by its variant's name, whichever its family."""

import re

from keras_vit.models.resnet import BiT, BiTSpec
from keras_vit.models.vit import ViT


def build(variant, **arguments):
    """The ViT of "B/16" or "R50+B/16", or the BiT of "R50x1"; specs work too. `arguments` are the class's.

    Raises:
        ValueError: for an unknown variant or argument.
    """
    bit = isinstance(variant, BiTSpec) or (isinstance(variant, str) and re.fullmatch(r"R\d+x\d+", variant))
    return (BiT if bit else ViT)(variant, **arguments)
