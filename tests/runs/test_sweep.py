"""Sweeps: grids from text, points in directories of their own that are not run twice, the best named, the final run."""

import json
import weakref

import numpy as np
import pytest

from keras_vit.distribution.strategy import Strategy
from keras_vit.inspection import figures
from keras_vit.runs import training_run
from keras_vit.runs.grid import at, parse_grid
from keras_vit.runs.prepare import Prepared
from keras_vit.runs.seeds import run_once
from keras_vit.runs.sweep import run_sweep
from keras_vit.runs.sweep_picture import check_picture, picture
from keras_vit.tasks import Classification, Score
from trainers import config_files, train

ONE = Strategy()
SCORE = Classification.score
RATES = "optimizer.learning_rate=1e-3,3e-3,1e-2"


@pytest.fixture
def config():
    config = config_files.load_config("digits_pretrain")
    config.data.update(dev_train="train[:80%]", dev_evaluation="train[80%:]")
    return config


class Stub:
    """In the place of a run: top-1 falls with the distance of the learning rate from .003; `seen` are the configs and
    places.
    """

    def __init__(self, diverges=()):
        self.seen, self.diverges = [], diverges

    def __call__(self, config, workdir):
        rate = config.optimizer.learning_rate
        self.seen.append((rate, config.seed, config.data.train, config.data.evaluation, str(workdir)))
        if rate in self.diverges:
            raise FloatingPointError("At step 3, the loss is nan.")
        top1 = 0.9 - abs(rate - 3e-3) * 10 + config.seed / 100
        return {"top1": top1, "loss": 1 - top1, "examples": 72, "confusion": [[1]]}


def test_a_grid_has_the_types_of_the_config(config):
    grid = parse_grid(
        "optimizer.learning_rate=1e-3, 3e-3;model.dropout=0,0.1;batch_size=8;jit_compile=true;model.pool=gap,map",
        config,
    )
    assert grid.parts[0] == {
        "optimizer.learning_rate": [1e-3, 3e-3],
        "model.dropout": [0.0, 0.1],
        "batch_size": [8],
        "jit_compile": [True],
        "model.pool": ["gap", "map"],
    }
    assert len(grid.points()) == 8
    assert grid.name(grid.points()[1]) == "learning_rate=0.001,dropout=0.0,batch_size=8,jit_compile=True,pool=map"


def test_parts_with_a_bar_between_them_are_grids_one_after_the_other(config):
    grid = parse_grid("model.positions=none,rope2d | model.positions=learned;model.positions_at=every,shared", config)
    assert [grid.name(point) for point in grid.points()] == [
        "positions=none",
        "positions=rope2d",
        "positions=learned,positions_at=every",
        "positions=learned,positions_at=shared",
    ]
    assert grid.keys == ["model.positions", "model.positions_at"]
    own = ["decode|random_crop(8, padding=2)", "decode|resize(8, 8)"]
    assert parse_grid(f"data.train_preprocess={','.join(own)}", config).parts[0] == {"data.train_preprocess": own}
    texts = "data.train_preprocess=decode|resize(8, 8)|data.eval_preprocess=decode(1)|central_crop(8)"
    assert [len(part) for part in parse_grid(texts, config).parts] == [1, 1]
    with pytest.raises(ValueError, match="model.positions=None means the variant's own, learned positions"):
        parse_grid("model.positions=None", config)


