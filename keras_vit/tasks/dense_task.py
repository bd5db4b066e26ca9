"""Base of tasks with a head on an encoder's feature maps: segmentation and detection."""

import shlex
from typing import Any, ClassVar

import keras
from absl import logging
from ml_collections import ConfigDict

from keras_vit.checkpoints import load
from keras_vit.checkpoints.transfer import transfer
from keras_vit.evaluation.classes import SAME, compared
from keras_vit.evaluation.matched_classes import places
from keras_vit.io.suggest import check_known
from keras_vit.models import freeze
from keras_vit.models.finetuning.quantization_aware import in_floats
from keras_vit.tasks.classification import adapted, check_resample, check_variant, loaded, model_arguments, variant
from keras_vit.tasks.task import Task

HEADS = ("reset", "keep")  # config.head


def plain_options(options: Any) -> dict[str, Any]:
    """Converts a head's options, a dict, a ConfigDict or None, to a dict."""
    return options.to_dict() if isinstance(options, ConfigDict) else dict(options or {})


def _advice(trained, options):
    """What to change in a config's head_options, which may be the recipe's, to keep the head of a trained model."""
    own = {
        name: value for name, value in trained.head_options.items() if value != options.head_options.get(name, value)
    }
    flags = [f"--config.objective.head_options.{name}={shlex.quote(str(value))}" for name, value in own.items()]
    return f"Keep its own: {' '.join(flags)}," if flags else "Remove the options,"


class DenseTask(Task):
    """A ViT, hybrid or BiT with the head `config.objective.head`, built with `config.objective.head_options`.

    Subclasses set Model, the class of the model, and define `around` and `copy_head`.
    """

    Model: ClassVar[type]
    reads = ("head", "resample", "freeze", "linear_probe", "quantization")
    keeps_for_other_classes = False  # whether config.head="keep" takes a head with another number of classes

    def around(self, encoder: Any, source: Any, head: str, head_options: dict[str, Any], **arguments: Any) -> Any:
        """Builds a Model for the source's classes on an encoder, or on a variant's name with its arguments."""
        raise NotImplementedError

    def copy_head(self, model: Any, trained: Any) -> None:
        """Copies the head's weights from `trained`, a similar Model, to `model`; ValueError if they do not fit."""
        raise NotImplementedError

    def check_config(self) -> None:
        super().check_config()
        head = self.config.head
        check_known(head, "config.head=", HEADS)
        check_resample(self.config)

    def check_same_classes(self, train: Any, held_out: Any) -> None:
        """Raises ValueError if two sources have different classes."""
        data = self.config.data
        if train.class_names != held_out.class_names:
            raise ValueError(
                f"The classes of {data.train} and {data.evaluation} differ: {train.class_names},"
                f" {held_out.class_names}."
            )

    def check_model(self, model: keras.Model, source: Any) -> None:
        places(model, source)  # refuses other classes

    def build(self, source: Any) -> keras.Model:
        options, arguments = self.options, model_arguments(self.config)
        return self._frozen(self.around(variant(self.config), source, options.head, options.head_options, **arguments))

    def load(self, source: Any) -> keras.Model:
        """Loads the encoder in `config.init` with a new head, or with config.head="keep" a Model and its head."""
        if self.config.head == "keep":
            trained = in_floats(load(self.config.init), self.config.init)
            if not isinstance(trained, self.Model):
                raise ValueError(
                    f"--config.head=keep keeps the head of a {self.Model.__name__}, and {self.config.init} contains a"
                    f" {type(trained).__name__}. Start with a new head: --config.head=reset."
                )
            return self._frozen(self._kept(trained, source))
        encoder = loaded(self.config, head="drop")
        preprocessing = self.config.data.eval_preprocess
        options = self.options
        model = self.around(encoder, source, options.head, options.head_options, preprocessing=preprocessing)
        return self._frozen(model)

    def adapted(self, described: dict[str, Any], source: Any) -> dict[str, Any]:
        return adapted(self.config, described, head="drop")

    def _frozen(self, model):
        """Freezes the layers named by the config."""
        if self.config.linear_probe:
            for layer in model.get_encoder().layers:
                layer.trainable = False
        elif self.config.freeze:
            logging.info("Frozen: %s", ", ".join(freeze(model, self.config.freeze)))
        return model

    def _kept(self, trained, source):
        """Adapts the Model in `config.init`, with its head, to the config's image size."""
        config, options = self.config, self.options
        self._check_head(trained, source)
        check_variant(config, trained.spec)
        method = config.resample or "google"
        encoder = transfer(trained.get_encoder(), head="drop", resample=method, **model_arguments(config))
        head_options = {**trained.head_options, **options.head_options}
        preprocessing = config.data.eval_preprocess
        model = self.around(encoder, source, trained.head_name, head_options, preprocessing=preprocessing)
        try:
            self.copy_head(model, trained)
        except ValueError as error:
            raise ValueError(
                f"--config.objective.head_options={options.head_options} does not fit the weights of the head in"
                f" {config.init}, which has {trained.head_options} ({error}). {_advice(trained, options)} or start with"
                " a new head: --config.head=reset."
            ) from error
        return model

    def _check_head(self, trained, source):
        """Refuses to keep a head of another kind or with other classes."""
        init, names = self.config.init, tuple(source.class_names)
        new = "start with a new head: --config.head=reset"
        if trained.head_name != self.options.head:
            raise ValueError(
                f"The model in {init} has the head {trained.head_name}, but the config has {self.options.head}: keep"
                f" the model's head, --config.objective.head={trained.head_name}, or {new}."
            )
        if trained.classes != len(names):
            if self.keeps_for_other_classes:
                return
            raise ValueError(
                f"The model in {init} has {trained.classes} classes, but the data has {len(names)}: {new}."
            )
        own = trained.class_names
        if own is not None and compared(own, names) != SAME:
            raise ValueError(
                f"The model in {init} has the classes {own[:5]}, but the data has {names[:5]}. Its head would be wrong:"
                f" {new}."
            )
