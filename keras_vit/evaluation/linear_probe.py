"""Linear classifiers on frozen features: ridge regression in closed form and logistic regression, with a penalty sweep.

A head is (kernel (d, classes), bias (classes,)) float64, with scores `features @ kernel + bias`. Features are whitened
with the training features' mean and standard deviation; the head includes the whitening.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from absl import logging

from keras_vit.evaluation.features import FeatureEvaluator, FeatureSplits, test_accuracy
from keras_vit.evaluation.registry import Evaluation, register
from keras_vit.io.progress import stage

HeadOf = Callable[[float], tuple[np.ndarray, np.ndarray]]  # penalty -> head
_BIAS_COLUMN = 100.0  # so large that the penalty on the bias is negligible
_ROWS = 8192  # features to convert to float64 at once
RIDGE_STRENGTHS = tuple(4.0**i for i in range(10, -3, -1))  # l2, strongest first
LOGISTIC_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # scikit-learn's C, strongest penalty first


def ridge(features: np.ndarray, targets: np.ndarray, l2: float) -> np.ndarray:
    """Weights (d, c) that minimise |features @ weights - targets|^2 + l2 |weights|^2, in closed form.

    Args:
        features: (n, d). Features with a constant column for a bias.
        targets: (n, c).
        l2: penalty, above 0.

    Raises:
        ValueError: l2 is not above 0, or the numbers of rows differ.
    """
    return _ridge(features, targets)(l2)


def _ridge(features, targets):
    """`ridge` as a function of l2, with the products of features computed once."""
    x, y = np.asarray(features, "float64"), np.asarray(targets, "float64")
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(f"Expected features (n, d) and targets (n, c), got {x.shape} and {y.shape}.")
    n, d = x.shape
    products, right = (x.T @ x, x.T @ y) if n >= d else (x @ x.T, y)

    def weights(l2):
        if not l2 > 0:
            raise ValueError(f"l2={l2}: expected a number above 0.")
        solved = np.linalg.solve(products + l2 * np.eye(len(products)), right)
        return solved if n >= d else x.T @ solved  # the same weights, from a smaller system

    return weights


def _whitening(features):
    """(mean, std), each (d,) float64, with 1e-5 added to std as in big_vision."""
    return features.mean(axis=0, dtype="float64"), features.std(axis=0, dtype="float64") + 1e-5


def ridge_head(
    features: np.ndarray, labels: np.ndarray, classes: int, l2: float = 2.0**10
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression to targets +1 and -1, as in the paper's few-shot evaluation.

    Args:
        features: (n, d).
        labels: (n,) integers below `classes`.
        classes: number of classes.
        l2: penalty.
    """
    return _ridge_heads(features, labels, classes)(l2)


def _ridge_heads(features, labels, classes):
    """`ridge_head` as a function of l2, with the products of features computed once."""
    mean, std = _whitening(features)
    white = (np.asarray(features, "float64") - mean) / std
    fitted = _ridge(np.pad(white, ((0, 0), (0, 1)), constant_values=_BIAS_COLUMN), 2.0 * np.eye(classes)[labels] - 1.0)

    def head(l2):
        weights = fitted(l2)
        kernel = weights[:-1] / std[:, None]
        return kernel, _BIAS_COLUMN * weights[-1] - mean @ kernel

    return head


