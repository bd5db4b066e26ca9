"""Ridge, logistic regression and nearest neighbours on features, against scikit-learn and the closed formula."""

import logging

import numpy as np
import pytest

from keras_vit.data import open_source
from keras_vit.evaluation import (
    FeatureSplits,
    knn_scores,
    logistic_head,
    make_evaluator,
    ridge,
    ridge_head,
    scores,
)
from keras_vit.evaluation.linear_probe import accuracy, probe_head, sweep


def clouds(n=120, d=6, classes=3, apart=2.0, seed=0):
    """Float32 features (n, d) around a centre a class, on scales that differ, and labels (n,)."""
    centres = np.random.default_rng(99).normal(size=(classes, d)) * apart
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return ((centres[labels] + rng.normal(size=(n, d))) * np.geomspace(0.1, 30, d) + 5).astype("float32"), labels


@pytest.mark.parametrize("shape", [(50, 8), (8, 50), (20, 20)], ids=["n>d", "n<d", "n=d"])
def test_ridge_is_the_closed_formula_and_scikit_learns(shape):
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape), rng.normal(size=(shape[0], 4))
    found = ridge(x, y, 3.0)
    np.testing.assert_allclose(found, np.linalg.inv(x.T @ x + 3.0 * np.eye(shape[1])) @ x.T @ y, rtol=1e-9, atol=1e-12)
    theirs = linear_model.Ridge(alpha=3.0, fit_intercept=False, solver="svd").fit(x, y)
    np.testing.assert_allclose(found, theirs.coef_.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [120, 6])
def test_the_ridge_head_is_ridge_on_whitened_features_with_a_column_of_100(n):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, labels = clouds(n, d=9)
    test, _ = clouds(40, d=9, seed=1)
    mean, std = x.astype("float64").mean(0), x.astype("float64").std(0) + 1e-5

    def white(a):
        return np.concatenate([(a - mean) / std, np.full((len(a), 1), 100.0)], axis=1)

    theirs = linear_model.Ridge(alpha=1024.0, fit_intercept=False, solver="svd").fit(
        white(x), np.where(np.eye(3)[labels] > 0, 1, -1)
    )
    np.testing.assert_allclose(scores(test, ridge_head(x, labels, 3)), theirs.predict(white(test)), atol=1e-9)


@pytest.mark.parametrize("n", [60, 12])
def test_the_probe_head_is_a_scaled_ridge_head_and_leaves_each_example_out(n):
    """Fitted again without each example, as whitened with all of them."""
    x, labels = clouds(n, d=20, apart=0.7)
    (kernel, bias), found = probe_head(x, labels, 3)
    for ours, ridges in zip((kernel, bias), ridge_head(x, labels, 3, 20.0)):
        np.testing.assert_allclose(ours, found["scale"] * ridges, rtol=1e-3, atol=1e-3)
    white = np.pad(
        (x - x.mean(0, "float64")) / (x.std(0, dtype="float64") + 1e-5), ((0, 0), (0, 1)), constant_values=1e3
    )
    others = [np.delete(np.arange(n), i) for i in range(n)]
    left_out = [white[i] @ ridge(white[k], 2.0 * np.eye(3)[labels[k]] - 1.0, 20.0) for i, k in enumerate(others)]
    logits = found["scale"] * np.array(left_out)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(n), labels]
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-4)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == labels).mean())


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("n", "value"), [(6, np.nan), (6, np.inf), (1, 1.0)])
def test_a_probe_of_features_that_are_not_finite_or_of_one_example_is_refused(n, value):
    x, labels = clouds(n)
    x[0, 0] = value
    with pytest.raises(ValueError, match=f"loss is nan .* two or more examples, got {n}, and finite features"):
        probe_head(x, labels, 3)


@pytest.mark.parametrize("classes", [2, 4])
def test_logistic_regression_is_scikit_learns_on_standardised_features(classes):
    pipeline = pytest.importorskip("sklearn.pipeline")
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x, labels = clouds(classes=classes, apart=0.7)
    test, truth = clouds(60, classes=classes, apart=0.7, seed=1)
    theirs = pipeline.make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)).fit(x, labels)
    found = scores(test, logistic_head(x, labels, classes, c=0.1))
    np.testing.assert_allclose(found - found[:, :1], log_odds(theirs.predict_proba(test)), atol=2e-3)
    assert accuracy(test, truth, logistic_head(x, labels, classes, c=0.1)) == theirs.score(test, truth)


