"""Several models side by side: the order, the table, the command."""

import json

import keras
import pytest

import keras_vit
from keras_vit.distribution.strategy import Strategy
from keras_vit.evaluation import Calibration, Chart, Classification, Evaluator, FewShot
from keras_vit.runs.compare import Column, first_column, make_column, ranked, table, write_comparison
from keras_vit.runs.picture_files import drawn
from trainers import evaluate

RESULTS = {
    "a": {"classification": {"top1": 0.5, "loss": 2.0}, "calibration": {"ece": 0.1}},
    "b": {"classification": {"top1": 0.9, "loss": float("nan")}, "calibration": {"ece": 0.3}},
    "c": {"classification": {"top1": 0.7, "loss": 1.0}},
}
TOP1, ECE = Column("classification", "top1"), Column("calibration", "ece", higher_is_better=False)


def test_models_are_ranked_by_the_score_in_its_direction_and_those_without_it_come_last():
    assert ranked(RESULTS, TOP1) == ["b", "c", "a"]
    assert ranked(RESULTS, ECE) == ["a", "b", "c"]
    assert ranked(RESULTS, first_column([TOP1], "classification/loss", RESULTS)[0]) == ["c", "a", "b"]


def test_the_table_has_a_column_for_each_evaluator():
    lines = table(RESULTS, [ECE, TOP1]).splitlines()
    assert lines[0] == "| model | calibration/ece (lower is better) | classification/top1 |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells == [["a", "0.1000", "0.5000"], ["b", "0.3000", "0.9000"], ["c", "-", "0.7000"]]


def test_an_evaluators_column_is_its_score():
    assert make_column("x", Classification(), {"examples": 3, "loss": 1.0, "top1": 0.5}) == Column("x", "top1")
    assert make_column("x", FewShot(shots=(1, 5)), {"1": 0.1, "5": 0.5}) == Column("x", "5")
    assert make_column("x", Calibration(), {"top1": 0.1, "ece": 0.5}) == Column("x", "ece", higher_is_better=False)
    assert make_column("x", Evaluator(), {"examples": 3, "mean": 0.5}) == Column("x", "mean")


def test_the_comparison_is_written_in_order(tmp_path, capsys):
    write_comparison(tmp_path, RESULTS, [TOP1, ECE], None, {"d": "too old"}, Strategy())
    content = json.loads((tmp_path / "models.json").read_text())
    assert content["sorted_by"] == "classification/top1" and content["failed"] == {"d": "too old"}
    assert [row["model"] for row in content["models"]] == ["b", "c", "a"]
    assert content["models"][2]["calibration"] == {"ece": 0.1}
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("| model | classification/top1")


def test_every_kind_of_chart_is_drawn():
    charts = [
        Chart("bars", {"a": 1.0, "b": 2.0}, "x"),
        Chart("lines", {"a": ([0, 1], [3.0, 4.0])}, "x", "y"),
        Chart("reliability", {"a": [[3, 0.5, 0.6]], "b": [[3, 0.5, 0.5]]}),
    ]
    assert all(drawn(chart).startswith(b"\x89PNG") for chart in charts)
    with pytest.raises(ValueError, match='Unknown kind of chart "pie"'):
        drawn(Chart("pie", {}))


def test_a_measure_goes_by_its_evaluators_direction_and_a_wrong_one_loses_nothing(tmp_path, capsys):
    results = {"a": {"mine": {"mae": 3.0}}, "b": {"mine": {"mae": 1.0}}}
    columns = [Column("mine", "mae", False)]
    assert first_column(columns, "mine/mae", results) == columns
    with pytest.raises(ValueError, match='--sort=mine/mea: no model has this measure. Did you mean "mine/mae"'):
        write_comparison(str(tmp_path), results, columns, "mine/mea", {}, Strategy())
    assert [row["model"] for row in json.loads((tmp_path / "models.json").read_text())["models"]] == ["b", "a"]


@pytest.fixture
def ran(tmp_path, binary, eagerly):
    """A function: runs the binary in this process with flags; returns what it printed."""
    given = {"split": "test[:40]", "batch_size": 20, "output": str(tmp_path / "out")}
    return lambda **options: binary(evaluate, **{**given, **options})


@pytest.mark.extended
def test_one_command_evaluates_a_list_of_models(ran, tmp_path):
    """One that knows a class, one that knows none: the digits' first class is 0."""
    for name, bias in (("zero", [9.0] + 9 * [0.0]), ("good", [0.0, 9.0] + 8 * [0.0])):
        image = keras.Input((8, 8, 1))
        head = keras.layers.Dense(10, kernel_initializer="zeros", name="head")
        model = keras_vit.Model(image, head(keras.layers.Flatten()(image)))
        head.bias.assign(bias)
        model.save(tmp_path / f"{name}.keras")
    models = ",".join(str(tmp_path / f"{name}.keras") for name in ("zero", "missing", "good"))
    evals = "classification(source='digits', split='test[:40]', preprocess='decode(1)')"
    with pytest.raises(ValueError, match="1 of 3 models could not be evaluated.*missing.keras"):
        ran(model=models, evals=evals, split=None)
    content = json.loads((tmp_path / "out" / "models.json").read_text())
    scores = [row["classification"]["top1"] for row in content["models"]]
    assert (
        len(scores) == 2
        and scores == sorted(scores, reverse=True)
        and list(content["failed"]) == [str(tmp_path / "missing.keras")]
    )
    assert (tmp_path / "out" / "model_1" / "classification.json").exists()
    with pytest.raises(ValueError, match="twice"):
        ran(model="a,b,a")
