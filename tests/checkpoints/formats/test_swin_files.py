"""Swin's heads by the bias tables, and its image size by the masks of the original's files."""

import numpy as np
import pytest
import safetensors.numpy
from golden_files import golden, golden_arrays

from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read

TOLD = {"mean": 127.5, "std": 127.5}


def parsed(arrays, folder, **told):
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return parse(read(folder / "model.safetensors"), {**TOLD, **told})


def test_stages_whose_heads_do_not_double_are_refused(tmp_path):
    arrays = dict(golden_arrays("timm_swin"))
    for name in [name for name in arrays if name.startswith("layers.1.") and name.endswith("bias_table")]:
        arrays[name] = np.ascontiguousarray(arrays[name][:, : arrays[name].shape[1] // 2])
    with pytest.raises(ValueError, match="The stages have 2, 2 attention heads.*cannot be expressed"):
        parsed(arrays, tmp_path, image_size=36)


def test_the_masks_of_shifted_windows_show_the_image_size(tmp_path):
    arrays = dict(golden_arrays("timm_swin"))
    patch, window = (
        arrays["patch_embed.proj.weight"].shape[2],
        golden("timm_swin")["config"]["model_args"]["window_size"],
    )
    masks = np.zeros((9, window**2, window**2), "float32")  # 3 x 3 windows
    found = parsed({**arrays, "layers.0.blocks.1.attn_mask": masks}, tmp_path)
    assert found.image_size == (3 * window * patch,) * 2
