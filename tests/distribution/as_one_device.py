"""Compares training under a strategy with one device. The limits follow from what another order of summation does on
one device here.
"""

import numpy as np
import pytest

from benchmarks.strategies import compare, evaluation_difference, limit
from benchmarks.strategy_cases import run_case

CASES = ("default", "all of these")
DEPTH = 1


def results(strategy, reordered=False):
    """{"case//key": array} of CASES."""
    arrays = {case: run_case(strategy, case, reordered=reordered, depth=DEPTH) for case in CASES}
    return {f"{case}//{key}": value for case, values in arrays.items() for key, value in values.items()}


def distances(one, several):
    """{name: difference from the results of one device}."""
    pairs = {case: compare(one, several, case) for case in CASES}
    ratios = {case: float(ratio) for case, (ratio, _) in pairs.items()}
    biases = {f"key biases, {case}": float(difference) for case, (_, difference) in pairs.items()}
    evaluated = {key: float(evaluation_difference(one, several, key)) for key in ("loss", "logits")}
    return {**ratios, **biases, **evaluated}


def assert_as_one_device(one, several, rounding):
    """10 steps, without options and with clip, accumulation, 4 steps per execution, EMA, mixup and decay: see
    benchmarks.strategies.
    """
    measured, least = distances(one, several), {"loss": 1e-6}
    for name, value in measured.items():
        most = 1e-3 if name.startswith("key biases") else limit(rounding[name], least.get(name, 1e-5))
        assert value <= most, (name, measured, rounding)
    logits, labels = several["default//logits"], several["default//labels"]
    assert logits.shape == one["default//logits"].shape == (301, 10)  # in batches of 32
    assert several["default//accuracy"] == pytest.approx((logits.argmax(-1) == labels).mean(), abs=1e-6)


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
