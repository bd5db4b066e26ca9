"""Few-shot evaluation (arXiv 2010.11929, section 4.1): ridge regression on frozen features of a few examples per class.

Details that the paper leaves open follow big_vision: whitened features, a constant column for the bias, l2 = 2^10.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

from keras_vit.data import open_source
from keras_vit.data.sources.selection import read_labels
from keras_vit.data.splits import overlap
from keras_vit.evaluation.features import FeatureEvaluator, FeatureSplits, top_hits
from keras_vit.evaluation.linear_probe import accuracy, best_penalty, ridge_head, scores
from keras_vit.evaluation.registry import Evaluation, register
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, listed

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10


def draw(labels, class_names, count, seed):
    """Samples `count` examples per class: positions (classes, count) in random order; the first k columns are k shots.

    Args:
        labels: (n,) integers.
        class_names: class names in the order of the labels.
        count: examples per class.
        seed: seed of the order.

    Raises:
        ValueError: classes with fewer examples, which the message lists.
    """
    by_class = np.split(
        np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=len(class_names)))[:-1]
    )
    short = [f"{name} ({len(numbers)})" for name, numbers in zip(class_names, by_class) if len(numbers) < count]
    if short:
        raise ValueError(
            f"shots={count} needs {counted(count, 'example')} of every class. {len(short)} of {len(class_names)}"
            f" classes have fewer: {listed(short)}. Use fewer shots, or a larger part of the data."
        )
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(numbers)[:count] for numbers in by_class])


def _heads(features, labels, draws, shots, l2):
    """A head per draw, fitted on its first `shots` examples of each class; -1 stands for none."""
    chosen = [positions[:, :shots].reshape(-1) for positions in draws]  # (classes, shots) -> (classes * shots,)
    chosen = [rows[rows >= 0] for rows in chosen]
    return [ridge_head(features[rows], labels[rows], len(draws[0]), l2) for rows in chosen]


def _readable(draws, numbers, class_names):
    """The draws as places in `numbers`, the ascending positions of readable examples; -1, last in its row, for others.

    Warns about classes with fewer examples than drawn. ValueError for classes without any, which the message lists.
    """
    found = []
    for positions in draws:
        places = np.where(np.isin(positions, numbers), np.searchsorted(numbers, positions), -1)
        found.append(np.take_along_axis(places, np.argsort(places < 0, axis=1, kind="stable"), axis=1))
    left = np.min([(places >= 0).sum(axis=1) for places in found], axis=0)  # (classes,)
    none = [name for name, count in zip(class_names, left) if not count]
    if none:
        raise ValueError(
            f"None of the drawn training images of {listed(none)} can be read; the warnings name them. Fix or remove"
            " them."
        )
    few = [f"{name} ({count})" for name, count in zip(class_names, left) if count < found[0].shape[1]]
    if few:
        logging.warning("few_shot: unreadable images leave some classes fewer examples than drawn: %s.", listed(few))
    return found


def _penalty(features, labels, draws, shots, penalties, validation):
    """The l2 of the most accurate heads on `validation`, (features, labels)."""
    if len(penalties) == 1:
        return penalties[0]
    heads = {l2: _heads(features, labels, draws, shots, l2) for l2 in penalties}
    return best_penalty({l2: np.mean([accuracy(*validation, head) for head in heads[l2]]) for l2 in penalties})


def _result(runs, l2, penalties):
    """Result for one number of shots from the accuracies of its draws."""
    chosen = {"l2": l2} if len(penalties) > 1 else {}
    return {"mean": float(np.mean(runs)), "std": float(np.std(runs)), "runs": runs, **chosen}


def few_shot(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2: float | Sequence[float] = L2,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    draws: Sequence[np.ndarray] | None = None,
) -> dict[int, dict[str, Any]]:
    """Accuracy of a linear classifier fitted on a few examples per class.

    Args:
        train_features, train_labels: (m, d) and (m,). Examples to sample from.
        test_features, test_labels: (n, d) and (n,). Examples to classify.
        shots: numbers of examples per class.
        seeds: seeds, one per draw.
        l2: penalty, or several to choose from on `validation` for each number of shots.
        validation: (features, labels) to choose among several l2.
        draws: results of `draw`, positions in train_features, instead of `seeds`.

    Returns:
        {shots: {"mean", "std", "runs"}}, accuracies from 0 to 1; std is the population's, over the draws. With several
            l2, also "l2", the chosen one.

    Raises:
        ValueError: too few examples of a class, or several l2 without `validation`.
    """
    penalties = np.atleast_1d(l2).tolist()
    if len(penalties) > 1 and validation is None:
        raise ValueError(f"l2={penalties}: to choose among several penalties, pass validation=(features, labels).")
    if draws is None:
        names = [str(i) for i in range(1 + max(train_labels.max(), test_labels.max()))]
        draws = [draw(train_labels, names, max(shots), seed) for seed in seeds]
    results = {}
    for count in shots:
        best = _penalty(train_features, train_labels, draws, count, penalties, validation)
        heads = _heads(train_features, train_labels, draws, count, best)
        results[count] = _result([accuracy(test_features, test_labels, head) for head in heads], best, penalties)
    return results


def whole_numbers(value, name: str) -> tuple[int, ...]:
    """5, (1, 5) or "1,5" as a tuple of positive integers; ValueError, with the option's `name`, for anything else."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    if not parts or not all(str(part).strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{name}={value!r}: expected integers above 0, such as 1,5,10,25.")
    return tuple(int(part) for part in parts)


