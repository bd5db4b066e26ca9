"""A trained segmentation model at another image size, or with other options of its encoder."""

import os
from collections.abc import Sequence
from typing import Any

from keras_vit.checkpoints.transfer import check_plain, describe, transfer
from keras_vit.models import SegmentationModel

_OWN = ("name", "preprocessing")  # of the model, not of its encoder


def moved(
    model: SegmentationModel,
    image_size: int | tuple[int, int] | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    resample: str = "google",
    **changes: Any,
) -> SegmentationModel:
    """A new model with the weights of `model`; the head stays as it is.

    Args:
        image_size, resample, **changes: as in `transfer`, for the encoder.
        class_names: in order; None for the model's.

    Raises:
        ValueError: as in `transfer`, or if the head does not suit the new maps.
    """
    check_plain(model, "Another size or option of a segmentation model")
    own = {name: changes.pop(name) for name in _OWN if name in changes}
    encoder = transfer(model.get_encoder(), image_size, head="drop", resample=resample, **changes)
    new = model.with_encoder(encoder, **({"name": own["name"]} if "name" in own else {}))
    same = new.image_size == model.image_size
    describe(new, class_names, preprocessing=own.get("preprocessing", model.preprocessing if same else None))
    return new
