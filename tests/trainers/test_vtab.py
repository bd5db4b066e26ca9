"""VTAB-1k by one command: tasks whose data is there, those that are missing, the means of the groups, the commands that
fine-tune.
"""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation.vtab import VtabTask, means
from trainers import config_files, vtab

lib = pytest.importorskip("tensorflow_datasets")
TABLE = config_files.packaged("lib.vtab")
config_files.packaged("vtab_finetune")  # reads the table when it is imported, which tests change


class MadeScenes(lib.core.GeneratorBasedBuilder):
    """850 pictures of two classes, dark and light, and 40 to test on; light ones have the orientations 20 and above."""

    VERSION = lib.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": lib.features.Image(shape=(4, 4, 3), encoding_format="png"),
            "label": lib.features.ClassLabel(num_classes=2),
            "label_orientation": lib.features.ClassLabel(num_classes=40),
        }
        return lib.core.DatasetInfo(builder=self, features=lib.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(850), "test": self._generate_examples(40)}

    def _generate_examples(self, count):
        for i in range(count):
            picture = np.full((4, 4, 3), 40 + 150 * (i % 2) + i % 30, "uint8")
            yield i, {"image": picture, "label": i % 2, "label_orientation": (i % 2) * 20 + i % 20}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    MadeScenes(data_dir=folder).download_and_prepare()
    return folder


@pytest.fixture
def ran(tmp_path, monkeypatch, binary, data_dir):
    """A function: runs the binary in this process on three tasks, of which one is not prepared; returns what it
    printed.
    """
    tasks = {
        "scenes": ("natural", "made_scenes", "train[800:850]", "test"),
        "pets": TABLE.TASKS["pets"],
        "orientation": ("structured", "made_scenes?label=group(label_orientation, 2)", "train[800:850]", "test"),
    }
    monkeypatch.setattr(TABLE, "TASKS", tasks)
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/2", image_size=4, classes=3, depth=1, width=16, heads=2, mlp_dim=16)
    monkeypatch.setattr(keras_vit, "load", lambda *_, **__: model)

    given = {"model": "m", "method": "ridge", "output": str(tmp_path / "out"), "data_dir": data_dir}
    return lambda **options: binary(vtab, **{**given, **options})


@pytest.mark.extended
def test_tasks_that_are_there_are_measured_and_the_others_named(ran, tmp_path):
    printed = ran()
    content = json.loads((tmp_path / "out" / "vtab.json").read_text())
    assert {name: found["top1"] for name, found in content["tasks"].items()} == {"scenes": 1.0, "orientation": 1.0}
    assert content["tasks"]["scenes"]["train_images"] == 850 and content["tasks"]["scenes"]["examples"] == 40
    assert list(content["missing"]) == ["pets"] and "tfds build oxford_iiit_pet" in content["missing"]["pets"]
    assert content["means"]["natural"] == {"mean": 1.0, "measured": 1, "tasks": 2}
    assert "1 of 2 tasks: not the benchmark's figure" in printed and "Not prepared: pets" in printed
    assert (tmp_path / "out" / "vtab.png").exists()


def test_the_commands_that_fine_tune_are_printed(ran, data_dir):
    lines = ran(finetune="B/16", model="L.npz", output="runs/v", data_dir=data_dir).splitlines()
    command = (
        "keras-vit finetune --config=vtab_finetune:{0},B/16 --config.init=L.npz --data_dir={1} --workdir=runs/v/{0}"
    )
    assert lines == [*(command.format(name, data_dir) for name in ("scenes", "orientation")), "# Not prepared: pets."]
    with pytest.raises(ValueError, match='VTAB has no task "scene". Did you mean "scenes"'):
        ran(tasks="scene")
    with pytest.raises(ValueError, match="the recipe vtab_finetune has B/16"):
        ran(finetune="S/16")


def test_the_benchmark_has_nineteen_tasks_in_three_groups():
    """7, 4 and 8 (arXiv 1910.04867, section 3.1); the mean is over tasks, not over groups."""
    tasks = {name: VtabTask(*row) for name, row in TABLE.TASKS.items()}
    found = means(tasks, dict.fromkeys(tasks, 0.0) | {"dtd": 0.7})
    sizes = {group: whole for group, (_, _, whole) in found.items()}
    assert sizes == {"natural": 7, "specialized": 4, "structured": 8, "all": 19}
    assert found["natural"][0] == pytest.approx(0.1) and found["all"][0] == pytest.approx(0.7 / 19)
    assert means(tasks, {})["all"] == (None, 0, 19)
    assert VtabTask(*TABLE.TASKS["svhn"]).train == "train[:800]+train[65931:66131]"
    task = VtabTask(*TABLE.TASKS["dsprites-location"], zero_one=True)
    assert task.preprocess(8, 9) == "decode|multiply(255)|resize(8, 9)"


def test_the_commands_fit_the_model(ran):
    """A variant of the recipe is asked for by its name; for others the run must not check the name."""
    with pytest.raises(ValueError, match="augreg/L_16-i21k has the variant L/16. Pass --finetune=L/16."):
        ran(finetune="B/16", model="augreg/L_16-i21k")
    assert "variant=None" not in ran(finetune="L/16", model="augreg/L_16-i21k")
    assert "--config.init=deit/tiny --config.model.variant=None" in ran(finetune="B/16", model="deit/tiny")
