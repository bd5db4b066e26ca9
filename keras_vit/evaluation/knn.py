"""Weighted k-nearest-neighbour classification on frozen features, as in DINO (arXiv 1805.01978, section 3.4)."""

import dataclasses
from typing import ClassVar

import numpy as np

from keras_vit.data.splits import overlap
from keras_vit.evaluation.features import FeatureEvaluator, FeatureSplits, test_accuracy
from keras_vit.evaluation.registry import Evaluation, register
from keras_vit.io.progress import stage

_ROWS = 512  # test features to compare at once


def _unit(features):
    x = np.asarray(features, "float32")
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _check(k, temperature, examples):
    """Raises ValueError for fewer than k training examples, or a temperature that is not positive."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: expected a number above 0.")
    if not 1 <= k <= examples:
        raise ValueError(f"k={k} neighbours: expected 1 to {examples}, the number of training examples.")


def _votes(train, train_labels, test_features, classes, k, temperature):
    """The scores of `knn_scores`, with training features (m, d) of length 1."""
    votes = np.zeros((len(test_features), classes), "float32")
    for start in range(0, len(test_features), _ROWS):
        cosine = _unit(test_features[start : start + _ROWS]) @ train.T  # (rows, m)
        nearest = np.argpartition(-cosine, k - 1, axis=-1)[:, :k]  # (rows, k)
        near = np.take_along_axis(cosine, nearest, axis=-1)
        weights = np.exp((near - near.max(axis=-1, keepdims=True)) / temperature)
        rows = np.arange(start, start + len(cosine))[:, None]
        np.add.at(votes, (rows, train_labels[nearest]), weights)
    return votes


def knn_scores(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> np.ndarray:
    """(n, classes) float32 scores: each of the k nearest neighbours adds exp(cosine / temperature) for its class.

    Each row is divided by its nearest neighbour's vote to keep small temperatures from overflowing.

    Args:
        train_features, train_labels: (m, d) and (m,).
        test_features: (n, d).
        classes: number of classes.
        k: number of neighbours.
        temperature: smaller values favour the nearest neighbours.

    Raises:
        ValueError: fewer than k training examples, or a temperature that is not positive.
    """
    _check(k, temperature, len(train_features))
    return _votes(_unit(train_features), train_labels, test_features, classes, k, temperature)


@register("knn")
@dataclasses.dataclass(frozen=True)
class NearestNeighbours(FeatureEvaluator):
    """Weighted k-nearest-neighbour classification by test batch; keeps the training features in memory.

    Attributes:
        source, train, test, preprocess, dtype, block: as in FeatureEvaluator.
        k: number of neighbours, at most the number of training examples.
        temperature: smaller values favour the nearest neighbours.
    """

    title: ClassVar[str] = "k-NN"
    k: int = 20
    temperature: float = 0.07

    def __post_init__(self):
        if overlap(self.train, self.test):
            raise ValueError(
                f'knn: the splits train="{self.train}" and test="{self.test}" share images, and each would be its own'
                ' nearest neighbour. Use disjoint splits, such as train="train[:90%]" and test="train[90%:]".'
            )

    def evaluate(self, splits: FeatureSplits) -> Evaluation:
        features, labels = splits.train()
        k, train = min(self.k, len(features)), _unit(features)
        _check(k, self.temperature, len(features))
        with stage(f"Comparing with {len(features):,} neighbours", splits.test_source.size, "images") as work:

            def scores(batch):
                parts = (batch[i : i + _ROWS] for i in range(0, len(batch), _ROWS))
                votes = []
                for part in parts:
                    votes.append(_votes(train, labels, part, splits.classes, k, self.temperature))
                    work.advance(len(part))
                return np.concatenate(votes)

            measures = test_accuracy(splits, scores)
        return Evaluation(measures, {"features": features.shape[1], "train_images": len(features), "k": k})
