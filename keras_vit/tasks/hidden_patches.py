"""Base of tasks that learn from hidden patches of images without labels."""

import dataclasses
import functools
import math
import typing
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.checkpoints import load
from keras_vit.evaluation.reconstructions import picture
from keras_vit.inspection import html_report
from keras_vit.models import ViTSpec
from keras_vit.pretraining.masked_model import MaskedModel, hidden_count
from keras_vit.tasks.classification import spec_overrides, variant
from keras_vit.tasks.task import Task

_SHOWN = 8  # reconstructions in a report
# Fields of the initial model that a run may change.
_RATES = ("dropout", "attention_dropout", "drop_path", "position_std", "patch_form")


class HiddenPatches(Task):
    """Subclasses define a model class, which takes the task's options, and `select`, `loss` and `Options`."""

    model_class: ClassVar[type[MaskedModel]]

    @functools.cached_property
    def spec(self) -> ViTSpec:
        """The encoder's spec."""
        return self.model_class.encoder_spec(variant(self.config), **spec_overrides(self.config))

    @functools.cached_property
    def patches(self) -> int:
        """Number of patches in an image."""
        size = self.config.model.image_size
        sides = (size, size) if isinstance(size, int) else size
        return math.prod(side // patch for side, patch in zip(sides, self.spec.patch_size))

    @functools.cached_property
    def hidden(self) -> int:
        """Number of hidden patches."""
        return hidden_count(self.patches, self.options.mask_ratio)

    def check_config(self) -> None:
        super().check_config()
        if self.config.model.variant and "/" not in self.config.model.variant:
            raise ValueError(
                f"The task {type(self).__name__} hides patches of a ViT, got"
                f' config.model.variant="{self.config.model.variant}".'
            )

    def build(self, source: Any) -> keras.Model:
        config, make = self.config, typing.cast(Any, self.model_class)
        return make(
            self.spec,
            config.model.image_size,
            config.model.channels,
            preprocessing=config.data.eval_preprocess,
            remat=config.model.remat,
            dtype=config.dtype,
            **dataclasses.asdict(self.options),
        )

    def load(self, source: Any) -> keras.Model:
        model, config = load(self.config.init), self.config
        if not isinstance(model, self.model_class):
            raise ValueError(
                f"{type(self).__name__} expected a {self.model_class.__name__} in {config.init}, got a"
                f" {type(model).__name__}."
            )
        arguments = model.arguments()
        settings = {"preprocessing": config.data.eval_preprocess, "remat": config.model.remat, "dtype": config.dtype}
        changed = type(model)(**{**arguments, "variant": self._trained_anew(arguments), **settings})
        changed.set_weights(model.get_weights())
        return changed

    def adapted(self, described: dict[str, Any], source: Any) -> dict[str, Any]:
        missing = dataclasses.asdict(self.options).keys() - described.keys()
        if missing:
            raise ValueError(
                f"{type(self).__name__} expected a {self.model_class.__name__} in {self.config.init}, got another"
                " model."
            )
        described = {**described, "variant": dataclasses.asdict(described["variant"])}
        return {**described, "variant": ViTSpec(**self._trained_anew(described))}

    def _trained_anew(self, arguments):
        """Returns fields of the initial encoder's spec: _RATES from the config, the others from the file.

        Raises:
            ValueError: if the config describes a different model.
        """
        config, options = self.config, dataclasses.asdict(self.options)
        spec = dataclasses.asdict(self.spec)
        size = tuple(np.broadcast_to(config.model.image_size, 2).tolist())
        wanted = {**spec, "image_size": size, "channels": config.model.channels, **options}
        own = {**arguments["variant"], **{name: arguments[name] for name in ("image_size", "channels", *options)}}
        own["image_size"] = tuple(own["image_size"])
        if wanted.get("decoder_mlp_dim", 0) is None:
            wanted["decoder_mlp_dim"] = own["decoder_mlp_dim"]
        differences = [
            f"{name} {own[name]!r}, not {value!r}"
            for name, value in wanted.items()
            if name not in _RATES and own[name] != value
        ]
        if differences:
            raise ValueError(
                f"The model in {config.init} does not match config.model and config.objective: it has"
                f" {'; '.join(differences)}. Set them accordingly."
            )
        return {**arguments["variant"], **{name: spec[name] for name in _RATES}}

    def report(self, model: Any, evaluation: Any, samples: Any, records: list[dict]) -> list[str]:
        sections = super().report(model, evaluation, samples, records)
        images = samples[0]["image"][:_SHOWN]
        if not len(images) or "reconstructions" in self.config.evals:  # the evaluator's pictures follow
            return sections
        from keras_vit.inspection import figures

        drawn = html_report.embedded(figures.png(picture(model.reconstruct(images))), "reconstructions")
        note = (
            f"Top: images. Middle: {model.mask_ratio:.0%} of their patches hidden. Bottom: the model's predictions of"
            " the hidden patches."
        )
        return [*sections, html_report.section("Reconstructions", drawn, note)]
