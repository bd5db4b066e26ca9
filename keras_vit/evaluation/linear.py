"""Linear classifiers on frozen features: ridge regression in closed form, logistic regression, and their strength chosen by a sweep.

A head is (kernel (d, classes), bias (classes,)), float64, for the features as they are: `features @ kernel + bias` are its scores.
Before fitting, features are whitened with the mean and standard deviation of the training ones; the head has that folded in.
"""

import numpy as np
from absl import logging

_BIAS_COLUMN = 100.0  # so large that the penalty on the bias is next to nothing
_ROWS = 8192  # of features that are float64 at a time
RIDGE_STRENGTHS = tuple(4.0**i for i in range(10, -3, -1))  # l2, the strongest first
LOGISTIC_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # scikit-learn's C, the strongest penalty first


def ridge(features, targets, l2):
    """The weights (d, c) that minimise |features @ weights - targets|^2 + l2 |weights|^2, in closed form.

    Args:
        features: (n, d), with a constant column if there is to be a bias.
        targets: (n, c).
        l2: the penalty, above 0.

    Raises:
        ValueError: if l2 is not above 0, or the numbers of rows differ.
    """
    x, y = np.asarray(features, "float64"), np.asarray(targets, "float64")
    if not l2 > 0:
        raise ValueError(f"l2={l2}: expected a number above 0.")
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(f"Expected features (n, d) and targets (n, c), got {x.shape} and {y.shape}.")
    n, d = x.shape
    if n >= d:
        return np.linalg.solve(x.T @ x + l2 * np.eye(d), x.T @ y)
    return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(n), y)  # the same weights, from a smaller system


def _whitening(features):
    """(mean, std), each (d,) float64; as big_vision, with 1e-5 added to std."""
    return features.mean(axis=0, dtype="float64"), features.std(axis=0, dtype="float64") + 1e-5


def ridge_head(features, labels, classes, l2=2.0**10):
    """The head of ridge regression to targets +1 and -1, as the paper's few-shot evaluation has it.

    Args:
        features: (n, d).
        labels: (n,) integers below `classes`.
        classes: their number.
        l2: the penalty.
    """
    mean, std = _whitening(features)
    white = (np.asarray(features, "float64") - mean) / std
    weights = ridge(np.pad(white, ((0, 0), (0, 1)), constant_values=_BIAS_COLUMN), 2.0 * np.eye(classes)[labels] - 1.0, l2)
    kernel = weights[:-1] / std[:, None]
    return kernel, _BIAS_COLUMN * weights[-1] - mean @ kernel


def logistic_head(features, labels, classes, c=1.0, max_iter=1000):
    """The head of multinomial logistic regression, by scikit-learn's L-BFGS.

    Args:
        features, labels, classes: as in `ridge_head`. A class without examples gets the score -inf.
        c: weight of the summed loss beside half of |kernel|^2: smaller is a stronger penalty.
        max_iter: of L-BFGS; a warning says where they did not do.

    Raises:
        ImportError: without scikit-learn.
        ValueError: if there are examples of one class only.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError('Logistic regression needs scikit-learn: pip install "keras-vit[viz]".') from error
    mean, std = _whitening(features)
    fitted = LogisticRegression(C=c, max_iter=max_iter).fit((np.asarray(features, "float64") - mean) / std, labels)
    if fitted.n_iter_.max() >= max_iter:
        logging.warning("Logistic regression with C=%g stopped after %d iterations, before it converged.", c, max_iter)
    coefficients, intercepts = fitted.coef_, fitted.intercept_
    if len(coefficients) == 1:  # of two classes, scikit-learn gives the second's against the first's
        coefficients, intercepts = (np.concatenate([-a / 2, a / 2]) for a in (coefficients, intercepts))
    kernel, bias = np.zeros((features.shape[1], classes)), np.full(classes, -np.inf)
    kernel[:, fitted.classes_] = coefficients.T / std[:, None]
    bias[fitted.classes_] = intercepts - mean @ kernel[:, fitted.classes_]
    return kernel, bias


def scores(features, head):
    """(n, classes) float64 of features (n, d)."""
    kernel, bias = head
    parts = [np.asarray(features[i : i + _ROWS], "float64") @ kernel + bias for i in range(0, len(features), _ROWS)]
    return np.concatenate(parts)


def accuracy(features, labels, head):
    """The share of features (n, d) whose best score is their label's."""
    return float((scores(features, head).argmax(axis=-1) == labels).mean())


def sweep(fit, features, labels, strengths, seed=0):
    """Fits with the strength that is best on a fifth of the examples, drawn by `seed`, held out; then on all of them.

    Args:
        fit: (features, labels, strength) -> a head.
        features, labels: (n, d) and (n,).
        strengths: to try, the strongest penalty first: it wins where several do as well.

    Returns:
        the head, the strength, and {strength: accuracy on the fifth}.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, kept = order[: len(order) // 5], order[len(order) // 5 :]
    if not len(held_out):
        raise ValueError(f"A sweep holds out a fifth of the examples; there are {len(labels)}.")
    found = {}
    for strength in strengths:
        head = fit(features[kept], labels[kept], strength)
        found[strength] = accuracy(features[held_out], labels[held_out], head)
    best = max(found, key=found.get)
    return fit(features, labels, best), best, found
