"""The assignment of least cost, beside SciPy's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from scipy.optimize import linear_sum_assignment

from keras_vit.models.matching import match

RNG = np.random.default_rng(0)
IMAGES = 120
SIZES = [(100, 20), (300, 30), (12, 30)]  # (queries, targets); two thirds of these images have ties or alike targets


def padding(m):
    """(IMAGES, m) booleans: from no target to all, at any place."""
    counts = np.concatenate([[0, m], RNG.integers(0, m + 1, IMAGES - 2)])
    return RNG.permuted(np.arange(m)[None] < counts[:, None], axis=1)


def check(costs, valid, found):
    """Each image's assignment has distinct queries, none for padding, and SciPy's total cost."""
    assert found.dtype == "int32" and (found[~valid] == -1).all()
    for cost, there, queries in zip(costs.astype("float64"), valid, found):
        cost, queries = cost[:, there], queries[there]
        best = cost[linear_sum_assignment(cost)]
        matched = np.flatnonzero(queries >= 0)
        assert len(matched) == len(best) == len(set(queries[matched]))
        assert cost[queries[matched], matched].sum() == pytest.approx(best.sum(), rel=1e-6, abs=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
def test_total_cost_equals_scipys(size):
    q, m = size
    random = RNG.normal(size=(IMAGES, q, m))
    alike = RNG.normal(size=(IMAGES, q, 1)) + 0.05 * random  # all targets want the same queries
    ties = RNG.integers(0, 4, (IMAGES, q, m))
    costs = np.where(
        np.arange(IMAGES)[:, None, None] % 3, np.where(RNG.random((IMAGES, 1, 1)) < 0.5, alike, ties), random
    )
    costs, valid = costs.astype("float32"), padding(m)
    check(costs, valid, ops.convert_to_numpy(match(costs, valid)))


@pytest.mark.extended
def test_costs_that_are_not_finite_are_avoided():
    costs = np.ones((1, 4, 2), "float32")
    costs[0, :3] = np.inf, np.nan
    found = ops.convert_to_numpy(match(costs, np.array([[True, False]])))
    assert found.tolist() == [[3, -1]]
    everywhere = ops.convert_to_numpy(match(np.full((1, 3, 2), np.nan), np.ones((1, 2), bool)))
    assert sorted(everywhere[0]) == [0, 1]


@pytest.mark.extended
def test_in_a_compiled_step_with_gradients():
    @tf.function(jit_compile=True)
    def step(costs):
        with tf.GradientTape() as tape:
            tape.watch(costs)
            found = match(costs, tf.ones((2, 3), "bool"))
            value = ops.sum(ops.take_along_axis(costs, found[:, None, :], axis=1))
        return found, tape.gradient(value, costs)

    costs = RNG.normal(size=(2, 5, 3)).astype("float32")
    found, gradient = (ops.convert_to_numpy(x) for x in step(tf.constant(costs)))
    check(costs, np.ones((2, 3), bool), found)
    expected = np.zeros_like(costs)
    expected[np.arange(2)[:, None], found, np.arange(3)] = 1
    assert keras.backend.backend() == "tensorflow"
    np.testing.assert_array_equal(gradient, expected)