def probe_head(
    features: np.ndarray, labels: np.ndarray, classes: int, seed: int = 0
) -> tuple[tuple[np.ndarray, np.ndarray], dict[str, float]]:
    """Ridge regression scaled to logits, fitted on all examples; also suits few images per class.

    The penalty is the number of features, a good average for whitened ones. The scale minimises the leave-one-out
    cross-entropy, from scores in closed form (Allen's PRESS).

    Args:
        features, labels, classes: as in `ridge_head`; two or more examples.
        seed: seed for sampling the examples to leave out, if there are more than 5,000.

    Returns:
        (head, {"scale", "accuracy", "loss"}), with leave-one-out accuracy and loss.

    Raises:
        ValueError: one example, or features that are not finite.
    """
    mean, std = _whitening(features)
    prior = 2.0 * np.bincount(labels, minlength=classes) / len(labels) - 1.0  # the mean of the targets, +1 and -1
    gram, products = float(features.shape[1]) * np.eye(features.shape[1]), 0.0
    for i in range(0, len(features), _ROWS):
        x = (np.asarray(features[i : i + _ROWS], "float64") - mean) / std
        gram += x.T @ x
        products = products + x.T @ (2.0 * np.eye(classes)[labels[i : i + _ROWS]] - 1.0 - prior)
    weights = np.linalg.solve(gram, products)
    rows = np.random.default_rng(seed).permutation(len(labels))[:5000]
    x, truth = (np.asarray(features[rows], "float64") - mean) / std, labels[rows]
    leverage = np.sum(x * np.linalg.solve(gram, x.T).T, axis=-1) + 1.0 / len(labels)
    targets = 2.0 * np.eye(classes)[truth] - 1.0
    left_out = targets - (targets - (x @ weights + prior)) / (1.0 - leverage)[:, None]
    best = {"loss": np.inf}
    for scale in 2.0 ** np.arange(-1, 6, 0.5):
        logits = scale * (left_out - left_out.max(axis=-1, keepdims=True))
        loss = np.mean(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(x)), truth])
        if loss < best["loss"]:
            best = {"scale": float(scale), "accuracy": float(np.mean(logits.argmax(-1) == truth)), "loss": float(loss)}
    if "scale" not in best:
        raise ValueError(
            f"The linear probe's leave-one-out loss is {loss} at every scale. It needs two or more examples, got"
            f" {len(labels)}, and finite features: if these contain NaN or infinity, the model's weights are damaged."
        )
    kernel = best["scale"] * weights / std[:, None]
    return (kernel, best["scale"] * prior - mean @ kernel), best