def log_odds(probabilities):
    return np.log(probabilities) - np.log(probabilities[:, :1])


def test_a_class_without_examples_is_never_predicted():
    pytest.importorskip("sklearn")
    x, labels = clouds(classes=3)
    found = scores(x, logistic_head(x, 2 * labels, 6))  # classes 0, 2 and 4 of 6
    assert found.shape == (len(x), 6) and set(found.argmax(-1)) == {0, 2, 4}
    assert np.isneginf(found[:, [1, 3, 5]]).all()


def test_a_sweep_takes_the_middle_of_what_is_best_on_the_fifth_and_fits_on_all(caplog):
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", logger="absl")
    x, labels = clouds(100)
    seen = []

    def fit(features, truth):
        def head(strength):
            seen.append((strength, len(features)))
            good = ridge_head(x, labels, 3, 1.0)
            return good if strength in (4, 3, 2) else (np.zeros((6, 3)), np.array([0.0, 1.0, 0.0]))

        return head

    head, best, found = sweep(fit, x, labels, (4, 3, 2, 1))
    assert seen == [(4, 80), (3, 80), (2, 80), (1, 80), (3, 100)] and best == 3
    assert "3 of 4 penalties tie at 100.00%, 4, 3, 2: using the middle one, 3." in caplog.text
    assert found[4] == found[3] == found[2] > found[1] and accuracy(x, labels, head) > 0.9
    with pytest.raises(ValueError, match="holds out a fifth of the examples: expected at least 5, got 4"):
        sweep(fit, x[:4], labels[:4], (1,))


def test_nearest_neighbours_vote_as_scikit_learns(k=7):
    neighbors = pytest.importorskip("sklearn.neighbors")
    x, labels = clouds(700, apart=0.5)
    test, _ = clouds(601, apart=0.5, seed=1)  # more than one block of rows
    theirs = neighbors.KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda far: np.exp((1 - far) / 0.07)
    )
    expected = theirs.fit(x.astype("float64"), labels).predict_proba(test.astype("float64"))
    found = knn_scores(x, labels, test, 3, k=k)
    np.testing.assert_allclose(found / found.sum(-1, keepdims=True), expected, atol=1e-3)
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > 0.995  # float32 orders near neighbours by their last bits


def test_at_a_small_temperature_the_nearest_neighbour_decides():
    train, labels, test = np.array([[1, 0], [1, 0.5], [1, 0.5]]), np.array([0, 1, 1]), np.array([[1, 0.1]])
    for temperature, winner in ((1.0, 1), (0.001, 0)):  # exp(1 / 0.001) is infinite
        found = knn_scores(train, labels, test, 2, k=3, temperature=temperature)
        assert np.isfinite(found).all() and found.argmax() == winner


def test_wrong_arguments_say_what_is_expected():
    x, labels = clouds()
    with pytest.raises(ValueError, match="l2=0: expected a number above 0"):
        ridge(x, x, 0)
    with pytest.raises(ValueError, match=r"targets \(n, c\), got \(120, 6\) and \(3, 1\)"):
        ridge(x, np.zeros((3, 1)), 1)
    with pytest.raises(ValueError, match="k=121 neighbours: expected 1 to 120"):
        knn_scores(x, labels, x, 3, k=121)
    with pytest.raises(ValueError, match="temperature=0: expected a number above 0"):
        knn_scores(x, labels, x, 3, k=1, temperature=0)


def test_a_test_on_images_that_were_fitted_is_refused_or_told(caplog):
    splits = {"source": "digits", "train": "train", "test": "train[:10%]"}
    with pytest.raises(ValueError, match="would be its own nearest neighbour. Use disjoint splits"):
        make_evaluator("knn", splits).check(None)
    make_evaluator("ridge", splits).check(None)
    assert "The splits train and train[:10%] share images: Ridge is tested on training images" in caplog.text
    caplog.clear()
    for name in ("knn", "logistic"):
        make_evaluator(name, {**splits, "train": "train[10%:]"}).check(None)
    assert not caplog.text


def test_a_penalty_chosen_on_images_that_are_fitted_is_told(caplog):
    few_shot = make_evaluator("few_shot", {"source": "digits", "l2": (1, 10), "validation": "train[80%:]", "shots": 1})
    few_shot.check(FeatureSplits(None, open_source("digits", "train"), open_source("digits", "test")))
    assert "validation=train[80%:] shares images with train, so the penalty is chosen" in caplog.text
