"""DINO (arXiv 2104.14294): features without labels, from agreement between crops of an image."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from keras_vit.data import parse
from keras_vit.evaluation.loss_and_metrics import LossAndMetrics
from keras_vit.inspection import html_report
from keras_vit.io.durations import resolve_steps
from keras_vit.io.suggest import counted
from keras_vit.models import build
from keras_vit.pretraining.dino_loss import DINOLoss, TeacherEntropy
from keras_vit.pretraining.dino_model import DINO, GLOBAL
from keras_vit.tasks.classification import adapted, check_resample, loaded, model_arguments, variant
from keras_vit.tasks.task import Task

_COLOUR = "random_flip|color_jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)|random_grayscale(0.2)"
_SHOWN = 8  # images in a report


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective: arguments of keras_vit.DINO, durations and crops, with the paper's values for ViT-S/16.

    Attributes:
        outputs, hidden, bottleneck, depth, scale: see keras_vit.DINO. Shape of the projection heads.
        local_size: int or (height, width). Size of the small crops, in pixels.
        local_crops: int. Number of small crops.
        momentum, center_momentum: float. Initial momentum of the teacher, and momentum of its centre.
        student_temperature: float. Temperature of the student.
        temperature, first_temperature: float. Final and initial temperature of the teacher.
        temperature_warmup: duration over which the teacher's temperature rises.
        frozen: duration for which the head's last layer is frozen.
        first_crop, second_crop, local_crop: str. Preprocessing of the crops, with {size} for height and width.
    """

    outputs: int = 65_536
    hidden: int = 2048
    bottleneck: int = 256
    depth: int = 3
    scale: bool = False
    local_size: int | tuple[int, int] = 96
    local_crops: int = 8
    momentum: float = 0.996
    center_momentum: float = 0.9
    student_temperature: float = 0.1
    temperature: float = 0.07
    first_temperature: float = 0.04
    temperature_warmup: int | str = "30%"
    frozen: int | str = "1 epochs"
    first_crop: str = (
        "random_resized_crop({size}, scale=(0.25, 1), method='bicubic')|" + _COLOUR + "|gaussian_blur(1.0)"
    )
    second_crop: str = (
        "random_resized_crop({size}, scale=(0.25, 1), method='bicubic')|"
        + _COLOUR
        + "|gaussian_blur(0.1)|solarize(0.2)"
    )
    local_crop: str = (
        "random_resized_crop({size}, scale=(0.05, 0.25), method='bicubic')|" + _COLOUR + "|gaussian_blur(0.5)"
    )


_PASSED_ON = tuple(
    "outputs hidden bottleneck depth scale local_size local_crops momentum center_momentum temperature"
    " first_temperature".split()
)


@dataclasses.dataclass(frozen=True)
class OfTraining(LossAndMetrics):
    """Loss and metrics of the trained `model`, None outside its run; the run delivers only the encoder."""

    model: keras.Model | None = None

    def prepare(self, setting):
        if self.model is None:
            raise ValueError(
                "A DINO run delivers an encoder, which has no loss. Measure its features:"
                " --evals=\"knn(source='cifar10')\", or keras-vit probe."
            )
        return super().prepare(dataclasses.replace(setting, model=self.model))


