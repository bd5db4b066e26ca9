"""What targets of `open_split` for outlined objects share: a BoxTarget, to which they add `segments`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.data.annotations.box_source import BoxTarget
from keras_vit.data.annotations.box_table import BoxTable
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Layout
from keras_vit.data.sources.base import RandomAccess
from keras_vit.io.suggest import listed


@dataclasses.dataclass(frozen=True)
class OutlineTable:
    """The boxes of objects; subclasses add what their outlines are drawn from."""

    boxes: BoxTable

    @property
    def paths(self) -> list[str]:
        return self.boxes.paths

    @property
    def faults(self) -> list[str]:
        return self.boxes.faults

    @property
    def sizes(self) -> np.ndarray:
        return self.boxes.sizes


class OutlineTarget:
    """Boxes of objects; subclasses add `read` and `parser`."""

    needs_classes = False

    def __init__(self):
        self._boxes, self._stuff = BoxTarget("object"), ()

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._boxes.class_names

    def read_boxes(
        self, annotations: Annotations, images: Sequence[AnnotatedImage], class_names: Sequence[str]
    ) -> BoxTable:
        """The boxes of `images`; annotations have no others."""
        self._stuff = annotations.stuff
        annotations.images = iter(images)
        return self._boxes.read(annotations, class_names)

    def fields(self, table: OutlineTable, rows: Sequence[int]) -> dict[str, Any]:
        return {**self._boxes.fields(table.boxes, rows), "outlined": True, "stuff": self._stuff}

    def describe(self, title: str, table: OutlineTable, whole: Callable[[], RandomAccess], layout: Layout) -> str:
        text = self._boxes.describe(title, table.boxes, whole, layout)
        text += f"; stuff: {listed(list(self._stuff))}" if self._stuff else ""
        return text + (f"; overlaps: {layout.overlaps}" if layout.overlaps else "")
