"""Features of a frozen model, by batch, for evaluators that fit a classifier to them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.data import ExampleErrors, evaluation_batches, image_and_label, open_source
from keras_vit.data.sources.folder import folders_read_once
from keras_vit.data.sources.selection import subset
from keras_vit.data.splits import overlap
from keras_vit.data.usual_splits import usual_splits
from keras_vit.evaluation.data import default_preprocessing
from keras_vit.evaluation.loss_and_metrics import check_preprocessing
from keras_vit.evaluation.registry import Evaluation, Evaluator, Setting
from keras_vit.fit.model import Model
from keras_vit.io.progress import stage
from keras_vit.io.suggest import check_known
from keras_vit.models import taps

DTYPES = ("float32", "float16")


def find_encoder(model: keras.Model) -> keras.Model:
    """The model to take features from: the result of `get_encoder`, or a plain Keras model itself."""
    return model.get_encoder() if hasattr(model, "get_encoder") else model


def mean_of_block(model: keras.Model, block: int) -> keras.KerasTensor:
    """Output of a ViT's or BiT's block, averaged over patches: symbolic (b, d) float32. ValueError if it has no such
    block.
    """
    # (b, h, w, d) -> (b, d)
    return keras.ops.mean(keras.ops.cast(taps.feature_map(model, block), "float32"), axis=(1, 2))


class Embedder:
    """Computes features of a source's images, with the model's weights at the time of the call.

    Args:
        model: a ViT or BiT, or a model built on one. Create it and its Embedder in the scope of the strategy.
        preprocess: preprocessing text; None for the model's own, or a resize to 8/7 of its size and a central crop.
        batch_size: images per batch.
        dtype: "float32", or "float16" to halve the memory of the features.
        verbose: whether to show progress.
        output: (b, d) tensor of the model to compute instead of the features, such as its logits.
        select: function from a preprocessed example to (image, integers), which replace the label.
        errors: collects unreadable images; None for a new ExampleErrors with a limit of 100 for each source.

    Raises:
        ValueError: an unknown dtype, or a model without features.
    """

    def __init__(
        self,
        model: keras.Model,
        preprocess: str | None,
        batch_size: int,
        dtype: str = "float32",
        verbose: bool = False,
        output: keras.KerasTensor | None = None,
        select: Callable = image_and_label,
        errors: ExampleErrors | None = None,
    ):
        check_known(dtype, "dtype of features", DTYPES)
        self._doing, self._what = ("Embedding", "features") if output is None else ("Predicting", "outputs")
        if output is None:
            model = find_encoder(model)
            own = getattr(model, "features", None)
            output = taps.features(model) if own is None else own
        preprocess = default_preprocessing(find_encoder(model)) if preprocess is None else preprocess
        self._extractor = Model(model.input, output)
        self._extractor.jit_compile = model.jit_compile
        self._preprocess, self._batch_size, self._dtype, self._verbose = preprocess, batch_size, dtype, verbose
        self._select, self._errors = select, errors

    @property
    def preprocess(self) -> str:
        return self._preprocess

    def check(self, source: Any) -> None:
        """Raises ValueError unless preprocessed images have the model's size."""
        check_preprocessing(self._preprocess, source, self._extractor, self._select)

    def _numbered_batches(self, source):
        """As `batches`, with the images' positions (b,) in the source."""
        self.check(source)
        errors = self._errors or ExampleErrors()
        batches = evaluation_batches(source, self._preprocess, self._batch_size, errors=errors, select=self._select)
        with errors.raised(), stage(f"{self._doing} {source.name}", source.size, "images", self._verbose) as work:
            for first, (images, labels, weights) in enumerate(batches):
                counted = np.flatnonzero(np.asarray(weights) > 0)
                if not len(counted):
                    continue
                features = np.asarray(self._extractor.predict_on_batch(np.asarray(images)))
                found = features[counted].astype(self._dtype)
                if not np.isfinite(found).all():
                    raise ValueError(self._not_finite(source))
                work.advance(len(counted))
                numbers = first * self._batch_size + counted
                yield found, np.asarray(labels)[counted].astype("int64"), numbers

    def _not_finite(self, source):
        """The message for features that no classifier can be fitted to, and scores that all classes would tie in."""
        smaller = ' Or they are too large for float16: write dtype="float32".' if self._dtype == "float16" else ""
        return (
            f"The model's {self._what} are not finite for some images of {source.name}: training has diverged, or the"
            f" weights are damaged. Use an earlier checkpoint.{smaller}"
        )

    def batches(self, source: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(features (b, d), labels (b,) int64) of a source's readable images, by batch.

        Raises:
            ValueError: preprocessed images have another size than the model's, or too many are unreadable.
        """
        for features, labels, _ in self._numbered_batches(source):
            yield features, labels

    def numbered(self, source: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All features (n, d), labels (n,) and ascending positions (n,) of a source; ValueError as in `batches`."""
        features, labels, numbers, n = None, np.empty(source.size, "int64"), np.empty(source.size, "int64"), 0
        for batch, truth, places in self._numbered_batches(source):
            if features is None:  # allocated once: concatenating batches would double the memory
                features = np.empty((source.size, batch.shape[1]), self._dtype)
            part = slice(n, n + len(batch))
            features[part], labels[part], numbers[part] = batch, truth, places
            n += len(batch)
        if features is None:
            raise ValueError(f"None of the images of {source.name} can be used: the warnings say why.")
        return features[:n], labels[:n], numbers[:n]

    def __call__(self, source) -> tuple[np.ndarray, np.ndarray]:
        """All features (n, d) and labels (n,) of a source."""
        return self.numbered(source)[:2]


class FeatureSplits:
    """The features of a training and a test split.

    Args:
        embedder: Embedder of the images.
        train, test: sources with the same classes.
        keep: whether to keep all features in memory for several evaluators; otherwise training features are computed on
            demand, and test features by batch.
        data_dir: folder with other splits of the data.
    """

    def __init__(self, embedder: Embedder, train: Any, test: Any, keep: bool = False, data_dir: str | None = None):
        self.embedder, self.train_source, self.test_source = embedder, train, test
        self.data_dir, self._keep = data_dir, keep
        self.classes = len(train.class_names)

    @functools.cached_property
    def _whole_train(self):
        return self.embedder.numbered(self.train_source)

    @functools.cached_property
    def _whole_test(self):
        return self.embedder(self.test_source)

    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of the training split's readable images."""
        return self._whole_train[:2] if self._keep else self.embedder(self.train_source)

    def train_at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, labels and positions of the readable training examples among the ascending positions `numbers`."""
        if not self._keep:
            features, labels, rows = self.embedder.numbered(subset(self.train_source, numbers))
            return features, labels, numbers[rows]
        features, labels, readable = self._whole_train
        rows = np.flatnonzero(np.isin(readable, numbers))
        return features[rows], labels[rows], readable[rows]

    def test(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of test features and labels; ValueError if no test image is readable."""
        n = 0
        for features, labels in [self._whole_test] if self._keep else self.embedder.batches(self.test_source):
            n += len(labels)
            yield features, labels
        if not n:
            raise ValueError(
                f"None of the {self.test_source.size} examples of {self.test_source.name} can be used: the warnings say"
                " why."
            )


def top_hits(scores: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Number of rows of scores (n, classes) with their label (n,) in the top k; the first class wins ties."""
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return int((best == labels[:, None]).any(axis=-1).sum())


def test_accuracy(splits: FeatureSplits, scores: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """ "examples", "top1" and, above 5 classes, "top5" on the test split; `scores`: features (b, d) -> (b, classes)."""
    hits, n = {1: 0, 5: 0}, 0
    for features, labels in splits.test():
        values = scores(features)
        hits = {k: hit + top_hits(values, labels, k) for k, hit in hits.items()}
        n += len(labels)
    top5 = {"top5": hits[5] / n} if splits.classes > 5 else {}
    return {"examples": n, "top1": hits[1] / n, **top5}


@dataclasses.dataclass(frozen=True)
class FeatureEvaluator(Evaluator):
    """Base class of evaluators that fit a classifier on a training split's features and classify a test split.

    A subclass defines `evaluate(splits)`.

    Attributes:
        source: data source, as in config.data.source.
        train, test: splits of that source; by default train and test, or else those of `usual_splits`.
        preprocess: preprocessing text; None for the model's own, or a resize to 8/7 of its size and a central crop.
        dtype: "float32" or "float16" features.
        block: index of a block, negative from the end, to use its output, averaged over patches, as features (iGPT is
            best in its middle). None for the model's features.
    """

    source: str | None = None
    train: str = "train"
    test: str = "test"
    preprocess: str | None = None
    dtype: str = "float32"
    block: int | None = None

    def evaluate(self, splits: FeatureSplits) -> Evaluation:
        raise NotImplementedError

    def check(self, splits: FeatureSplits) -> None:
        """Rejects invalid splits before embedding; warns if training and test splits overlap."""
        if overlap(self.train, self.test):
            logging.warning(
                "The splits %s and %s share images: %s is tested on training images, and its accuracy says nothing"
                " about others. Use disjoint splits, such as train[:90%%] and train[90%%:].",
                self.train,
                self.test,
                type(self).__name__,
            )

    def about(self, preprocess: str) -> dict[str, Any]:
        """The data and preprocessing, for the details."""
        block = {} if self.block is None else {"block": self.block}
        return {"source": self.source, "train": self.train, "test": self.test, "preprocess": preprocess, **block}

    def check_options(self) -> None:
        if self.source is None:
            raise ValueError(
                'An evaluator on frozen features needs training data: set its source, such as source="cifar10".'
            )

    def _with_splits(self, data_dir):
        """This evaluator with its source's usual splits if none were chosen."""
        if self.source is None or (self.train, self.test) != ("train", "test"):
            return self
        train, test = usual_splits(self.source, data_dir)
        if test != "test":
            logging.info(
                '%s has no test split: fitting on %s, testing on %s. To use others, set train="..." and test="...".',
                *(self.source, train, test),
            )
        return dataclasses.replace(self, train=train, test=test)

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        self.check_options()
        preprocess = self.preprocess or default_preprocessing(find_encoder(setting.model))
        verbose = setting.verbose and setting.strategy.chief
        with setting.strategy.scope():
            output = None if self.block is None else mean_of_block(find_encoder(setting.model), self.block)
            embedder = Embedder(
                setting.model, preprocess, setting.batch_size, self.dtype, verbose, output, errors=setting.errors
            )
        with folders_read_once():
            chosen = self._with_splits(setting.data_dir)
            train, test = open_pair(chosen.source, chosen.train, chosen.test, setting.data_dir)
        splits = FeatureSplits(embedder, train, test, data_dir=setting.data_dir)
        chosen.check(splits)

        def evaluate():
            evaluation = chosen.evaluate(splits)
            return dataclasses.replace(evaluation, details={**chosen.about(preprocess), **evaluation.details})

        return evaluate


def open_pair(name: str, train: str, test: str, data_dir: str | None) -> tuple[Any, Any]:
    """The sources of two splits; ValueError if their classes differ."""
    with folders_read_once():
        sources = open_source(name, train, data_dir), open_source(name, test, data_dir)
    if sources[0].class_names != sources[1].class_names:
        raise ValueError(f"{name}: the classes of {train} and {test} differ.")
    return sources
