"""Compares training under a strategy with one device. The limits follow from what another order of summation does on
one device here.
"""

import contextlib

import keras
import numpy as np
import pytest
from small_models import eager

from benchmarks.strategies import compare, evaluation_difference, limit
from benchmarks.strategy_cases import run_case

CASE = "all of these"
DEPTH = 1


def results(strategy, reordered=False):
    """{"CASE//key": array}; of one device on TensorFlow without tracing."""
    eagerly = strategy.replicas == 1 and keras.backend.backend() == "tensorflow"
    with eager() if eagerly else contextlib.nullcontext():
        arrays = run_case(strategy, CASE, reordered=reordered, depth=DEPTH)
    return {f"{CASE}//{key}": value for key, value in arrays.items()}


def distances(one, several):
    """{name: difference from the results of one device}."""
    weights, biases = compare(one, several, CASE)
    evaluated = {key: float(evaluation_difference(one, several, key, CASE)) for key in ("loss", "logits")}
    return {"weights": float(weights), "key biases": float(biases), **evaluated}


def assert_as_one_device(one, several, rounding):
    """10 steps with clip, accumulation, 4 steps per execution, EMA, mixup and decay: see benchmarks.strategies."""
    measured, least = distances(one, several), {"loss": 1e-6}
    for name, value in measured.items():
        most = 1e-3 if name == "key biases" else limit(rounding[name], least.get(name, 1e-5))
        assert value <= most, (name, measured, rounding)
    logits, labels = several[f"{CASE}//logits"], several[f"{CASE}//labels"]
    assert logits.shape == one[f"{CASE}//logits"].shape == (301, 10)  # in batches of 32
    assert several[f"{CASE}//accuracy"] == pytest.approx((logits.argmax(-1) == labels).mean(), abs=1e-6)


def hold(one, *several, file=None):
    """Compares each of the other strategies with the first, whose results it saves to `file`; returns what rounding
    alone does.
    """
    expected = results(one)
    rounding = distances(expected, results(one, reordered=True))
    for strategy in several:
        assert_as_one_device(expected, results(strategy), rounding)
    if file is not None:
        np.savez(file, **expected)
    return rounding
