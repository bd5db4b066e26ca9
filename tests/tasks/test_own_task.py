"""A task of a user's own, ink.py, does what classification does: it trains, resumes, reports its measure and sweeps by
its own score.
"""

import dataclasses
import json
import os
import pathlib

import keras
import numpy as np
import pytest
from interrupted import ended_and_resumed

import keras_vit
from keras_vit.data import open_source
from keras_vit.distribution import Strategy
from keras_vit.evaluation import Evaluation, Evaluator, register
from keras_vit.planning import dry_run
from keras_vit.runs import RunDirectory, run, run_sweep
from keras_vit.tasks import Score, find_task
from trainers import config_files

INK = f"{pathlib.Path(__file__).with_name('ink.py')}:Ink"


@pytest.fixture
def config():
    config = config_files.load_config("digits_pretrain")
    config.update(
        task=INK,
        total="6 steps",
        evaluate="3 steps",
        checkpoint="3 steps",
        batch_size=16,
        mixup=None,
        jit_compile=False,
    )
    config.loss.label_smoothing = 0.0
    config.model.update(depth=1, width=32, heads=2, mlp_dim=32)
    config.data.update(
        train="train[:64]", evaluation="test[:32]", dev_train="train[:48]", dev_evaluation="train[48:64]"
    )
    return config


def test_a_task_is_short():
    assert len(pathlib.Path(INK.rpartition(":")[0]).read_text().splitlines()) <= 60


def test_it_reports_its_own_measure_and_learns(config, tmp_path):
    config.update(total="60 steps", evaluate="30 steps", checkpoint="60 steps")
    model, measures = run(config, tmp_path)
    records = RunDirectory(tmp_path).metrics()
    assert [record["step"] for record in records] == [30, 60] and records[1]["loss"] < 0.5 * records[0]["loss"]
    assert measures["mae"] == pytest.approx(records[1]["val_mae"], rel=1e-5) and measures["examples"] == 32
    assert json.loads((tmp_path / "evaluation.json").read_text())["mae"] == measures["mae"]
    assert "mae" in (tmp_path / "report.html").read_text() and (tmp_path / "model.keras").exists()


def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(config, tmp_path, eagerly):
    whole, again = ended_and_resumed(config, tmp_path)
    for a, b in zip(whole.get_weights(), again.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_a_sweep_ranks_by_its_own_score(config, tmp_path, capsys):
    maes = {1e-4: 0.3, 1e-2: 0.1}
    task = find_task(config.task)

    def measured(config, workdir):
        return {"mae": maes[config.optimizer.learning_rate], "loss": 1.0, "examples": 16}

    best = run_sweep(config, "optimizer.learning_rate=1e-4,1e-2", tmp_path, measured, Strategy(), task.score)
    assert best["point"] == {"optimizer.learning_rate": 1e-2}
    assert "| 0.01 | 0.1 | 1.0000 | best |" in capsys.readouterr().out


def test_its_plan_needs_no_classes(config):
    text = dry_run.plan(config, config_files.packaged("lib.datasets").DATASETS)
    assert (
        "parameters, all trained" in text
        and "MeanSquaredError" in text
        and "softmax" not in text
        and "6 of 16 images" in text
    )


@pytest.mark.processes
def test_the_binary_trains_and_evaluates_it(tmp_path):
    import subprocess
    import sys

    root = pathlib.Path(__file__).resolve().parents[2]
    options = [f"--config.task={INK}", "--config.total=4 steps", "--config.batch_size=16", "--config.mixup=None"]
    options.append("--config.loss.label_smoothing=0")
    commands = [
        ["trainers.pretrain", "--config=digits_pretrain", f"--workdir={tmp_path / 'run'}", *options],
        ["trainers.evaluate", f"--model={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"],
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=root, capture_output=True, text=True, check=False, env=os.environ
        )
        assert done.returncode == 0, done.stderr[-2000:]
    evaluated, trained = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("out", "run"))
    assert evaluated["mae"] == pytest.approx(trained["mae"], abs=1e-6) and "mae" in done.stdout
    about = ("data", "split", "preprocess", "classes")
    assert [evaluated[key] for key in about] == [trained[key] for key in about] and trained["data"] == "digits"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clasification", 'Unknown task "clasification". Did you mean "classification"'),
        ("no.such.module:Ink", 'module "no.such.module" cannot be imported'),
        ("/none/ink.py:Ink", 'file "/none/ink.py" does not exist'),
        (INK.replace(":Ink", ":Score"), "is not a task: Score should be a subclass"),
        (INK.replace(":Ink", ":Inc"), "is not a task: Inc should be"),
    ],
)
def test_unknown_tasks_are_clear_errors(name, message):
    with pytest.raises(ValueError, match=message):
        find_task(name)