def test_parts_of_numbers_are_lines_over_what_the_models_cost(config, tmp_path, capsys, monkeypatch):
    """The point that two parts share is run once, and stands on both lines."""
    drawn, seen = {}, []
    monkeypatch.setattr(figures, "lines", lambda series, *_, **__: drawn.update(series) or b"")

    def run(config, workdir):
        seen.append((config.model.depth, config.model.width))
        cost = config.model.depth * config.model.width**2
        return {"top1": 0.001 * cost, "loss": 1.0, "forward_flops": 1e6 * cost}

    config.sweep, config.sweep_final = "model.depth=2,4|model.width=4,96,192|model.depth=1;model.width=4", False
    config.model.update(depth=4, width=96)
    run_sweep(config, "own", tmp_path, run, ONE, SCORE, seeds=2)
    assert seen == [place for place in ((2, 96), (4, 96), (4, 4), (4, 192), (1, 4)) for _ in range(2)]
    assert {name: xs for name, (xs, _) in drawn.items()} == {
        "depth": (2 * 96**2, 4 * 96**2),
        "width": (4 * 16, 4 * 96**2, 4 * 192**2),
        "depth, width": (16,),
    }
    text = capsys.readouterr().out
    assert "| model.depth | model.width | forward MFLOP | top-1 on train[80%:], % | loss | |" in text
    assert "|  | 96 | 3.686e+04 |" in text and "final" not in text


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model.dropout=0.1", "model.dropout", 0.1),
        ("evals.few_shot.source=digits", "evals.few_shot.source", "digits"),
        ("total=6,10 steps", "total", 6),
    ],
)
def test_a_point_sets_keys_of_open_sections_in_a_locked_config(text, key, value, config):
    config.lock()
    point = parse_grid(text, config).points()[0]
    found = at(config, point)
    for part in key.split("."):
        found = found[part]
    assert found == value and config.is_locked


def test_names_of_points_are_names_of_directories(config):
    grid = parse_grid("model.variant=B/16,L/16;optimizer.name=adamw;loss.name=softmax", config)
    assert [grid.name(p) for p in grid.points()] == [
        f"variant={v}-16,optimizer.name=adamw,loss.name=softmax" for v in "BL"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.learning_rat=1", 'no "learning_rat" there. Did you mean "learning_rate"'),
        ("optimizer.learning_rate=low", 'optimizer.learning_rate="low": expected a value of type float'),
        ("model.dropot=0.1", 'no "dropot" there. Did you mean "dropout"'),
        ("eval.few_shot.shots=1", 'no "eval" there. Did you mean "evals"'),
        ("jit_compile=1", 'jit_compile="1": expected a value of type bool'),
        ("mixup=off,0.2", "mixup=off: None turns an option off. Write mixup=None"),
        ("optimizer.learning_rate", "not a valid sweep"),
        ("optimizer.learning_rate=", "not a valid sweep"),
        ("batch_size=8,8", "has batch_size=8 twice"),
        (
            "batch_size=8;model.dropout=0;batch_size=16",
            'has batch_size twice in a part. List all of its values at once, "batch_size=A,B"',
        ),
        ("evals.knnn.k=5", 'point k=5: Unknown evaluator "knnn". Did you mean "knn"'),
        ("evals.few_shot.shot=5", 'point shot=5: The evaluator "few_shot": unknown option "shot". Did you mean'),
        ("evals.few_shot=5", "point few_shot=5: config.evals.few_shot is an evaluator, a section"),
        ("objective.mask_ratio=0.5", 'point mask_ratio=0.5: The task Classification has no option "mask_ratio"'),
        ("micro_batches=1,5", "point micro_batches=5: --config.micro_batches=5"),
        (";", "is empty"),
    ],
)
def test_wrong_grids_are_clear_errors(text, message, config):
    with pytest.raises(ValueError, match=message):
        parse_grid(text, config)


def test_a_point_may_leave_an_evaluator_out(config):
    config.evals.knn = {"source": "digits"}
    first, second = (at(config, point) for point in parse_grid("evals.knn.k=5|evals.knn=None", config).points())
    assert first.evals.knn.k == 5 and "knn" not in second.evals


