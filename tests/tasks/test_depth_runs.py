"""A short run of the recipe for depth on drawn scenes: a model, a report with pictures, and its head kept."""

import pytest
import short_runs
from depth_scenes import write

import keras_vit
from trainers import config_files


def config_of(folder, **options):
    config = config_files.load_config("depth:linear")
    config.update(total="4 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=4, jit_compile=False)
    config.model.update(variant="Ti/16", image_size=(32, 32), **short_runs.SMALL)
    text = "decode|resize(32, 32)"
    config.data.update(source=f"depth:{folder}?scale=0.001", train="train", evaluation="val")
    config.data.update(train_preprocess=f"{text}|random_flip", eval_preprocess=text)
    config.update_from_flattened_dict(options)
    return config


@pytest.mark.extended
def test_a_run_measures_draws_and_starts_another(tmp_path):
    scenes = write(tmp_path / "scenes", (8, 4), (24, 32))
    first = short_runs.whole(config_of(scenes), tmp_path / "first")
    assert isinstance(first.model, keras_vit.DepthModel) and first.measures["examples"] == 4
    assert {"abs_rel", "rmse", "delta1", "loss"} <= first.measures.keys()
    assert "AbsRel" in first.page and "data:image/png" in first.page
    kept = {"init": str(first.folder), "head": "keep", "model.variant": None, "model.depth": None, "model.width": None}
    kept |= {"model.heads": None, "model.mlp_dim": None, "objective.kind": "metric", "objective.loss": "l1"}
    again = short_runs.whole(config_of(scenes, **kept), tmp_path / "again")
    assert again.model.head_name == "linear" and again.model.max_depth == 10


@pytest.mark.extended
def test_relative_depth_is_trained_and_measured_after_alignment(tmp_path):
    scenes = write(tmp_path / "scenes", (8, 4), (24, 32))
    found = short_runs.whole(config_of(scenes, **{"objective.kind": "relative"}), tmp_path)
    assert found.model.kind == "relative" and found.measures["abs_rel"] < 1
