"""Writes goldens/gradients.npz: gradients of a Swin V1 and a Swin V2 by Hugging Face's transformers.

Run by hand, with transformers and torch installed; the golden names their versions:

    python tests/checkpoints/originals_gradients.py

The models are those of goldens/hf_swin.json and hf_swinv2.json, and the loss is the sum of the squared logits. Weights
are named as in files. Key biases are left out: their gradients are rounding errors only.
"""

import json
import pathlib
import re
import tempfile

import numpy as np
import torch
import transformers
from original_models import inputs, sampled_tensors
from original_resampling import library
from originals_masked import gradients
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "goldens"
# Small weights of each kind of layer; those of attention from a block with shifted windows.
KEPT = re.compile(
    r"projection\.bias|layers\.0\.blocks\.1\.attention\.(self\.(query|value|relative_position_bias_table|logit_scale"
    r"|continuous_position_bias_mlp\.2)|output\.dense\.bias)|downsample\.norm|blocks\.0\.output\.dense\.bias"
    r"|layernorm\.weight|classifier\.bias"
)


def swin(name):
    """{name/gradients/name in a file: gradient} of a golden's model."""
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    kind = getattr(transformers, golden["config"]["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(golden["config"]))
        save_file(sampled_tensors(golden["shapes"], golden["scale"]), f"{folder}/model.safetensors", {"format": "pt"})
        model = kind.from_pretrained(folder).eval()
    images = inputs(golden["image_size"], (golden["mean"], golden["std"])).transpose(0, 3, 1, 2)
    logits = model(torch.tensor(images)).logits
    np.testing.assert_allclose(logits.detach(), golden["values"], atol=1e-6)
    logits.square().sum().backward()
    return gradients(name, model)


if __name__ == "__main__":
    found = {**swin("hf_swin"), **swin("hf_swinv2")}
    kept = {name: gradient for name, gradient in found.items() if KEPT.search(name)}
    np.savez_compressed(FOLDER / "gradients.npz", library=library("transformers", "torch"), **kept)
