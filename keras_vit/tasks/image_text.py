"""Images with their texts (CLIP, arXiv 2103.00020; SigLIP, 2303.15343), or texts for a frozen image encoder (LiT,
2111.07991).
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import evaluation as evaluators
from keras_vit.answers import check_answers
from keras_vit.checkpoints import load
from keras_vit.data.captions import check_texts, image_and_tokens
from keras_vit.data.sources.base import Source
from keras_vit.image_text.contrastive import Contrastive
from keras_vit.image_text.contrastive_losses import PairAccuracy, SigmoidContrastive, SoftmaxContrastive
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.image_text.zero_shot import resolve_templates
from keras_vit.inspection import html_report
from keras_vit.io.suggest import check_known
from keras_vit.io.tokenizer import Tokenizer
from keras_vit.models import TextEncoder, build, make_text_spec
from keras_vit.tasks.classification import adapted, check_resample, loaded, model_arguments, variant
from keras_vit.tasks.dense_task import plain_options
from keras_vit.tasks.task import Score, Task

LOSSES = {"sigmoid": SigmoidContrastive, "softmax": SoftmaxContrastive}


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective.

    Attributes:
        frozen: whether the image encoder keeps its weights (LiT).
        text: variant of the new text encoder, such as "SigLIP-B"; None for the text encoder in config.init.
        text_options: fields that differ from the variant's, such as {"depth": 4, "length": 16}. The size of the
            vocabulary is the tokenizer's.
        tokenizer: path of a tokenizer.json or its folder; None for the one in config.init.
        templates: for sources with classes and no texts: a name in image_text.zero_shot.TEMPLATES, or texts with "{}"
            for the class's name. An example's text is drawn from them.
        projection: width of a linear layer after the image encoder, as in CLIP; None for none.
    """

    frozen: bool = True
    text: str | None = "SigLIP-B"
    text_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer: str | None = None
    templates: str | tuple[str, ...] = "photo"
    projection: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "text_options", plain_options(self.text_options))


def _text_fields(options, tokenizer):
    """The fields of the new text encoder that follow from the tokenizer, if known, and the options."""
    spec, fields = make_text_spec(options.text), dict(options.text_options)
    if tokenizer is None:
        return fields
    own = {"vocabulary": tokenizer.size, **({"end": tokenizer.end} if spec.pool == "end" else {})}
    if fields.get("vocabulary", tokenizer.size) < tokenizer.size:
        raise ValueError(
            f"config.objective.text_options: a vocabulary of {fields['vocabulary']} is smaller than the tokenizer's,"
            f" {tokenizer.size}. Leave it out."
        )
    return {**own, **fields}


