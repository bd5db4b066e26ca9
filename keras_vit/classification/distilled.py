"""A student and its teacher as one model: both see the same images, and only the student learns."""

from typing import Any

import keras
from keras import ops

from keras_vit.classification.distillation_losses import DistillationLoss, HardDistillation, SoftDistillation
from keras_vit.fit import checks
from keras_vit.fit.model import Model
from keras_vit.layers.dense import set_trainable
from keras_vit.layers.positions.interpolation import resized
from keras_vit.layers.registration import serializable
from keras_vit.models.composite import CompositeModel


@serializable
class FrozenTeacher(keras.layers.Layer):
    """A frozen classifier: images of any size, pixels 0..255 (b, h, w, c) -> its logits (b, classes), float32.

    It always runs as in evaluation, without dropout and with batch normalisation's running statistics, and passes no
    gradient.

    Args:
        model: the classifier, which is frozen. Images are resized to its size, bilinearly and antialiased.
        order: the class of each logit, for a student with another order of classes; None for its own.
    """

    def __init__(self, model: keras.Model, order: tuple[int, ...] | None = None, **kwargs: Any):
        super().__init__(**{"trainable": False, "autocast": False, **kwargs})
        self.model = model
        self.order = None if order is None else tuple(order)
        set_trainable(model, False)

    def build(self, input_shape):
        self.built = True

    def call(self, images):
        size = tuple(self.model.input_shape[1:3])
        images = images if tuple(images.shape[1:3]) == size else resized(images, size, "flexivit")
        logits = ops.cast(self.model(images, training=False), "float32")
        return ops.stop_gradient(logits if self.order is None else ops.take(logits, self.order, axis=-1))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.model.output_shape[-1])

    def get_config(self):
        return {**super().get_config(), "model": keras.saving.serialize_keras_object(self.model), "order": self.order}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})


def _check_classifier(model, what):
    """Refuses anything but a model from images to one logit per class."""
    if not isinstance(model, Model):
        raise ValueError(
            f"Distilled: the {what} should be a model of keras_vit, such as keras_vit.load gives, got {model!r}."
        )
    if model.image_size is None or not isinstance(model.output, keras.KerasTensor) or len(model.output_shape) != 2:
        raise ValueError(
            f'Distilled: the {what}, "{model.name}", should take one image and return logits (b, classes); it takes'
            f" {model.input_shape} and returns {model.output_shape}."
        )
    if model.classes is None and checks.what_is(model.output) is None:
        raise ValueError(
            f'Distilled: the {what}, "{model.name}", has no classes: its outputs are features. Load or make it with'
            " classes."
        )
    if checks.what_is(model.output) == "probabilities":
        raise ValueError(
            f'Distilled: the {what}, "{model.name}", ends in a softmax or sigmoid, and distillation takes logits: leave'
            " the activation out."
        )


def _order(student, teacher):
    """The teacher's class for each of the student's, or None if equal or unknown; ValueError if the classes differ."""
    ours, theirs = student.output_shape[-1], teacher.output_shape[-1]
    if ours != theirs:
        raise ValueError(
            f"The student has {ours} classes, the teacher {theirs}: a teacher teaches its own classes. Fine-tune it on"
            " the student's data first."
        )
    if student.class_names is None or teacher.class_names is None or student.class_names == teacher.class_names:
        return None
    if sorted(student.class_names) != sorted(teacher.class_names):
        raise ValueError(
            f"The teacher's classes are {teacher.class_names[:5]}..., the student's {student.class_names[:5]}... If"
            " they are the same ones with other names, in the same order, load the teacher with the student's:"
            " keras_vit.load(path, class_names=[...])."
        )
    if len(set(theirs := list(teacher.class_names))) != len(theirs):
        raise ValueError(
            "The teacher has the student's classes in another order, and several have the same name: name them apart."
        )
    return tuple(theirs.index(name) for name in student.class_names)


def _heads(student):
    """The student's logits, a list: its head's, and a second head's for the distillation token."""
    layers = {layer.name: layer for layer in student.layers}
    two = "head" in layers and "head_dist" in layers
    return [layers["head"].output, layers["head_dist"].output] if two else [student.output]


@serializable
class Distilled(CompositeModel):
    """Trains a student on a teacher's outputs for the same images: `Distilled(student, teacher)`, compile and fit.

        distilled = keras_vit.Distilled(student, keras_vit.load("runs/teacher"))
        distilled.compile(AdamW(1e-3), HardDistillation(), weighted_metrics=[StudentAccuracy(), Agreement()])
        distilled.fit(images, labels)
        keras_vit.save(distilled.student, "student.keras")

    Args:
        student: any classifier of this package. With a distillation token (DeiT) its two heads train apart.
        teacher: a trained classifier with the same classes; another order of class names is corrected. Keeps its own
            image size and normalisation, frozen and unchanged.
        name: of the model.

    Input: pixels 0..255 of the student's size. Output: logits (b, k, classes), float32, of the student's head, of its
    second head if it has one, and last of the teacher.

    Attributes:
        student, teacher: the two models. Training changes the student in place.

    Raises:
        ValueError: unless both are classifiers of the same classes and channels that return logits.
    """

    PARTS = {"student": "student", "teacher": "teacher"}
    weighs_examples = True
    objectives = (HardDistillation, SoftDistillation)

    def __init__(self, student: Model, teacher: Model, name: str = "distilled"):
        _check_classifier(student, "student")
        _check_classifier(teacher, "teacher")
        if student.channels != teacher.channels:
            raise ValueError(
                f"The student's images have {student.channels} channels, the teacher's {teacher.channels}: load the"
                f" teacher with channels={student.channels}, or make the student with channels={teacher.channels}."
            )
        if {id(v) for v in student.variables} & {id(v) for v in teacher.variables}:
            raise ValueError(
                "The student shares weights with the teacher, which never change: give it a copy, teacher.clone()."
            )
        order = _order(student, teacher)
        logits = FrozenTeacher(teacher, order, dtype="float32", name="teacher")(student.input)
        heads = [ops.cast(head, "float32") for head in _heads(student)]
        super().__init__(student.input, ops.stack([*heads, logits], axis=1), name=name)  # (b, k, c)
        # In a closure: as an attribute Keras would count and save the student's layers twice.
        self._student = lambda: student

    @property
    def student(self) -> Model:
        return self._student()

    @property
    def teacher(self) -> Model:
        return self.get_layer("teacher").model

    @property
    def fixed_variables(self) -> list:
        return self.teacher.variables

    def get_encoder(self) -> Model:
        return self.student

    def _take_loss(self, loss):
        if isinstance(loss, SoftDistillation) and self.teacher.activation == "sigmoid":
            raise ValueError(
                "The teacher was trained with a sigmoid for each class: its logits have no softmax to learn from. Use"
                " HardDistillation, which takes its most probable class, or a teacher trained with the softmax."
            )
        super()._take_loss(loss)
        if isinstance(loss, DistillationLoss):
            self.student.activation = "softmax"

    def _check_trainable(self):
        """Also refuses an untrained teacher; not in `compile`, which a file calls before its weights are loaded."""
        super()._check_trainable()
        if hasattr(self.teacher, "has_zero_head") and self.teacher.has_zero_head():
            raise ValueError("The teacher's head is all zeros, as before any training: it has nothing to teach.")
