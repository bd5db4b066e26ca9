"""Checkpoints of other libraries, written again from their goldens, and how far our outputs are from theirs.

goldens/*.json holds, for each case, names and shapes of the arrays in the file and the outputs of the original library,
which it names; originals.py writes them. The values of the arrays are sampled by name (sampled.py).

    python tests/checkpoints/golden_files.py DIR    # the differences of all goldens in DIR, such as originals.py --full
    writes
"""

import functools
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
from sampled import pixels, sample

import keras_vit
from keras_vit.layers.arguments import as_named_now

FOLDER = pathlib.Path(__file__).parent / "goldens"
GOLDENS = {path.stem: path for path in sorted(FOLDER.glob("*.json")) if path.stem != "resample"}


@functools.cache
def golden(name):
    """The fields of a golden, by its name or path."""
    return json.loads(GOLDENS.get(name, name).read_text())


@functools.cache
def golden_arrays(name):
    """{name: array} of the file of a golden."""
    return {key: sample(key, shape, golden(name)["scale"]) for key, shape in golden(name)["shapes"].items()}


def write(name, folder):
    """Writes the file of a golden into `folder` as its library would; returns (golden, path, arguments of load)."""
    fields, arrays = golden(name), golden_arrays(name)
    if fields["format"] == "google":
        path = folder / "weights.npz"
        np.savez(path, **arrays)
    else:
        path = folder / "model.safetensors"
        safetensors.numpy.save_file(arrays, path)
        if fields["config"]:
            (folder / "config.json").write_text(json.dumps(fields["config"]))
    arguments = {"mean": fields["mean"], "std": fields["std"], "image_size": fields["image_size"], **fields["load"]}
    arguments = as_named_now(arguments)  # goldens are older than some names
    if fields["format"] != "google" and not fields["config"]:
        arguments = {**_answers(name), **arguments}
    return fields, path, arguments


def _answers(name):
    """Arguments of `load` for what a golden without a config does not show: the defaults of its library."""
    if "swin" in name:
        return {}
    epsilon = next(e for part, e in (("vit_state", 1e-12), ("dinov2", 1e-6), ("", 1e-5)) if part in name)
    shows_pool = name in ("own_tutorial", "lucidrains", "lucidrains_mean", "hf_dinov2_state")
    return {"epsilon": epsilon, "mlp_activation": "gelu", **({} if shows_pool else {"pool": "token"})}


def difference(name, folder):
    """The largest absolute difference between our outputs and the original's."""
    fields, path, arguments = write(name, folder)
    model = keras_vit.load(path, **arguments)
    return np.abs(np.asarray(model(pixels(*fields["image_size"]))) - np.array(fields["values"])).max()


def main():
    """Prints the difference of each golden in a folder, and its library."""
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        if path.stem != "resample":
            with tempfile.TemporaryDirectory() as folder:
                print(
                    f"{path.stem:28} {difference(path, pathlib.Path(folder)):.1e}  {golden(path)['library']}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
