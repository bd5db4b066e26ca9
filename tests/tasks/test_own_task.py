"""A user's own task, ink.py: it trains, resumes, reports its measure and sweeps by its score."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import short_runs

import keras_vit
from keras_vit.data import open_source
from keras_vit.distribution import Strategy
from keras_vit.evaluation import Evaluation, Evaluator, register
from keras_vit.planning import dry_run
from keras_vit.runs import run, run_sweep
from keras_vit.tasks import find_task
from trainers import config_files, evaluate

INK = f"{pathlib.Path(__file__).with_name('ink.py')}:Ink"


@pytest.fixture
def config():
    return small()


def small():
    config = short_runs.small(INK, **{"model.width": 32, "model.mlp_dim": 32})
    config.data.update(dev_train="train[:48]", dev_evaluation="train[48:64]")
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


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    config = small()
    config.optimizer.learning_rate = 1e-2
    config.evals.patches_of_grey = {"every": "2 steps"}
    return short_runs.whole(config, tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_it_reports_its_own_measure_and_learns(done):
    first, last = done.records
    assert [first["step"], last["step"]] == [2, 4] and last["loss"] < first["loss"]
    assert done.measures["mae"] == pytest.approx(last["val_mae"], rel=1e-5) and done.measures["examples"] == 32
    assert done.evaluation["mae"] == done.measures["mae"]
    assert "mae" in done.page and (done.folder / "model.keras").exists()


@pytest.mark.extended
def test_pictures_of_evaluators_are_kept_and_reported(done):
    names = [f"patches_of_grey_grey_0000000{step}.png" for step in (2, 4)]
    assert sorted(path.name for path in (done.folder / "pictures").iterdir()) == names
    assert keras.utils.img_to_array(keras.utils.load_img(done.folder / "pictures" / names[1])).max() == 4
    assert all(words in done.page for words in ("Patches of grey", "grey, step 2", "grey, step 4"))


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
        and "4 steps of 16 images" in text
    )


@pytest.mark.extended
def test_the_binary_evaluates_it(done, binary, tmp_path):
    printed = binary(evaluate, model=str(done.folder), output=str(tmp_path))
    evaluated = json.loads((tmp_path / "evaluation.json").read_text())
    assert evaluated["mae"] == pytest.approx(done.measures["mae"], abs=1e-6) and "mae" in printed
    about = ("data", "split", "preprocess", "classes")
    assert [evaluated[key] for key in about] == [done.evaluation[key] for key in about]
    assert evaluated["data"] == "digits"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clasification", 'Unknown task "clasification". Did you mean "classification"'),
        ("no.such.module:Ink", 'module "no.such.module" cannot be imported'),
        ("/none/ink.py:Ink", 'file "/none/ink.py" does not exist'),
        (INK.replace(":Ink", ":Score"), "is not a task: expected Score in .* to be a subclass"),
        (INK.replace(":Ink", ":Inc"), "is not a task: expected Inc in"),
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
    with pytest.raises(ValueError, match="Ink starts from random weights and cannot start from config.init"):
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


@dataclasses.dataclass(frozen=True)
class _Twice:
    factor: float = 2.0


class Doubling(find_task(INK)):
    """Ink with an option of its own, which hands on a model with doubled outputs."""

    Options = _Twice

    def deliver(self, model):
        return keras_vit.Model(model.input, keras.layers.Rescaling(self.options.factor)(model.output))


def test_a_task_has_options_and_says_what_a_run_leaves(config):
    config.task = "classification"
    with pytest.raises(ValueError, match=r'no option "factor" \(--config.objective.factor\). It has no options'):
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


@pytest.mark.parametrize(("task", "name"), [("classification", "top1"), ("segmentation", "miou"), ("detection", "ap")])
def test_of_packaged_scores_more_is_better(task, name):
    score = find_task(task).score
    assert (score.name, score.higher_is_better, score.percent) == (name, True, True)
    assert score.rank({name: 0.5, "loss": 1.0}) > score.rank({name: 0.3, "loss": 1.0})