def test_the_own_sweep_chooses_on_held_out_data_and_then_trains_on_everything(config, tmp_path, capsys):
    config.sweep = RATES
    run = Stub()
    measures = run_sweep(config, "own", tmp_path, run, ONE, SCORE, seeds=2)
    assert [s[:4] for s in run.seen] == [
        (1e-3, 0, "train[:80%]", "train[80%:]"),
        (3e-3, 0, "train[:80%]", "train[80%:]"),
        (1e-2, 0, "train[:80%]", "train[80%:]"),
        (3e-3, 0, "train", "test"),
        (3e-3, 1, "train", "test"),
    ]
    assert measures["top1"] == pytest.approx(0.905)
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert found["best"]["point"] == {"optimizer.learning_rate": 3e-3} and found["evaluation"] == "train[80%:]"
    assert found["final"]["top1"] == pytest.approx(0.905) and len(found["points"]) == 3
    told = capsys.readouterr().out
    assert "| 0.003 | 90.00 | 0.1000 | best |" in told and "| 0.001 | 88.00 | 0.1200 |  |" in told
    assert "final, learning_rate=0.003 on train: top-1 90.50 +- 0.71% of test" in told
    assert (tmp_path / "sweep.md").read_text().strip() in told
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_point_trains_and_is_compared_on_its_own_development_splits(config, tmp_path, capsys):
    run = Stub()
    run_sweep(config, "data.dev_train=train[:1%],train[:40%]|data.train=train[:10%]", tmp_path, run, ONE, SCORE)
    assert [splits for _, _, *splits, _ in run.seen] == [
        ["train[:1%]", "train[80%:]"],
        ["train[:40%]", "train[80%:]"],
        ["train[:10%]", "train[80%:]"],
    ]
    run_sweep(config, "data.dev_evaluation=train[80%:],train[90%:]", tmp_path / "other", Stub(), ONE, SCORE)
    assert "top-1 on train[80%:] or train[90%:], %" in capsys.readouterr().out


def test_finished_points_are_not_run_again_and_a_larger_grid_goes_on(config, tmp_path):
    first = Stub()
    run_sweep(config, RATES, tmp_path, first, ONE, SCORE)
    again = Stub()
    run_sweep(config, RATES + ",3e-2", tmp_path, again, ONE, SCORE)
    assert len(first.seen) == 3 and [s[0] for s in again.seen] == [3e-2]
    config.batch_size = 32
    other = Stub()
    run_sweep(config, RATES, tmp_path, other, ONE, SCORE)
    assert len(other.seen) == 3  # another config: the directories' own check decides


def test_a_sweep_goes_on_where_it_was_stopped(config, tmp_path):
    run = Stub()

    def stopped(config, workdir):
        if len(run.seen) == 2:
            raise SystemExit(75)
        return run(config, workdir)

    with pytest.raises(SystemExit):
        run_sweep(config, RATES, tmp_path, stopped, ONE, SCORE)
    run_sweep(config, RATES, tmp_path, run, ONE, SCORE)
    assert [s[0] for s in run.seen] == [1e-3, 3e-3, 1e-2]


def test_a_grid_with_seeds_compares_means(config, tmp_path, capsys):
    run = Stub()
    best = run_sweep(config, RATES, tmp_path, run, ONE, SCORE, seeds=3)
    assert [s[:2] for s in run.seen] == [(rate, seed) for rate in (1e-3, 3e-3, 1e-2) for seed in (0, 1, 2)]
    assert best["top1"] == pytest.approx(0.91) and best["top1_std"] == pytest.approx(0.01)
    assert "| 0.003 | 91.00 +- 1.00 | 0.0900 | best |" in capsys.readouterr().out


def test_a_point_that_diverges_does_not_end_the_sweep(config, tmp_path, capsys):
    best = run_sweep(config, RATES, tmp_path, Stub(diverges=(1e-2,)), ONE, SCORE)
    assert best["point"] == {"optimizer.learning_rate": 3e-3}
    assert "| 0.01 | - | - | diverged |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="All 3 points of the sweep diverged"):
        run_sweep(config, RATES, tmp_path / "all", Stub(diverges=(1e-3, 3e-3, 1e-2)), ONE, SCORE)


def test_a_score_that_is_not_a_number_is_never_the_best(config, tmp_path, capsys):
    def run(config, workdir):
        rate = config.optimizer.learning_rate
        return {"top1": float("nan") if rate == 1e-3 else 0.5 - rate, "loss": 1.0, "examples": 72}

    assert run_sweep(config, RATES, tmp_path, run, ONE, SCORE)["point"] == {"optimizer.learning_rate": 3e-3}
    assert "| 0.001 | nan | 1.0000 | no finite score |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="All 1 points of the sweep diverged, or have no finite top-1"):
        run_sweep(config, "optimizer.learning_rate=1e-3", tmp_path / "none", run, ONE, SCORE)


