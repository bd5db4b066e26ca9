"""A model is measured on the images that its run held out, never silently on those that it was trained on."""

import json
import logging
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from keras_vit.data import open_source
from keras_vit.data.usual_splits import PLAIN, usual_splits
from keras_vit.runs.evaluate import own_data
from keras_vit.runs.own_data import check_held_out, file_digests
from trainers import train


@pytest.fixture
def run(tmp_path):
    """(photos, run directory): a folder of two classes, and a run on its first four fifths."""
    for i in range(20):
        path = tmp_path / "photos" / ("cat" if i % 4 else "dog") / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    text = f"folder:{tmp_path}/photos"
    data = {"source": text, "train": PLAIN[0], "evaluation": PLAIN[1]}
    files = file_digests(*(open_source(text, split) for split in PLAIN))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"total": 5, "data": data, "files": files}))
    return tmp_path / "photos", tmp_path / "run"


@pytest.fixture
def check(run, caplog):
    """A function: checks a split of the run's folder; returns the warnings."""
    logging.getLogger("absl").propagate = True

    def checked(split, asked=True):
        caplog.clear()
        text = f"folder:{run[0]}"
        check_held_out(own_data(str(run[1])), text, split, open_source(text, split), None, asked)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    return checked


def test_the_held_out_images_are_measured_and_others_with_a_warning(run, check):
    own = own_data(str(run[1]))
    assert own.splits == PLAIN and own.is_source(f"folder:{run[0]}/../photos/", None)
    assert not own.is_source("folder:other", None)
    assert check("train[80%:]", asked=False) == [] and check("train[90%:]") == []
    [warning] = check("train[70%:]")
    assert f"{run[1]} was trained on 2 of the 6 images of folder:{run[0]}, train[70%:]" in warning


def test_a_folder_that_changed_since_is_refused_unless_the_split_is_named(run, check):
    (run[0] / "cat" / "0.jpg").touch()
    with pytest.raises(
        ValueError, match="Files of .* were added, .* so train.80%:. may contain images that it was trained on"
    ):
        check("train[80%:]", asked=False)
    assert "were added, removed or renamed" in check("train[80%:]")[0]


def test_so_is_a_run_of_a_version_that_split_in_another_way(run, check):
    content = json.loads((run[1] / "config.json").read_text())
    (run[1] / "config.json").write_text(json.dumps({**content, "files": None}))
    with pytest.raises(ValueError, match="was trained by a version of keras_vit that split .* in another way"):
        check("train[80%:]", asked=False)


def test_a_folder_that_moved_has_the_same_files(run, check, tmp_path):
    text = f"folder:{run[0].rename(tmp_path / 'elsewhere')}"
    assert file_digests(*(open_source(text, split) for split in PLAIN)) == own_data(str(run[1])).files


def test_what_is_held_out_where_no_run_says_so(run, tmp_path):
    assert usual_splits("cifar10", None) == ("train", "test")
    assert usual_splits(f"folder:{run[0]}", None) == PLAIN
    for split, name in (("train", "cat"), ("train", "dog"), ("val", "cat")):
        (tmp_path / "split" / split / name).mkdir(parents=True)
        (tmp_path / "split" / split / name / "a.jpg").touch()
    assert usual_splits("folder:split", str(tmp_path)) == ("train", "val")


def test_a_recipe_takes_the_validation_split_unless_flags_name_splits(run, tmp_path):
    for split, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("test", "cat")):
        (tmp_path / "split" / split / name).mkdir(parents=True)
        (tmp_path / "split" / split / name / "a.jpg").touch()

    def splits(source, **given):
        data = ConfigDict({"source": source, "train": PLAIN[0], "evaluation": PLAIN[1]})
        values = {"config": ConfigDict({"data": data}), "data_dir": str(tmp_path), "dry_run": False, **given}
        train._take_validation(SimpleNamespace(**values))
        return data.train, data.evaluation

    assert splits("folder:split") == ("train", "val")
    assert splits("folder:photos") == splits("digits") == PLAIN
    assert splits("folder:split", **{"config.data.train": PLAIN[0]}) == PLAIN
