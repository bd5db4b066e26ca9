"""Evaluators by name: packaged ones and one of a test's own, in a config and from text."""

import dataclasses
import json
import types

import numpy as np
import pytest

from keras_vit.data import from_arrays, open_source
from keras_vit.data.sources.selection import example_names
from keras_vit.distribution import Strategy
from keras_vit.evaluation import EVALUATORS, Evaluation, Evaluator, Setting, make_evaluator, parse_evaluators, register
from keras_vit.evaluation.data import open_data
from keras_vit.runs import RunDirectory, run
from trainers import config_files, evaluate


@pytest.fixture
def brightness():
    """An evaluator of this test's own: the mean logit on images of one grey."""

    @register("brightness")
    @dataclasses.dataclass(frozen=True)
    class Brightness(Evaluator):
        grey: int = 128

        def prepare(self, setting):
            shape = setting.model.input_shape[1:]

            def evaluate():
                logits = setting.model.predict_on_batch(np.full((2, *shape), self.grey, "uint8"))
                return Evaluation({"mean": float(np.mean(logits))}, {"grey": self.grey, "limit": setting.errors.limit})

            return evaluate

    yield Brightness
    del EVALUATORS["brightness"]


@pytest.mark.extended
def test_an_evaluator_of_ones_own_runs_at_its_own_interval(brightness, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras_vit.runs.training_run.finish", lambda prepared, model, *_: (model, {"top1": 0.0, "examples": 16})
    )
    config = config_files.load_config("digits_pretrain")
    config.update(total="3 steps", evaluate="1 steps", checkpoint="2 steps", batch_size=16, jit_compile=False)
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(train="train[:64]", evaluation="test[:16]", broken_limit=7)
    config.evals.brightness = {"every": "2 steps"}
    config.evals.black = {"evaluator": "brightness", "grey": 0}
    run(config, tmp_path)
    records = RunDirectory(tmp_path).metrics()
    seen = [(record["step"], sorted(key for key in record if "/" in key)) for record in records]
    assert seen == [(1, []), (2, ["brightness/mean"]), (3, ["black/mean", "brightness/mean"])]
    last = json.loads((tmp_path / "black.json").read_text())
    assert last == {"step": 3, "mean": records[2]["black/mean"], "grey": 0, "limit": 7}


@pytest.mark.extended
def test_a_run_names_the_evaluator_that_cannot_measure_and_how_to_leave_it_out(tmp_path):
    config = config_files.load_config("digits_pretrain")
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.evals.rebuilt = {"evaluator": "reconstructions"}
    with pytest.raises(ValueError, match=r"config.evals.rebuilt: .* needs a .*--config.evals.rebuilt=None"):
        run(config, tmp_path)


def test_text_names_evaluators_with_literal_options(brightness):
    evaluators = parse_evaluators("classification | few_shot(source='digits', shots=(1, 5)) | brightness(grey=3)")
    assert list(evaluators) == ["classification", "few_shot", "brightness"]
    assert evaluators["few_shot"].shots == (1, 5) and evaluators["brightness"].grey == 3
    text = "few_shot(source='digits', preprocess='decode(1)|resize(8)') |\n knn"
    assert parse_evaluators(text)["few_shot"].preprocess == "decode(1)|resize(8)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clasification", 'Unknown evaluator "clasification". Did you mean "classification"'),
        ("few_shot(shot=1)", 'unknown option "shot". Did you mean "shots"'),
        ("few_shot(shots='1,x')", "shots='1,x': expected integers above 0"),
        ("knn(k=__import__('os'))", "Cannot parse the evaluator"),
        ("knn|few_shot(source=digits)", "Cannot parse the evaluator .few_shot.*quote strings: source='digits'"),
        ("few_shot(source=folder:x)", "quote strings"),
        ("knn(5)", "Cannot parse the evaluator"),
        ("knn|knn", "named twice"),
        ("|", "names no evaluator"),
        ("calibration(bins=True)", "bins=True: expected a whole number above 0"),
        ("calibration(bins=0)", "bins=0"),
        ("calibration(fit='train')", 'fit="train" is a split of source=, which is missing'),
        ("corruptions(names=('fogg',))", 'unknown name "fogg". Did you mean "fog"'),
        ("corruptions(names=())", "names is empty"),
        ("corruptions(names=3)", "names=3: expected names"),
        ("corruptions(strengths=(0,))", "expected whole numbers from 1 to 5"),
        ("corruptions(strengths=1.0)", "whole numbers from 1 to 5"),
        ("shifts(pixels=(0,))", "whole numbers of pixels above 0"),
        ("shuffled_patches(grids=1)", "at least 2"),
        ("occlusion(shares=(0, 0.5))", "shares above 0"),
        ("occlusion(seed='a')", "seed='a': expected a whole number"),
        ("occlusion(patch=0)", "patch=0: expected a number of pixels above 0"),
        ("occlusion(fill=300, order='salient')", "fill=300: expected a level from 0 to 255"),
        ("occlusion(order='salty')", 'unknown order "salty". Did you mean "salient"'),
        ("occlusion(order='salient', patch=8)", "leave out patch=8"),
        ("segmentation(tolerance=5)", "a share of the diagonal"),
        ("segmentation(pictures=-1)", "a whole number"),
        ("segmentation(flips=True)", "need a window"),
        ("detection(limit=101)", "limit=101: expected a whole number from 1 to 100"),
        ("detection(threshold=30)", "threshold=30: expected a score from 0 to 1, or None"),
        ("real()", "set labels=PATH"),
    ],
)
def test_wrong_text_and_options_are_clear_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse_evaluators(text)