def test_options_that_a_task_would_ignore_are_refused(config, tmp_path):
    config.update(mixup=0.2, linear_probe=True, head="keep")
    config.loss.label_smoothing = 0.1
    options = "mixup=None .it is 0.2.*label_smoothing=0 .it is 0.1.*head=reset .it is 'keep'.*linear_probe=False"
    with pytest.raises(ValueError, match=f"Ink does not use some options.*{options}"):
        run(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_task_that_cannot_start_from_a_checkpoint_says_so(config, tmp_path):
    config.init = "some/model.keras"
    with pytest.raises(ValueError, match="Ink starts from random weights; it cannot start from config.init"):
        run(config, tmp_path)


def test_a_model_of_keras_own_class_is_refused(config, tmp_path):
    task = tmp_path / "plain.py"
    task.write_text(
        "import keras\nfrom keras_vit.tasks import Task\n\n\nclass Plain(Task):\n    def build(self, source):\n"
        "        image = keras.Input((8, 8, 1))\n        return keras.Model(image, image)\n"
    )
    config.task = f"{task}:Plain"
    with pytest.raises(ValueError, match="Plain.build returned a Functional, not a keras_vit.Model"):
        run(config, tmp_path / "run")


def test_a_score_that_was_not_measured_is_a_clear_error():
    with pytest.raises(ValueError, match='no measure "mae".*It has: loss, mse'):
        Score("mae", higher_is_better=False).rank({"loss": 1.0, "mse": 2.0})


@dataclasses.dataclass(frozen=True)
class _Twice:
    factor: float = 2.0


class Doubling(find_task(INK)):
    """Ink with an option of its own, which hands on a model with doubled outputs."""

    Options = _Twice

    def deliver(self, model):
        return keras_vit.Model(model.input, keras.layers.Rescaling(self.options.factor)(model.output))


def test_a_task_has_options_and_says_what_a_run_leaves(config, tmp_path, eagerly):
    config.task = "classification"
    with pytest.raises(
        ValueError, match=r'no option "factor" \(--config.objective.factor\). It has no options of its own'
    ):
        find_task("classification")(config_with(config, factor=3.0))
    with pytest.raises(ValueError, match=r'no option "facto" .* Did you mean "factor"'):
        Doubling(config_with(config, facto=3.0))
    task = Doubling(config_with(config, factor=3.0))
    source = open_source("digits", "test[:32]")
    vit = task.build(source)
    delivered = task.deliver(vit)
    images = np.zeros((2, 8, 8, 1), "uint8")
    np.testing.assert_allclose(delivered.predict(images), 3 * vit.predict(images), rtol=1e-6)


def config_with(config, **options):
    config = config.copy_and_resolve_references()
    config.objective.update(options)
    return config


@register("patches_of_grey")
@dataclasses.dataclass(frozen=True)
class Grey(Evaluator):
    """Measures the step and draws it."""

    def prepare(self, setting):
        def evaluate():
            step = int(setting.model.optimizer.iterations)
            return Evaluation({"step": float(step)}, pictures={"grey": np.full((4, 6, 3), step, "uint8")})

        return evaluate


def test_pictures_of_evaluators_are_kept_and_reported(config, tmp_path):
    config.evals.patches_of_grey = {"every": "3 steps"}
    run(config, tmp_path)
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "patches_of_grey_grey_00000003.png",
        "patches_of_grey_grey_00000006.png",
    ]
    assert (
        keras.utils.img_to_array(
            keras.utils.load_img(tmp_path / "pictures" / "patches_of_grey_grey_00000006.png")
        ).max()
        == 6
    )
    page = (tmp_path / "report.html").read_text()
    assert "Patches of grey" in page and "grey, step 3" in page and "grey, step 6" in page