def test_a_tie_goes_to_the_lower_loss(config, tmp_path):
    losses = {0.0: 0.5, 0.1: 0.4}
    best = run_sweep(
        config, "model.dropout=0,0.1", tmp_path, lambda c, _: {"top1": 0.9, "loss": losses[c.model.dropout]}, ONE, SCORE
    )
    assert best["point"] == {"model.dropout": 0.1}


def test_without_held_out_splits_it_says_that_the_figure_flatters(tmp_path, caplog, monkeypatch):
    import logging

    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    run_sweep(config_files.load_config("cifar10_patch2"), RATES, tmp_path, Stub(), ONE, SCORE)
    assert caplog.text.count("compares on test itself") == 1


def test_processes_that_see_different_files_run_the_point_all_the_same(config, tmp_path):
    """The chief's file may not be there yet for another: then all of them run it, or a collective would wait for
    ever.
    """

    class Others(Strategy):
        def any(self, flag):
            return True  # some process lacks the file

    run = Stub()
    for _ in range(2):
        run_once(config, tmp_path, run, Others())
    assert len(run.seen) == 2


@pytest.mark.extended
def test_real_runs_sweep_and_leave_no_model_behind(tmp_path, capsys, monkeypatch, eagerly):
    """The binary's own way: two learning rates of a tiny ViT on the digits, resumed; each model is gone when the next
    is made.
    """
    config = config_files.load_config("digits_pretrain")
    config.update(total="2 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=16, jit_compile=False)
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(
        train="train[:80]", evaluation="test[:16]", dev_train="train[:64]", dev_evaluation="train[64:80]"
    )
    config.sweep = "optimizer.learning_rate=1e-4,1e-2"
    monkeypatch.setattr(training_run, "write_report", lambda *arguments: None)
    alive, made = [], Prepared.model

    def make(*arguments):
        assert not [model for model in alive if model() is not None]
        model = made(*arguments)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(Prepared, "model", make)
    given = {"config": config, "workdir": str(tmp_path), "sweep": "own", "runs": 1}
    given.update(data_dir=None, data_service=None, check_memory=False)
    for _ in range(2):
        train.train(type("Values", (), given), ONE)
    assert len(alive) == 3  # the second time nothing is run
    points = ("learning_rate=0.0001", "learning_rate=0.01")
    assert {p.name for p in tmp_path.iterdir()} >= {*points, "final", "sweep.json", "sweep.md"}
    rows = json.loads((tmp_path / "sweep.json").read_text())["points"]
    for row, folder in zip(rows, points, strict=True):
        evaluated = json.loads((tmp_path / folder / "evaluation.json").read_text())
        assert evaluated["split"] == "train[64:80]" and evaluated["top1"] == row["top1"]
    assert capsys.readouterr().out.count("final, ") == 2


def test_the_picture_has_the_axis_and_lines_that_the_config_names(config, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "lines", lambda series, x, y, **_: drawn.update(series=series, x=x, y=y) or b"")
    grid = parse_grid(
        "model.variant=Ti/4;data.dev_train=train[:1%],train|model.variant=Ti/2;data.dev_train=train[:1%],train", config
    )
    rows = [{"point": p, "top1": i / 10, "training_examples": (14, 1437)[i % 2]} for i, p in enumerate(grid.points())]
    score = Score("top1", "top-1", percent=True)
    picture(grid, rows, score, "training_examples", ("small", "fine"))
    assert drawn == {
        "series": {"small": ((14, 1437), (0.0, 10.0)), "fine": ((14, 1437), (20.0, 30.0))},
        "x": "training examples",
        "y": "top-1, %",
    }
    picture(grid, rows, score, "training_examples", ("both", "both"))
    np.testing.assert_equal(drawn["series"], {"both": ((14, 1437, np.nan, 14, 1437), (0.0, 10.0, np.nan, 20.0, 30.0))})
    with pytest.raises(ValueError, match='x="training_exampels" cannot be an axis. Did you mean "training_examples"'):
        check_picture(grid, "training_exampels", None)
    with pytest.raises(ValueError, match='x="model.variant" cannot be an axis'):
        check_picture(grid, "model.variant", None)
    with pytest.raises(ValueError, match="lines has 1 names, and the sweep 2 parts"):
        check_picture(grid, None, ("small",))
