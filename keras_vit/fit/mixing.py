"""What `fit` knows of `model.mixing`: a function of (images, targets, step) that mixes neighbouring rows of a batch.

Groups of rows stay on one replica: each has a whole number of them. On one device the last rows of another batch stay.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The base of mixings: each `group` of neighbouring rows is mixed.

    A registered subclass (layers.registration.serializable) is saved with the model.
    """

    group = 2  # without a type, so that it is not a field

    def __call__(self, images: Any, targets: Any, step: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def check_pairs(rows: int, devices: int = 1, group: int = 2) -> None:
    """Refuses a batch without pairs, or with an unpaired row on every device.

    Args:
        rows: per device.
        devices: number of devices that mix their own rows; 1 on JAX, where one program mixes the whole batch.
        group: number of neighbours that mix, 4 for a mosaic.

    Raises:
        ValueError: with the batch to choose.
    """
    if rows < group or devices > 1 and rows % group:
        batch = f"each of {devices} devices has {rows}" if devices > 1 else f"a batch has {rows}"
        what = "Mixup and CutMix mix pairs of images" if group == 2 else f"A mosaic mixes groups of {group} images"
        raise ValueError(f"{what}, and {batch}: choose a batch size that is a multiple of {group * devices}.")


def check_unweighted(weights) -> None:
    """Refuses example weights (ValueError unless None): mixed examples cannot be weighed."""
    if weights is not None:
        raise ValueError(
            "model.mixing mixes pairs of examples, which sample_weight and class_weight cannot weigh. Leave one of the"
            " two out, or weight classes in the loss: SoftmaxCrossEntropy(class_weights=...)."
        )
