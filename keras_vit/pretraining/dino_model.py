"""DINO (arXiv 2104.14294): a student predicts, from each crop, its moving average's output for two large ones."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit import layers
from keras_vit.classification.distilled import FrozenTeacher
from keras_vit.fit.model import Model
from keras_vit.layers.arguments import integer, number
from keras_vit.layers.embedding.patches import grid_size, pair
from keras_vit.layers.positions.embeddings import KINDS, ResampledPositions
from keras_vit.layers.projection_head import ProjectionHead, Sharpening
from keras_vit.layers.registration import serializable
from keras_vit.models.classifier import Classifier
from keras_vit.models.composite import CompositeModel
from keras_vit.models.families import any_name
from keras_vit.pretraining.dino_loss import DINOLoss

GLOBAL = 2  # crops for the teacher


def at_size(model: Classifier, size: tuple[int, int], name: str) -> keras.Model:
    """A model at another image size, sharing its layers; positions are interpolated, bicubically, in the graph.

    Args:
        model: a ViT or BiT without a head.
        size: pixels (height, width).
        name: of the new model.

    Raises:
        ValueError: for a partial patch, a model that merges or drops patches, or attention for one grid.
    """
    spec: Any = model.spec
    resampled: dict[keras.layers.Layer, keras.layers.Layer] = {}
    if getattr(spec, "inner_positions", None):
        raise ValueError(
            f"Crops of several sizes need positions that can be interpolated, {', '.join(KINDS)}, or none:"
            f' positions="{spec.inner_positions}" are in the attention, for one grid.'
        )
    if getattr(spec, "token_merging", None) is not None or getattr(spec, "patch_dropout", None):
        raise ValueError("Crops of several sizes need all patches: leave token_merging and patch_dropout out.")
    if getattr(spec, "has_pattern", False):
        raise ValueError(f'Crops of several sizes need attention="global": "{spec.attention}" is for one grid.')
    grid = grid_size(size, spec.strides[0]) if spec.has_tokens else None

    def at_grid(operation):
        if not isinstance(operation, layers.AddPositionEmbs):
            return operation
        if operation not in resampled:  # layers may be called several times
            policy = operation.dtype_policy
            resampled[operation] = ResampledPositions(operation, grid, dtype=policy, name=operation.name)
        return resampled[operation]

    image = keras.Input((*size, model.channels), dtype="float32")
    return keras.Model(image, model._run_through_graph(image, operation_fn=at_grid), name=name)


def _rows(crops):
    """(b, v, h, w, c) -> (b*v, h, w, c)."""
    return ops.reshape(crops, (-1, *crops.shape[2:]))


def _views(logits, count):
    """(b*v, k) -> (b, v, k), v = count."""
    return ops.reshape(logits, (-1, count, logits.shape[-1]))


def _student(encoder, head, local_size, local_crops):
    """({name: symbolic crops}, [the student's logits (b, v, k) of large crops, and of small ones if any])."""
    crops = {"global": keras.Input((GLOBAL, *encoder.image_size, encoder.channels), name="global")}
    views = [_views(head(encoder(_rows(crops["global"]))), GLOBAL)]
    if local_crops:
        crops["local"] = keras.Input((local_crops, *local_size, encoder.channels), name="local")
        try:
            small = at_size(encoder, local_size, f"{encoder.name}_local")
        except ValueError as error:
            raise ValueError(f"DINO: local_size={local_size}: {error}") from None
        views.append(_views(head(small(_rows(crops["local"]))), local_crops))
    return crops, views


def _check(encoder, **rates):
    """Refuses anything but a ViT or BiT without classes, and rates outside [0, 1]."""
    if not isinstance(encoder, Classifier) or encoder.classes is not None:
        raise ValueError(
            f'DINO expects a {any_name()} without classes: ViT(..., classes=None) or load(path, head="drop"); got'
            f" {encoder!r}."
        )
    for key, value in rates.items():
        if not 0 <= number(value, f"DINO: {key}") <= 1:
            raise ValueError(f"DINO: {key} must be in [0, 1], got {value!r}.")


@serializable
class DINO(CompositeModel):
    """Learns features without labels: `DINO(encoder, steps=...)`, compile, fit on crops; then use `get_encoder()`.

        vit = keras_vit.ViT("S/16", classes=None, drop_path=0.1)
        dino = keras_vit.DINO(vit, local_size=96, steps=100_000)
        dino.compile(AdamW(5e-4, decay=0.04), DINOLoss())
        dino.fit(dataset)  # of ({"global": (b, 2, 224, 224, 3), "local": (b, 8, 96, 96, 3)}, anything (b,))

    The teacher starts as a copy of the student; after each update it moves towards it. Its outputs are sharpened, and
    centred by their running mean over the whole batch, replicas and micro-batches included.

    Args:
        encoder: a ViT or BiT without classes, the student. Trained in place.
        outputs: of the projection heads.
        hidden, bottleneck, depth: of their MLPs.
        scale: whether the norms of the head's last kernel are learned too.
        local_size: pixels of the small crops, a number or (height, width).
        local_crops: number of small crops; 0 for the two large ones alone.
        steps: of the whole training, over which the teacher's momentum rises to 1 by a cosine.
        momentum: the teacher's initial momentum.
        center_momentum: of the centre.
        temperature: the teacher's after `temperature_steps` of a linear rise from `first_temperature`.
        frozen_steps: initial steps with the head's last layer frozen.
        name: of the model.

    Input: {"global": (b, 2, height, width, c), "local": (b, local_crops, h, w, c)}, pixels 0..255. Output for DINOLoss:
    logits (b, 2 + 2 + local_crops, outputs), float32: the teacher's two, centred and divided by its temperature, then
    the student's.

    Raises:
        ValueError: for an encoder with classes, or numbers out of range.
    """

    PARTS = {"encoder": "student"}
    weighs_examples = True
    labels_are_classes = False
    objectives = (DINOLoss,)

    def __init__(
        self,
        encoder: Classifier,
        outputs: int = 65_536,
        hidden: int = 2048,
        bottleneck: int = 256,
        depth: int = 3,
        scale: bool = False,
        local_size: int | tuple[int, int] = 96,
        local_crops: int = 8,
        steps: int = 100_000,
        momentum: float = 0.996,
        center_momentum: float = 0.9,
        temperature: float = 0.07,
        first_temperature: float = 0.04,
        temperature_steps: int = 0,
        frozen_steps: int = 0,
        name: str = "dino",
    ):
        _check(encoder, momentum=momentum, center_momentum=center_momentum)
        self._steps, self._momentum = integer(steps, "DINO: steps"), momentum
        self._frozen_steps = integer(frozen_steps, "DINO: frozen_steps", least=0)
        policy = encoder.dtype_policy
        heads = [
            ProjectionHead(outputs, hidden, bottleneck, depth, scale, dtype=policy, name=name)
            for name in ("head", "teacher_head")
        ]
        crops, views = _student(
            encoder, heads[0], pair(local_size, "DINO: local_size"), integer(local_crops, "DINO: local_crops", least=0)
        )
        teacher = type(encoder).from_config(encoder.get_config())
        whole = Model(teacher.input, heads[1](teacher.features), name="teacher_and_head")
        logits = FrozenTeacher(whole, dtype="float32", name="teacher")(_rows(crops["global"]))
        sharpening = Sharpening(
            center_momentum, temperature, first_temperature, temperature_steps, dtype="float32", name="sharpening"
        )
        super().__init__(crops, ops.concatenate([sharpening(_views(logits, GLOBAL)), *views], axis=1), name=name)
        self.spec = self.preprocessing = None  # of the encoder alone: the whole has crops of two sizes, and a teacher
        self._arguments = {
            **{"outputs": outputs, "hidden": hidden, "bottleneck": bottleneck, "depth": depth, "scale": scale},
            **{"local_size": local_size, "local_crops": local_crops, "steps": steps, "momentum": momentum},
            **{"center_momentum": center_momentum, "temperature": temperature, "first_temperature": first_temperature},
            **{"temperature_steps": temperature_steps, "frozen_steps": frozen_steps, "name": name},
        }
        self._models = lambda: (encoder, teacher)  # as attributes Keras would count and save their layers twice
        heads[0].learns.assign(0.0 if frozen_steps else 1.0)
        for ours, theirs in self._pairs():
            theirs.assign(ops.copy(ours))  # fit on JAX donates the buffers

    @property
    def student(self) -> Classifier:
        return self._models()[0]

    @property
    def teacher(self) -> Classifier:
        return self._models()[1]

    def get_encoder(self) -> Classifier:
        """The teacher's encoder, which the paper evaluates."""
        return self.teacher

    def _pairs(self):
        """(a weight of the student, the teacher's), running statistics included."""
        ours = [*self.student.weights, *self.get_layer("head").weights]
        pairs = zip(ours, self.get_layer("teacher").model.weights, strict=True)
        return [(own, theirs) for own, theirs in pairs if own.name != "learns"]

    def after_update(self) -> None:
        """Moves the teacher and the centre, and updates what depends on the step."""
        sharpening = self.get_layer("sharpening")
        step = ops.cast(sharpening.step, "float32")
        progress = ops.minimum(step / self._steps, 1.0)
        momentum = 1.0 - (1.0 - self._momentum) * 0.5 * (1.0 + ops.cos(math.pi * progress))
        for ours, theirs in self._pairs():
            theirs.assign(momentum * theirs + (1.0 - momentum) * ours)
        sharpening.update()
        self.get_layer("head").learns.assign(ops.cast(step + 1 >= self._frozen_steps, "float32"))

    def options(self) -> dict[str, Any]:
        return self._arguments