class SelfDistillation(Task):
    """keras_vit.DINO; the run saves, measures and exports the teacher's encoder, a ViT or BiT without a head."""

    reads = ("resample",)
    Options = Options

    def __init__(self, config: ConfigDict):
        super().__init__(config)
        self._trained: keras.Model | None = None

    def check_config(self):
        super().check_config()
        check_resample(self.config)
        self._crops()

    def _sizes(self):
        """Returns (height, width) of large and small crops; the model checks them."""
        sizes = (self.config.model.image_size, self.options.local_size)
        return [tuple(size) if isinstance(size, (tuple, list)) else (size, size) for size in sizes]

    def _crops(self):
        """Parses the preprocessing of the two large crops and the small crop."""
        options, (large, small) = self.options, self._sizes()
        texts = {"first_crop": large, "second_crop": large, "local_crop": small}
        try:
            return [parse(getattr(options, name).replace("{size}", f"{h}, {w}")) for name, (h, w) in texts.items()]
        except ValueError as error:
            raise ValueError(f"config.objective.first_crop, second_crop or local_crop: {error}") from None

    def select(self, example: dict[str, Any]) -> tuple:
        """Returns ({"global": (2, h, w, c), "local": (v, h, w, c)}, 0); folds each crop's seed from the example's."""
        first, second, local = self._crops()
        sizes, count = self._sizes(), self.options.local_crops

        def crop(number, preprocess, size):
            seed = tf.cast(tf.random.experimental.stateless_fold_in(example["seed"], number), tf.int64)
            pixels = preprocess.image(example["image"], seed if preprocess.random else None)
            if not pixels.shape[:2].is_compatible_with(size):
                raise ValueError(
                    f'"{preprocess.text}": expected crops of {size} pixels, got {tuple(pixels.shape[:2])}: use {{size}}'
                    " in the text."
                )
            return tf.ensure_shape(pixels, (*size, self.config.model.channels))

        crops = {"global": tf.stack([crop(i, text, sizes[0]) for i, text in enumerate((first, second))])}
        if count:
            crops["local"] = tf.stack([crop(GLOBAL + i, local, sizes[1]) for i in range(count)])
        return crops, tf.constant(0, tf.int32)

    def build(self, source: Any) -> keras.Model:
        encoder = build(variant(self.config), classes=None, **model_arguments(self.config))
        return self._around(encoder, source)

    def load(self, source: Any) -> keras.Model:
        """Makes a DINO with the weights of a trained model, without its head."""
        return self._around(loaded(self.config, head="drop"), source)

    def adapted(self, described: dict[str, Any], source: Any) -> dict[str, Any]:
        return adapted(self.config, described, head="drop")

    def _steps(self, name, source, total):
        """Converts the option `name`, a duration, to steps of a run of `total` steps."""
        try:
            return resolve_steps(getattr(self.options, name), self.config.batch_size, source.size, total)
        except ValueError as error:
            raise ValueError(f"--config.objective.{name}: {error}") from None

    def _around(self, encoder, source):
        """Makes a DINO around an encoder."""
        config, options = self.config, self.options
        total = resolve_steps(config.total, config.batch_size, source.size)
        steps = {
            "temperature_steps": self._steps("temperature_warmup", source, total),
            "frozen_steps": self._steps("frozen", source, total),
        }
        if steps["frozen_steps"] >= total:
            raise ValueError(
                f'--config.objective.frozen="{options.frozen}" is {counted(steps["frozen_steps"], "step")}, but the run'
                f" has {total:,}: the last layer of the head would never learn. Choose a shorter duration, such as 10%,"
                " or a longer --config.total."
            )
        if steps["temperature_steps"] > total:
            logging.warning(
                '--config.objective.temperature_warmup="%s" is longer than the run of %s steps: the teacher\'s'
                " temperature will not reach %s.",
                options.temperature_warmup,
                f"{total:,}",
                options.temperature,
            )
        return DINO(encoder, steps=total, **steps, **{name: getattr(options, name) for name in _PASSED_ON})

    def loss(self, source: Any) -> keras.losses.Loss:
        return DINOLoss(self.options.student_temperature)

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric]:
        return [TeacherEntropy()]

    def deliver(self, model: keras.Model) -> keras.Model:
        """Returns the teacher's encoder."""
        self._trained = model
        return model.get_encoder()

    def evaluator(self) -> OfTraining:
        return OfTraining(self.loss, self.metrics, self._trained)

    def report(self, model, evaluation, samples, records):
        entropy = html_report.learning_curves(records, "teacher_entropy", "entropy of the teacher, nats")
        images = samples[0]["global"][:_SHOWN, 0]
        attention = [html_report.attention(model, images)] if len(images) and model.spec.has_attention_maps else []
        return [*super().report(model, evaluation, samples, records), entropy, *attention]