@register("few_shot")
@dataclasses.dataclass(frozen=True)
class FewShot(FeatureEvaluator):
    """Accuracy of ridge regression on a few examples per class.

    Only the drawn training examples are embedded; test examples are classified by batch.

    Attributes:
        source, train, test, preprocess, dtype, block: as in FeatureEvaluator.
        shots: numbers of examples per class: (1, 5), or "1,5".
        seeds: seeds of the draws.
        l2: penalty, or several to choose from on `validation` for each number of shots.
        validation: split on which to choose among several l2.
    """

    title: ClassVar[str] = "Few-shot"
    shots: tuple = SHOTS
    seeds: tuple = SEEDS
    l2: float | tuple = L2
    validation: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "shots", whole_numbers(self.shots, "shots"))
        object.__setattr__(self, "score", str(max(self.shots)))
        penalties = self.l2 if isinstance(self.l2, list | tuple) else (self.l2,)
        object.__setattr__(self, "l2", tuple(float(penalty) for penalty in penalties))
        if np.size(self.l2) > 1 and self.validation is None:
            raise ValueError(
                f"few_shot: l2 has {len(self.l2)} penalties. Set a split to choose among them, such as"
                " validation=train[90%:], and leave it out of train."
            )

    def _draws(self, splits: FeatureSplits) -> list[np.ndarray]:
        """For each seed, positions (classes, largest number of shots) in the training split."""
        labels, class_names = read_labels(splits.train_source), splits.train_source.class_names
        return [draw(labels, class_names, max(self.shots), seed) for seed in self.seeds]

    def check(self, splits: FeatureSplits) -> None:
        super().check(splits)
        shared = [split for split in (self.train, self.test) if self.validation and overlap(self.validation, split)]
        if shared:
            logging.warning(
                "few_shot: the split validation=%s shares images with %s, so the penalty is chosen on training or test"
                " images.",
                self.validation,
                " and ".join(shared),
            )
        self._draws(splits)

    def evaluate(self, splits: FeatureSplits) -> Evaluation:
        positions = self._draws(splits)
        features, labels, numbers = splits.train_at(np.unique(positions))
        draws = _readable(positions, numbers, splits.train_source.class_names)
        validation = None
        if np.size(self.l2) > 1:
            validation = splits.embedder(open_source(self.source, self.validation, splits.data_dir))
        penalties, heads = {}, {}
        with stage("Fitting few-shot classifiers", len(self.shots), "numbers of shots") as work:
            for shots in self.shots:
                penalties[shots] = _penalty(features, labels, draws, shots, self.l2, validation)
                heads[shots] = _heads(features, labels, draws, shots, penalties[shots])
                work.advance()
        hits, n = {shots: np.zeros(len(draws)) for shots in self.shots}, 0
        for batch, truth in splits.test():
            n += len(truth)
            for shots, fitted in heads.items():
                hits[shots] += [top_hits(scores(batch, head), truth, 1) for head in fitted]
        results = {
            shots: _result([float(hit / n) for hit in hits[shots]], penalties[shots], self.l2) for shots in self.shots
        }
        return Evaluation(
            {str(shots): result["mean"] for shots, result in results.items()},
            {"features": features.shape[1], "train_images": len(features), "test_images": n, "few_shot": results},
        )
