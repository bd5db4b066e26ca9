"""A config.json that contradicts the arrays of a dense model, or has settings of another, is refused by name."""

import json

import pytest
from dense_files import golden, write

import keras_vit

# (golden, settings of its config.json, what the message says)
REFUSED = [
    ("dpt_classes", {"model_type": "zoedepth"}, "model_type='zoedepth'"),
    ("dpt_classes", {"is_hybrid": True}, "is_hybrid=True"),
    ("dpt_classes", {"reassemble_factors": [2, 2, 1, 0.5]}, "reassemble_factors"),
    ("dpt_classes", {"head_in_index": 0}, "head_in_index=0"),
    ("dpt_classes", {"backbone_out_indices": [0, 1, 2, 9]}, "backbone_out_indices.* from 0 to 4"),
    ("dpt_classes", {"hidden_act": "relu"}, "hidden_act"),
    ("dpt_classes", {"readout_type": "add"}, "readout_type"),
    ("dpt_classes", {"id2label": {"0": "wall"}}, "id2label"),
    ("beit", {"use_shared_relative_position_bias": True}, "use_shared_relative_position_bias is True"),
    ("beit", {"out_indices": [1, 2, 3, 4]}, "out_indices.* from 2 to 5"),
    ("beit", {"image_size": 40}, "the number of offsets, by image_size, is 81 in config.json, 49"),
    ("eomt", {"model_type": "eomt_dinov3"}, "model_type"),
    ("eomt", {"num_queries": 7}, "num_queries"),
    ("eomt", {"num_register_tokens": 4}, "num_register_tokens"),
    ("eomt", {"hidden_act": "relu"}, "hidden_act"),
    ("eomt", {"num_blocks": 9}, "blocks=9: the encoder has 3"),
    ("yolos", {"model_type": "detr"}, "model_type"),
    ("yolos", {"num_detection_tokens": 7}, "num_detection_tokens"),
    ("yolos", {"use_mid_position_embeddings": True}, "use_mid_position_embeddings"),
    ("yolos", {"hidden_act": "relu"}, "hidden_act"),
    ("lw_detr", {"model_type": "detr"}, "model_type='detr'"),
    ("lw_detr", {"backbone_config": {"out_indices": [0, 2]}}, "out_indices in config.json should name outputs"),
    ("lw_detr", {"backbone_config": {"num_windows": 5}}, "num_windows"),
    ("rf_detr", {"num_queries": 7}, "num_queries"),
    ("rf_detr", {"activation_function": "relu"}, "activation_function='relu'"),
    ("rf_detr", {"backbone_config": {"use_swiglu_ffn": True}}, "backbone_config.use_swiglu_ffn=True"),
    ("rf_detr", {"backbone_config": None}, "need their config.json"),
    ("rf_detr_seg", {"segmentation_head_activation_function": "relu"}, "segmentation_head_activation_function='relu'"),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_settings_that_contradict_the_arrays_or_are_not_implemented(name, settings, message, tmp_path):
    write(name, tmp_path)
    config = dict(golden(name)["config"])
    for key, value in settings.items():
        config[key] = {**config[key], **value} if key == "backbone_config" and value else value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path)
