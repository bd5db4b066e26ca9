"""Objects with masks: boxes, classes and the pixels of each object."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit import evaluation as evaluators
from keras_vit.data.instances import pack_instances
from keras_vit.instances.heads.instance_heads import HEADS
from keras_vit.instances.instance_model import InstanceModel
from keras_vit.io.durations import resolve_steps
from keras_vit.tasks.dense_task import plain_options
from keras_vit.tasks.detection import Detection
from keras_vit.tasks.task import Score

_STRIDE = 4  # of masks whose model is not built yet: in plans


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective: the head and its loss.

    Attributes:
        head: a row of keras_vit.instances.heads.instance_heads.HEADS.
        head_options: the head's own arguments, such as {"queries": 100}.
        loss: arguments of the head's loss, such as {"mask_weight": 5.0}.
        auxiliary: weight of the losses of the predictions before the last one, 1 in the papers.
        objects: the largest number of objects in an image, to which batches are padded; None for that of the data.
    """

    head: str = "eomt"
    head_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    auxiliary: float = 1.0
    objects: int | None = None

    def __post_init__(self):
        for name in ("head_options", "loss"):
            object.__setattr__(self, name, plain_options(getattr(self, name)))


class Instances(Detection):
    """A ViT with the head `config.objective.head`, which finds objects with their masks."""

    Model = InstanceModel
    score = Score("ap", title="mask AP", percent=True, curve="instances/ap")
    Options = Options
    heads: ClassVar[Mapping[str, Any]] = HEADS
    recipe = "instances"
    wanted = "outlines of objects: give a folder of images and annotations as --data=instances:FOLDER"
    _grid: tuple[int, int] | None = None  # of the model's masks

    def check_mixing(self) -> None:
        if not self.options.auxiliary:
            raise ValueError(
                f"--config.objective.auxiliary={self.options.auxiliary}: the head {self.options.head} trains with"
                " auxiliary predictions. Set it to 1.0."
            )

    # Data

    def has_targets(self, source: Any) -> bool:
        return super().has_targets(source) and getattr(source, "outlined", True)

    def placeholders(self) -> dict[str, Any]:
        return {**super().placeholders(), "segments": np.zeros((8, 8, 2), "int32")}

    def select(self, example: dict[str, Any]) -> tuple:
        """(image (h, w, c), objects (m, 7 + h' * w'))."""
        image = example["image"]
        grid = self._grid or tuple(side // _STRIDE for side in image.shape[:2])
        return image, pack_instances(example, self._objects, grid)

    # Model

    def around(self, encoder, source, head, head_options, **arguments):
        if head == "eomt":
            steps = resolve_steps(self.config.total, self.config.batch_size, source.size)
            head_options = {**head_options, "annealing_steps": self.options.head_options.get("annealing_steps", steps)}
        return InstanceModel(
            encoder,
            head=head,
            classes=len(source.class_names),
            class_names=source.class_names,
            stuff=getattr(source, "stuff", ()),
            head_options=head_options,
            auxiliary=self.options.auxiliary,
            **arguments,
        )

    def model(self, source: Any) -> keras.Model:
        built = super().model(source)
        self._grid = built.mask_grid
        return built

    def check_model(self, model: keras.Model, source: Any) -> None:
        super().check_model(model, source)
        self._grid = model.mask_grid

    # Training

    def loss(self, source: Any) -> keras.losses.Loss:
        return self.head_loss(1 if source is None else len(source.class_names))

    def mixing(self, model):
        return None

    # Evaluation

    def deliver(self, model: keras.Model) -> keras.Model:
        """Returns the model without auxiliary predictions."""
        return model.without_auxiliary()

    def evaluator(self) -> evaluators.Evaluator:
        return evaluators.Instances()
