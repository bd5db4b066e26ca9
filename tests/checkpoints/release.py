"""Writes the golden files of a release: what this version saves, for every later version to load.

    PYTHONPATH=.:tests/checkpoints python tests/checkpoints/release.py

Run it once, when the version in keras_vit/version.py is released; the files in released/VERSION are never written
again.
"""

import functools
import json
import os
import pathlib
import shutil
import tempfile

import keras
import numpy as np
from sampled import pixels, sample

import keras_vit
from keras_vit.runs import training_run
from trainers import config_files

SIZE = {"depth": 1, "width": 8, "heads": 2, "mlp_dim": 16, "classes": 3, "class_names": ["a", "b", "c"]}
# Name of the file: (variant, arguments, format).
FILES = {
    "vit.keras": ("Ti/4", {"image_size": (8, 12), "registers": 1, "layer_scale": 0.1, "dropout": 0.1, **SIZE}, "keras"),
    "map.keras": (
        "Ti/4",
        {"image_size": 8, "pool": "map", "preprocessing": "decode|resize(8, 8)", "dtype": "mixed_bfloat16", **SIZE},
        "keras",
    ),
    "vit.npz": ("Ti/4", {"image_size": (8, 12), "mlp_activation": "gelu_tanh", **SIZE}, "google"),
    "timm": ("Ti/4", {"image_size": (8, 12), "distillation_token": True, **SIZE}, "timm"),
    "huggingface": ("Ti/4", {"image_size": 8, **SIZE}, "huggingface"),
    "conv_stem.keras": (
        "Ti/1",
        {"image_size": 8, "conv_stem": (4, 8), "pool": "gap", "positions": "sincos2d", "fc_norm": True, **SIZE},
        "keras",
    ),
    "distilled.keras": (
        "Ti/4",
        {"image_size": 8, "distillation_token": True, "qk_norm": True, "mlp_form": "swiglu", **SIZE},
        "keras",
    ),
    "hybrid.npz": ("Ti/1", {"image_size": 32, "stem": (), "stem_width": 32, **SIZE}, "google"),
    "positions.keras": (
        "Ti/4",
        {"image_size": 8, "positions": "rope2d", "pool": "gap", "head_bias": -1.0, **SIZE},
        "keras",
    ),
    "relative.keras": ("Ti/4", {"image_size": 8, "positions": "relative2d", "qk_norm": True, **SIZE}, "keras"),
    "palette.keras": (
        "Ti/1",
        {"image_size": 4, "palette": 8, "causal": True, "pool": "gap", "positions_at": "every", **SIZE},
        "keras",
    ),
    "bit.keras": (
        "bit",
        {"image_size": 32, "units": (1,), "width_factor": 0.5, "classes": 3, "class_names": ["a", "b", "c"]},
        "keras",
    ),
}
# Runs, each stopped at its middle: (binary, config, overrides). The second starts from the first.
STEPS = 8
RUNS = {
    "pretrain": (
        "pretrain",
        "digits_pretrain",
        {
            "mixup": 0.2,
            "optimizer.ema": 0.9,
            "model.dropout": 0.1,
            "model.drop_path": 0.1,
            "evals.few_shot": {"source": "digits", "shots": (1,)},
        },
    ),
    "finetune": (
        "finetune",
        "digits_finetune",
        {
            "optimizer.name": "momentum",
            "optimizer.swa": "50%",
            "optimizer.lookahead": 3,
            "optimizer.layer_decay": 0.8,
            "cutmix": 0.5,
        },
    ),
}


def make(variant, arguments):
    """The file's model; every weight is sampled by its path."""
    model = keras_vit.BiT("R50x1", **arguments) if variant == "bit" else keras_vit.ViT(variant, **arguments)
    for weight in model.weights:
        weight.assign(sample(weight.path.split("/", 1)[-1], weight.shape, 0.2))
    return model


def configured(name, init):
    """The config of a run of RUNS: a tiny model, eight steps of eight digits."""
    config = config_files.load_config(RUNS[name][1])
    config.update(
        total=f"{STEPS} steps", evaluate="4 steps", checkpoint="4 steps", keep=9, batch_size=8, jit_compile=False
    )
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(train="train[:64]", evaluation="test[:32]")
    for key, value in {**RUNS[name][2], "init": init}.items():
        *places, last = key.split(".")
        functools.reduce(lambda place, part: place[part], places, config)[last] = value
    return config


def write_runs(folder):
    """Run directories as they are at the middle, and beside each, in NAME.end.safetensors, the state at its end."""
    init = ""
    for name in RUNS:
        with tempfile.TemporaryDirectory() as place:
            run = pathlib.Path(place) / name
            training_run.run(configured(name, init), run)
            kept = folder / name
            (kept / "checkpoints").mkdir(parents=True)
            shutil.copy(run / "config.json", kept)
            middle, end = (f"step_{step:08d}.safetensors" for step in (STEPS // 2, STEPS))
            shutil.copy(run / "checkpoints" / middle, kept / "checkpoints")
            shutil.copy(run / "checkpoints" / end, folder / f"{name}.end.safetensors")
            lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
            (kept / "metrics.jsonl").write_text("".join(lines[:1]))
            if name == "pretrain":
                shutil.copy(run / "model.keras", folder / "pretrain.init.keras")
        init = os.path.relpath(folder / "pretrain.init.keras")  # from the checkout: it stands in the run's config


def main():
    folder = pathlib.Path(__file__).parent / "released" / keras_vit.__version__
    folder.mkdir(parents=True)
    expected = {}
    for name, (variant, arguments, form) in FILES.items():
        keras.utils.set_random_seed(0)
        model = make(variant, arguments)
        keras_vit.save(model, folder / name, format=form)
        expected[name] = np.asarray(model(pixels(*model.image_size))).tolist()
    (folder / "expected.json").write_text(json.dumps(expected))
    write_runs(folder / "runs")


if __name__ == "__main__":
    main()