def logistic_head(
    features: np.ndarray, labels: np.ndarray, classes: int, c: float = 1.0, max_iter: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Multinomial logistic regression, by scikit-learn's L-BFGS.

    Args:
        features, labels, classes: as in `ridge_head`. A class without examples scores -inf.
        c: weight of the summed loss relative to half of |kernel|^2; smaller values penalise more.
        max_iter: largest number of L-BFGS iterations; warns if they do not suffice.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: all examples are of one class.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError("Logistic regression needs scikit-learn: pip install scikit-learn.") from error
    mean, std = _whitening(features)
    fitted = LogisticRegression(C=c, max_iter=max_iter).fit((np.asarray(features, "float64") - mean) / std, labels)
    if fitted.n_iter_.max() >= max_iter:
        logging.warning("Logistic regression with C=%g did not converge in %d iterations.", c, max_iter)
    coefficients, intercepts = fitted.coef_, fitted.intercept_
    if len(coefficients) == 1:  # for two classes scikit-learn returns only the second's row
        coefficients, intercepts = (np.concatenate([-a / 2, a / 2]) for a in (coefficients, intercepts))
    kernel, bias = np.zeros((features.shape[1], classes)), np.full(classes, -np.inf)
    kernel[:, fitted.classes_] = coefficients.T / std[:, None]
    bias[fitted.classes_] = intercepts - mean @ kernel[:, fitted.classes_]
    return kernel, bias


def scores(features: np.ndarray, head: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Scores (n, classes) float64 of features (n, d)."""
    kernel, bias = head
    parts = [np.asarray(features[i : i + _ROWS], "float64") @ kernel + bias for i in range(0, len(features), _ROWS)]
    return np.concatenate(parts)


def accuracy(features, labels, head):
    """Share of correctly classified features (n, d)."""
    return float((scores(features, head).argmax(axis=-1) == labels).mean())


def best_penalty(accuracies: Mapping[float, float]) -> float:
    """The most accurate penalty of {penalty: accuracy}, in order of strength; logs ties and takes the middle one.

    With few held-out examples, neighbouring penalties often tie; the first would be the strongest or weakest.
    """
    most = max(accuracies.values())
    tied = [penalty for penalty, share in accuracies.items() if share == most]
    best = tied[(len(tied) - 1) // 2]
    if len(tied) > 1:
        logging.info(
            "%d of %d penalties tie at %.2f%%, %s: using the middle one, %g.",
            *(len(tied), len(accuracies), 100 * most, ", ".join(f"{penalty:g}" for penalty in tied), best),
        )
    return best


def sweep(fit, features, labels, strengths, seed=0, what="a linear classifier"):
    """Picks the best penalty on a random fifth of the examples, then fits on all of them.

    Args:
        fit: function (features, labels) -> function strength -> head.
        features, labels: (n, d) and (n,).
        strengths: penalties to try, strongest first.
        seed: seed for sampling the held-out fifth.
        what: name in the progress display.

    Returns:
        (head, strength, {strength: accuracy on the held-out fifth}).
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, kept = order[: len(order) // 5], order[len(order) // 5 :]
    if not len(held_out):
        raise ValueError(f"A sweep holds out a fifth of the examples: expected at least 5, got {len(labels)}.")
    accuracies = {}
    with stage(f"Fitting {what}", len(strengths) + 1, "fits") as work:
        head_of, others, truth = fit(features[kept], labels[kept]), features[held_out], labels[held_out]
        for strength in strengths:
            accuracies[strength] = accuracy(others, truth, head_of(strength))
            work.advance()
        best = best_penalty(accuracies)
        return fit(features, labels)(best), best, accuracies


class _Swept(FeatureEvaluator):
    """A linear classifier on all training features, with a penalty chosen on a held-out fifth.

    A subclass defines `fit` and `strength`, the penalty's name.
    """

    strength = ""
    strengths: Sequence[float]

    def fit(self, features: np.ndarray, labels: np.ndarray, classes: int) -> HeadOf:
        """A function of the penalty to the head; what all penalties share is computed once."""
        raise NotImplementedError

    def evaluate(self, splits: FeatureSplits) -> Evaluation:
        features, labels = splits.train()

        def fit(x, y):
            return self.fit(x, y, splits.classes)

        head, best, held_out = sweep(fit, features, labels, self.strengths, what=self.title.lower())
        details = {
            "features": features.shape[1],
            "train_images": len(features),
            self.strength: best,
            "held_out": {f"{strength:g}": share for strength, share in held_out.items()},
        }
        return Evaluation(test_accuracy(splits, lambda batch: scores(batch, head)), details)


@register("logistic")
@dataclasses.dataclass(frozen=True)
class Logistic(_Swept):
    """Multinomial logistic regression on all training features.

    Attributes:
        source, train, test, preprocess, dtype, block: as in FeatureEvaluator.
        strengths: values of scikit-learn's C to try, strongest penalty first.
    """

    title: ClassVar[str] = "Logistic regression"
    strengths: tuple = LOGISTIC_STRENGTHS
    strength = "C"

    def fit(self, features: np.ndarray, labels: np.ndarray, classes: int) -> HeadOf:
        return lambda strength: logistic_head(features, labels, classes, strength)


@register("ridge")
@dataclasses.dataclass(frozen=True)
class Ridge(_Swept):
    """Ridge regression on all training features.

    Attributes:
        source, train, test, preprocess, dtype, block: as in FeatureEvaluator.
        strengths: penalties l2 to try, strongest first.
    """

    title: ClassVar[str] = "Ridge regression"
    strengths: tuple = RIDGE_STRENGTHS
    strength = "l2"

    def fit(self, features: np.ndarray, labels: np.ndarray, classes: int) -> HeadOf:
        return _ridge_heads(features, labels, classes)
