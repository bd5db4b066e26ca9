"""What the tasks share that learn from hidden patches of images without labels."""

import dataclasses
import functools
import math
import typing
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.checkpoints import load
from keras_vit.evaluation.reconstructions import picture
from keras_vit.inspection import report
from keras_vit.models import MaskedModel, ViTSpec, hidden_count
from keras_vit.tasks.base import Task
from keras_vit.tasks.classification import spec_overrides

_SHOWN = 8  # reconstructions in a report
# What a run may set anew of a model that it starts from.
_RATES = ("dropout", "attention_dropout", "drop_path", "position_std", "patch_form")


class HiddenPatches(Task):
    """A subclass names its model, whose constructor takes the task's options, and defines `select`, `loss` and `Options`."""

    model_class: ClassVar[type[MaskedModel]]

    @functools.cached_property
    def spec(self) -> ViTSpec:
        """The encoder's spec."""
        return self.model_class.encoder_spec(self.config.model.variant, **spec_overrides(self.config))

    @functools.cached_property
    def patches(self) -> int:
        """How many an image has."""
        size = self.config.model.image_size
        sides = (size, size) if isinstance(size, int) else size
        return math.prod(side // patch for side, patch in zip(sides, self.spec.patch_size))

    @functools.cached_property
    def hidden(self) -> int:
        """How many of them are hidden."""
        return hidden_count(self.patches, self.options.mask_ratio)

    def check_config(self) -> None:
        super().check_config()
        if self.config.model.variant and "/" not in self.config.model.variant:
            raise ValueError(
                f'The task {type(self).__name__} hides patches of a ViT, got config.model.variant="{self.config.model.variant}".'
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
                f"{config.init} holds a {type(model).__name__}, and {type(self).__name__} goes on with a {self.model_class.__name__}."
            )
        wanted = {**dataclasses.asdict(self.spec), "image_size": config.model.image_size, "channels": config.model.channels}
        own = {**dataclasses.asdict(model.spec), "image_size": model.image_size, "channels": model.channels}
        wanted["image_size"] = tuple(np.broadcast_to(wanted["image_size"], 2).tolist())
        wanted |= dataclasses.asdict(self.options)
        own |= {name: getattr(model, name) for name in dataclasses.asdict(self.options)}
        if wanted.get("decoder_mlp_dim", 0) is None:
            wanted["decoder_mlp_dim"] = own["decoder_mlp_dim"]
        # Of how it is trained the config says, and of what it is made the file.
        free = {name: wanted[name] for name in _RATES}
        differences = [
            f"{name} {own[name]!r}, not {value!r}" for name, value in wanted.items() if name not in free and own[name] != value
        ]
        if differences:
            raise ValueError(
                f"The model of {config.init} is another than config.model and config.objective say; it has {'; '.join(differences)}. Set "
                "them to what it has."
            )
        settings = {"preprocessing": config.data.eval_preprocess, "remat": config.model.remat, "dtype": config.dtype}
        variant = {**dataclasses.asdict(model.spec), **free}
        changed = type(model)(**{**model.arguments(), "variant": variant, **settings})
        changed.set_weights(model.get_weights())
        return changed

    def report(self, model: Any, evaluation: Any, samples: Any, records: list[dict]) -> list[str]:
        sections = super().report(model, evaluation, samples, records)
        images = samples[0]["image"][:_SHOWN]
        if not len(images) or "reconstructions" in self.config.evals:  # whose pictures follow
            return sections
        from keras_vit.inspection import figures

        drawn = report.embedded(figures.png(picture(model.reconstruct(images))), "reconstructions")
        note = f"Above the images, in the middle with {model.mask_ratio:.0%} of their patches hidden, below as the model predicts these."
        return [*sections, report.section("Reconstructions", drawn, note)]
