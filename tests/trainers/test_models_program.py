"""`keras-vit models`: its tables and JSON, for names and for files."""

import functools
import json

import pytest

import keras_vit
from trainers import models


@pytest.fixture
def run(binary):
    """Runs the command with patterns and flags, and returns what it prints."""
    return functools.partial(binary, models)


def test_a_table_of_published_models(run):
    lines = run("deit/tiny*").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["deit/tiny", "deit/tiny-distilled"]
    assert lines[1].split()[1:4] == ["224", "5,717,416", "2.51"] and lines[1].endswith("safetensors, .pth")


@pytest.mark.extended
def test_layers_of_a_name_and_of_a_file(run, tmp_path, tiny):
    assert run(layers="S/16").splitlines()[-1].split()[:4] == ["in", "all", "22,050,664", "9,197.76"]
    path = str(tmp_path / "model.keras")
    keras_vit.save(tiny(), path)
    rows = json.loads(run(layers=path, json=True))
    assert sum(row["parameters"] for row in rows) == tiny().count_params()
    assert [row["name"] for row in rows][-3:] == ["encoder_norm", "pool", "head"]


def test_json_has_plain_numbers(run):
    [row] = json.loads(run("R50x1", json=True, image_size=128))
    assert row["image_size"] == [128, 128] and row["parameters"] == 25_549_352


def test_a_pattern_beside_layers_is_refused(run):
    with pytest.raises(ValueError, match="One pattern, or --layers"):
        run("deit/*", layers="B/16")
