"""Few-shot linear evaluation (arXiv 2010.11929, section 4.1): ridge regression on the frozen features of a few examples a class.

What the paper leaves open follows big_vision: whitened features, a constant column for the bias, l2 = 2^10.
"""

import numpy as np

from keras_vit.evaluation.linear import accuracy, ridge_head

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10


def draw(labels, class_names, count, seed):
    """The numbers (classes, count) of examples drawn for each class, in random order; the first k columns are k shots.

    Args:
        labels: (n,) integers.
        class_names: in the order of the labels.
        count: of each class.
        seed: another one draws others.

    Raises:
        ValueError: naming the classes that have fewer examples.
    """
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=len(class_names)))[:-1])
    short = [f"{name} ({len(numbers)})" for name, numbers in zip(class_names, by_class) if len(numbers) < count]
    if short:
        raise ValueError(
            f"{count} shots need {count} examples of every class. Fewer have {len(short)} of {len(class_names)}: "
            f"{', '.join(short[:10])}{', ...' if len(short) > 10 else ''}. Take fewer shots, or a larger part of the data."
        )
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(numbers)[:count] for numbers in by_class])


def _runs(features, labels, draws, shots, l2, test):
    """The accuracies on `test`, (features, labels), one a draw."""
    found = []
    for drawn in draws:
        chosen = drawn[:, :shots].reshape(-1)  # (classes, shots) -> (classes * shots,)
        head = ridge_head(features[chosen], labels[chosen], len(drawn), l2)
        found.append(accuracy(*test, head))
    return found


def few_shot(
    train_features,
    train_labels,
    test_features,
    test_labels,
    shots=SHOTS,
    seeds=SEEDS,
    l2=L2,
    validation=None,
    draws=None,
):
    """Accuracy of a linear classifier on few examples a class.

    Args:
        train_features, train_labels: (m, d) and (m,), to draw from.
        test_features, test_labels: (n, d) and (n,), all of which are classified.
        shots: numbers of examples a class.
        seeds: of the draws; each is a run.
        l2: the penalty; or several, of which for each number of shots the one best on `validation` is taken.
        validation: (features, labels) to choose among several l2.
        draws: what `draw` gives, an array of positions in train_features for each seed, where it is known already.

    Returns:
        {shots: {"mean", "std", "runs"}}, accuracies between 0 and 1; std is over the runs (of the population). With several l2 also
        "l2", the one taken.

    Raises:
        ValueError: if a class has too few examples, or several l2 come without `validation`.
    """
    penalties = np.atleast_1d(l2).tolist()
    if len(penalties) > 1 and validation is None:
        raise ValueError(f"Of several l2, {penalties}, one is chosen on validation=(features, labels): give it.")
    if draws is None:
        names = [str(i) for i in range(1 + max(train_labels.max(), test_labels.max()))]
        draws = [draw(train_labels, names, max(shots), seed) for seed in seeds]
    results = {}
    for count in shots:
        best, chosen = penalties[0], {}
        if len(penalties) > 1:
            on_validation = [np.mean(_runs(train_features, train_labels, draws, count, p, validation)) for p in penalties]
            best = penalties[int(np.argmax(on_validation))]
            chosen = {"l2": best}
        runs = _runs(train_features, train_labels, draws, count, best, (test_features, test_labels))
        results[count] = {"mean": float(np.mean(runs)), "std": float(np.std(runs)), "runs": runs, **chosen}
    return results