def test_a_name_is_registered_once(brightness):
    with pytest.raises(ValueError, match='"few_shot" is already registered, as FewShot'):
        register("few_shot")(brightness)


@pytest.mark.extended
def test_data_that_cannot_work_is_refused_before_anything_is_evaluated(tiny, pixels):
    source = from_arrays(pixels, [0, 1, 2, 3])
    with pytest.raises(ValueError, match="needs training data: set its source"):
        make_evaluator("knn", {}).prepare(Setting(tiny()))
    with pytest.raises(ValueError, match='"classification" needs data: set its source, .* or pass --data'):
        make_evaluator("classification", {}).prepare(Setting(tiny()))
    own = Setting(tiny(), source=from_arrays(pixels, [0, 1, 2, 3]), preprocess="decode")
    for name in ("classification", "shifts", "calibration"):
        with pytest.raises(ValueError, match='has split="val" but no source'):
            make_evaluator(name, {"split": "val"}).prepare(own)
    with pytest.raises(ValueError, match="has 5 classes, the data 4[.] If some have no examples"):
        make_evaluator("classification", {}).prepare(Setting(tiny(), source=source, preprocess="decode"))
    with pytest.raises(ValueError, match="gives images of .9, 9, 3., the model takes .8, 12, 3."):
        make_evaluator("classification", {}).prepare(
            Setting(tiny(classes=4), source=source, preprocess="decode|resize(9, 9)")
        )


def test_several_models_may_be_measured_by_an_evaluator_of_a_tasks_file(brightness, monkeypatch):
    """The file is imported with the model's task, before --evals is read."""
    del EVALUATORS["brightness"]
    measured = []

    def load_task(name):
        if name == "broken":
            raise ValueError("no such run")
        EVALUATORS["brightness"] = brightness

    monkeypatch.setattr("keras_vit.runs.evaluate.load_task", load_task)
    monkeypatch.setattr("keras_vit.runs.compare.write_comparison", lambda *_: None)
    monkeypatch.setattr(evaluate, "evaluate", lambda values, name, *_: measured.append(name) or {})
    values = types.SimpleNamespace(evals="brightness()", split=None, data=None, preprocess=None, output=None, sort=None)
    evaluate.evaluate_all(values, ["broken", "a"], Strategy())
    assert measured == ["broken", "a"]


def test_data_without_a_split_test_is_split_as_a_run_splits_it(tmp_path):
    for i in range(20):
        path = tmp_path / "cat dog".split()[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    text = f"folder:{tmp_path}"
    chosen = make_evaluator("few_shot", {"source": text})._with_splits(None)
    assert (chosen.train, chosen.test) == ("train[:80%]", "train[80%:]")
    given = make_evaluator("ridge", {"source": text, "test": "train[:10%]"})._with_splits(None)
    assert (given.train, given.test) == ("train", "train[:10%]")
    evaluator = make_evaluator("classification", {"source": text, "preprocess": "decode"})
    _, source, _ = open_data(evaluator, Setting(None))
    assert example_names(source) == example_names(open_source(text, "train[80%:]"))
