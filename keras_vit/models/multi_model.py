"""Several answers on one trunk: heads that were trained apart, in a model that runs their encoder once.

trunk = keras_vit.load("deit/tiny", image_size=(384, 512), head="drop")
model = keras_vit.MultiModel(trunk, {"class": classifier, "masks": segmenter, "boxes": detector})
model.save("street.keras")
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.fit import state
from keras_vit.fit.model import Model
from keras_vit.layers.dense import apply_dense_config, dense_config
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import model_name
from keras_vit.models.classifier import Classifier
from keras_vit.models.headed import HeadedModel

_FAR = 1e-6  # largest difference of two trunks' weights


def _layers(model):
    """{name: layer}, without the input, which is named after the model."""
    return {layer.name: layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)}


def _check_trunk(trunk, part, name):
    """Refuses a part whose encoder computes something else than the trunk, ignoring sizes of position tables."""
    ours, theirs = trunk.spec.with_new_head({}), part.get_encoder().spec.with_new_head({})
    if ours != theirs:
        differ = [key for key, value in ours.to_dict().items() if theirs.to_dict().get(key) != value]
        raise ValueError(
            f'MultiModel: the part "{name}" has another encoder than the trunk: {", ".join(differ) or "its family"}.'
        )
    own = _layers(trunk)
    for layer, other in ((own[key], other) for key, other in _layers(part).items() if key in own):
        for a, b in zip(layer.get_weights(), other.get_weights()):
            if a.shape == b.shape and np.abs(a - b).max(initial=0) > _FAR:
                raise ValueError(
                    f'MultiModel: the part "{name}" has other weights than the trunk in its layer "{layer.name}". Parts'
                    " are heads that were trained on the frozen trunk: config.freeze, or keras_vit.freeze."
                )


def _labels_on(trunk, name, classes, class_names, activation):
    """The trunk with a linear head for whole images."""
    dense = keras.layers.Dense(classes, dtype="float32", name=f"{name}_logits")
    part = trunk.with_head(dense, class_names=class_names, name=name)
    part.classes, part.activation, part.outputs_are_logits = classes, activation, True
    return part


def _moved(trunk, part, name):
    """A part with its head on the trunk."""
    from keras_vit.layers.fake_quantization import check_plain  # loads when needed

    check_plain(part, f'MultiModel: the part "{name}"')
    heads = _layers(part).keys() - _layers(trunk).keys()
    if not isinstance(part, HeadedModel) and (not isinstance(part, Classifier) or heads != {"head"}):
        raise ValueError(
            f'MultiModel: the part "{name}" should be a linear classifier, a SegmentationModel, DepthModel or'
            f' DetectionModel, got "{part.name}", a {type(part).__name__} with the layers'
            f" {', '.join(sorted(heads)[:5])} after the trunk."
        )
    _check_trunk(trunk, part, name)
    if isinstance(part, HeadedModel):
        return part.with_encoder(trunk, name=name)
    moved = _labels_on(trunk, name, part.classes, part.class_names, part.activation)
    moved.get_layer(f"{name}_logits").set_weights(part.get_layer("head").get_weights())
    return moved


def _head(trunk, part, name):
    """(the trunk's tensors that a part reads, its layers after these as a model of their own)."""
    known = {id(tensor): tensor for layer in trunk.layers for node in layer._inbound_nodes for tensor in node.outputs}
    inside = {id(operation) for operation in part.operations} - {id(operation) for operation in trunk.operations}
    read = {
        id(tensor): tensor
        for operation in part.operations
        if id(operation) in inside
        for node in operation._inbound_nodes
        for tensor in node.input_tensors
        if id(tensor) in known
    }
    tensors = list(read.values())
    return tensors, keras.Model(tensors, part.output, name=name)


def _description(part):
    """A part without its weights and encoder, as JSON."""
    if isinstance(part, HeadedModel):
        return {"class": keras.saving.get_registered_name(type(part)), "arguments": part.arguments()}
    return {"classes": part.classes, "class_names": part.class_names, "activation": part.activation}


def _made(trunk, name, description):
    """A part with a new head on the trunk, from its description."""
    if "class" not in description:
        return _labels_on(trunk, name, **description)
    registered = description["class"]
    from keras_vit import models  # which registers the classes of this package when they are read

    form = keras.saving.get_registered_object(registered) or getattr(models, registered.rpartition(">")[2])
    return form.on_encoder(trunk, description["arguments"])


@serializable
class MultiModel(Model):
    """Several answers by one trunk: classifier, segmentation model and detector, with the trunk computed once.

    Args:
        trunk: a ViT, BiT or Swin without a head.
        parts: {name: model}. Linear classifiers, SegmentationModels, DepthModels and DetectionModels that were trained
            with the trunk's weights frozen. Their heads are copied; another image size than the trunk's is adapted to
            it.
        name: of the model.

    Input: pixels 0..255 (b, height, width, channels). Output: {name: the part's outputs}.

    Attributes:
        trunk: the encoder, with its layers and weights.
        parts: {name: model of the trunk's layers and one head}, to use alone: `model.parts["masks"].segment(image)`.

    Raises:
        ValueError: for a part with another encoder or other weights of it, or another kind of head.
    """

    made_from_arguments = True

    def __init__(self, trunk: Classifier, parts: Mapping[str, Model], name: str | None = "multi"):
        if not isinstance(trunk, Classifier) or trunk.classes is not None:
            raise ValueError(
                f'MultiModel: the trunk should be a model without a head, got "{trunk.name}", a {type(trunk).__name__}:'
                ' keras_vit.load(path, head="drop").'
            )
        if not parts:
            raise ValueError('MultiModel: give at least one part, such as {"masks": segmentation_model}.')
        mixed = [a for a in parts for b in parts if b.startswith(f"{a}_")]
        if mixed:
            raise ValueError(f'MultiModel: another part\'s name begins with "{mixed[0]}_": outputs would be mixed up.')
        self._join(trunk, {key: _moved(trunk, part.without_auxiliary(), key) for key, part in parts.items()}, name)

    def _join(self, trunk, parts, name):
        outputs = {}
        for key, part in parts.items():
            tensors, head = _head(trunk, part, key)
            outputs[key] = head(tensors)
        Model.__init__(self, trunk.input, outputs, name=model_name(name, "multi"))
        # In the instance's own dict: as attributes Keras would count and save these layers twice.
        self.__dict__.update(_trunk=trunk, _parts=parts)

    @property
    def trunk(self) -> Classifier:
        return self._trunk

    @property
    def parts(self) -> dict[str, Model]:
        return self._parts

    def get_encoder(self) -> Classifier:
        return self._trunk

    def _usual_answers(self) -> tuple[str, ...]:
        return ("several",)

    def has_zero_head(self) -> bool:
        return any(part.has_zero_head() for part in self._parts.values())

    def answer(self, x: Any, **options: Any) -> Any:
        """All answers for one image or a list: {part: JSON object}, with `picture()`, a Pillow image.

        Args:
            x: an image or several, as for `preprocess`.
            **options: of the answers, by name, such as top_k and threshold.
        """
        from keras_vit.answers.several import answer

        return answer(self, x, **options)

    def classify(self, x, *args, **kwargs):
        raise ValueError(
            f'"{self.name}" gives several answers: use model.answer(image), or a part alone:'
            f" model.parts[name], of {', '.join(self._parts)}."
        )

    def _check_trainable(self):
        raise ValueError(
            f'"{self.name}" joins heads that are trained already. Train each on the frozen trunk, then join them.'
        )

    def get_config(self):
        parts = {name: _description(part) for name, part in self._parts.items()}
        trunk = keras.saving.serialize_keras_object(self._trunk)
        return {"trunk": trunk, "parts": parts, "name": self.name, **dense_config(self), **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        trunk = keras.saving.deserialize_keras_object(config["trunk"], custom_objects=custom_objects)
        parts = {name: _made(trunk, name, description) for name, description in config["parts"].items()}
        model = cls.__new__(cls)
        model._join(trunk, parts, config["name"])
        apply_dense_config(model, config.get("quantization"), config.get("lora"))
        state.restore(model, config.get(state.KEY))
        return model
