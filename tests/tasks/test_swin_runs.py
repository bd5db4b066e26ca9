"""Runs of tiny Swins: a classifier resumes bit for bit, and a segmentation model trains on CamVid."""

import numpy as np
import pytest
import short_runs
from small_models import eager

from keras_vit.models import feature_map
from keras_vit.runs import RunDirectory
from trainers import config_files

TINY = {"variant": "Swin-T", "width": 8, "depths": (1, 1, 1, 1), "heads": 1, "window": 2}


@pytest.mark.extended
def test_a_classifier_resumes_bit_for_bit(tmp_path):
    config = short_runs.small(total="2 steps", checkpoint="1 steps", evaluate="2 steps")
    of_a_vit = {*config.model.keys()} - {"image_size", "channels", "remat"}
    config.model.update(dict.fromkeys(of_a_vit))
    config.model.update(TINY, depths=(2,), patch_size=1, dropout=0.1, attention_dropout=0.1, drop_path=0.2)
    folders = [tmp_path / name for name in ("whole", "resumed")]
    with eager(), short_runs.copied_at_its_first_checkpoint(*folders):
        for folder in folders:
            short_runs.ended(config, folder)
    whole, resumed = (RunDirectory(folder).checkpoints()[2].read_bytes() for folder in folders)
    assert resumed == whole


@pytest.mark.extended
def test_upernet_trains_on_camvid_with_maps_of_four_strides(shared_data, tmp_path):
    config = config_files.load_config("segmentation:upernet")
    config.model.update(TINY, image_size=32)
    config.objective.update(auxiliary=0.0, head_options={"width": 8, "bins": (1,)})
    config.update(total="2 steps", batch_size=2, evaluate="2 steps", checkpoint="2 steps", keep_best=False)
    config.data.update(source=f"masks:{shared_data / 'camvid'}", train="train[:4]", evaluation="val[:2]")
    config.data.train_preprocess = config.data.eval_preprocess = "decode|resize(32, 32)"
    with eager():
        model = short_runs.ended(config, tmp_path)
    maps = feature_map(model, [*model.decoder.taps])
    assert [x.shape[1:] for x in maps] == [(8, 8, 8), (4, 4, 16), (2, 2, 32), (1, 1, 64)]
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