class ImageText(Task):
    """A keras_vit.DualEncoder that tells which image and text of a batch belong together."""

    score = Score("image_to_text_recall1", title="texts found, recall at 1", percent=True, curve="val_pair_accuracy")
    reads = ("loss.name", "resample")
    Options = Options
    samples = 1  # the report shows no examples

    def __init__(self, config: ConfigDict):
        super().__init__(config)
        self._select = None

    def check_config(self) -> None:
        super().check_config()
        config, options = self.config, self.options
        check_known(config.loss.name, "loss", LOSSES)
        for key in ("batch_size", "micro_batches"):
            if (config[key] < 2) == (key == "batch_size"):
                raise ValueError(
                    f"--config.{key}={config[key]}: image_text learns by comparing all images and texts of a batch: use"
                    " 2 or more examples, undivided (--config.micro_batches=1)."
                )
        if options.frozen and not config.init:
            raise ValueError(
                "A frozen image encoder with random weights gives no useful features: name a trained one with"
                " --config.init, or train it, too, with --config.objective.frozen=False."
            )
        if options.text is None and not config.init:
            raise ValueError("objective.text=None takes the text encoder of --config.init, which is not set.")
        if options.text is None and (options.text_options or options.projection):
            raise ValueError("objective.text_options and projection describe a new text encoder, but text is None.")
        if options.text is not None:
            make_text_spec(options.text, **options.text_options)
        resolve_templates(options.templates)
        check_resample(config)

    # Data

    def check_data(self, train: Any, held_out: Any) -> None:
        if train.class_names != held_out.class_names:
            raise ValueError(f"The classes of {self.config.data.train} and {self.config.data.evaluation} differ.")
        if len(train.class_names) == 1:
            raise ValueError(f'All images of {train.name} have the class "{train.class_names[0]}": nothing to learn.')

    def select(self, example: dict[str, Any]) -> tuple:
        """((image (h, w, c), token ids (n,)), 0)."""
        if self._select is None:
            raise ValueError(
                "Texts need a tokenizer: set --config.objective.tokenizer to the path of a tokenizer.json, or start"
                " from a model that has one."
            )
        return self._select(example)

    def _prepare_texts(self, tokenizer, source):
        """Sets what `select` does with a source's texts or classes."""
        if tokenizer is not None:
            templates = resolve_templates(self.options.templates)
            self._select = image_and_tokens(tokenizer, source.class_names, templates)

    def check_model(self, model: keras.Model, source: Any) -> None:
        check_answers(model, "embeddings")
        self._prepare_texts(model.tokenizer, source)

    # Model

    def build(self, source: Any) -> keras.Model:
        return self._around(build(variant(self.config), classes=None, **model_arguments(self.config)))

    def load(self, source: Any) -> keras.Model:
        if self.options.text is None:
            return self._load_pair(load(self.config.init, text=True, tokenizer=self.options.tokenizer))
        return self._around(loaded(self.config, head="drop"))

    def adapted(self, described: dict[str, Any], source: Any) -> dict[str, Any] | None:
        return None if self.options.text is None else adapted(self.config, described, head="drop")

    def model(self, source: Any) -> keras.Model:
        model = super().model(source)
        tokenizer = model.dual_encoder.tokenizer
        self._prepare_texts(tokenizer, source)
        if tokenizer is not None and isinstance(source, Source) and not source.class_names:
            check_texts(source, tokenizer)
        return model

    def _around(self, image):
        """The pair of an image encoder and a new text encoder."""
        options, tokenizer = self.options, None
        if options.tokenizer is not None:
            length = make_text_spec(options.text, **options.text_options).length
            tokenizer = Tokenizer.load(options.tokenizer, length)
        fields = {"outputs": options.projection or image.output_shape[-1], **_text_fields(options, tokenizer)}
        remat = self.config.model.remat is True
        text = TextEncoder(options.text, remat=remat, dtype=self.config.dtype, **fields)
        return self._trained(DualEncoder(image, text, self.config.loss.name, options.projection, tokenizer))

    def _load_pair(self, model):
        """The pair in config.init; ValueError if the config describes another."""
        config, encoder = self.config, model.image_encoder
        size = config.model.image_size
        pairs = {
            "loss.name": (config.loss.name, model.activation),
            "dtype": (config.dtype, encoder.dtype_policy.name),
            "model.image_size": (tuple(np.broadcast_to(size, 2).tolist()), tuple(encoder.image_size)),
        }
        different = [f"--config.{key}={own}" for key, (wanted, own) in pairs.items() if wanted != own]
        if different:
            raise ValueError(f"The model in {config.init} differs from the config: set {', '.join(different)}.")
        vocabulary = model.text_encoder.text_spec.vocabulary
        if model.tokenizer is not None and model.tokenizer.size > vocabulary:
            raise ValueError(
                f"The tokenizer has {model.tokenizer.size} tokens, and the text encoder in {config.init} {vocabulary}:"
                " take the tokenizer that it was trained with."
            )
        model.preprocessing = encoder.preprocessing = config.data.eval_preprocess
        return self._trained(model)

    def _trained(self, model):
        model.image_encoder.trainable = not self.options.frozen
        return Contrastive(model)

    def deliver(self, model: keras.Model) -> keras.Model:
        return model.dual_encoder

    # Training and evaluation

    def loss(self, source: Any) -> keras.losses.Loss:
        return LOSSES[self.config.loss.name]()

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric]:
        return [PairAccuracy()]

    def evaluator(self) -> evaluators.Evaluator:
        return evaluators.Retrieval(templates=self.options.templates)

    def report(self, model: Any, evaluation: Any, samples: Any, records: list[dict]) -> list[str]:
        facts = [("parameters", model.count_params()), ("of the text encoder", model.text_encoder.count_params())]
        return [html_report.table([*self._shown(evaluation.measures), *facts]), self._learning_curves(records)]
