"""Malformed folders and .keras files: configs, indices, links, weights of another model. Adds to malformed.CASES."""

import functools
import io
import json
import os
import zipfile

import h5py
import numpy as np
import safetensors.numpy
from golden_files import golden_arrays
from malformed import each, foreign, good, put, zipped
from malformed_models import CONFIG, changed, written

BROKEN_JSON = {
    "empty": b"",
    "no json": b"{'a': 1}",
    "list": b"[]",
    "number": b"5",
    "null": b"null",
    "no utf-8": b'{"a": "\xff"}',
}
BROKEN_JSON |= {
    "nested": b"[" * 100_000,
    "digits": b'{"a": ' + b"9" * 10_000 + b"}",
    "cut": b'{"pretrained_cfg": {"mean": [0.5',
}


@each(BROKEN_JSON, ("config.json", "preprocessor_config.json", "model.safetensors.index.json"))
def json_file(sort, name, folder, rng):
    if "index" in name:
        return put(folder, {name: BROKEN_JSON[sort]}).parent
    data = safetensors.numpy.save(golden_arrays("hf_vit"))
    return put(folder, {"model.safetensors": data, name: BROKEN_JSON[sort]})


SETTINGS = {
    "hf_vit": [
        *[("num_attention_heads", new) for new in ("2", 3, 0, -2, 2.0, True, [2], 10**9)],
        *[("hidden_act", new) for new in (5, ["gelu"], "mish", {"name": "gelu"}, "os.system")],
        *[("layer_norm_eps", new) for new in ("1e-6", -1, 0, 5, True, float("nan"), [1e-6])],
        *[("image_size", new) for new in ("8", 8.5, {"height": 8}, [8], [8, "8"], -8, True)],
        *[
            ("id2label", new)
            for new in (["a"] * 5, "cat", {str(i): None for i in range(5)}, {i: "a" for i in range(1, 6)})
        ],
        *[("vision_config", new) for new in ([], "siglip")],
    ],
    "hf_dinov2_registers": [("num_register_tokens", new) for new in (3, "4", 10**9)],
    "timm_vit": [
        *[("pretrained_cfg", new) for new in ("cfg", [1], 5)],
        *[("model_args", new) for new in ("args", [1], True)],
        *[("model_args.num_heads", new) for new in ("2", 3, 0, -1, 2.0, True)],
        *[("pretrained_cfg.mean", new) for new in (0.5, "0.5", [0.5], [0.5, "a", 0.5], [], [float("nan")] * 3)],
        *[("pretrained_cfg.std", new) for new in ([0.5, 0, 0.5], [-1, -1, -1], {"r": 1}, [1e400] * 3)],
        *[("pretrained_cfg.crop_pct", new) for new in ("0.9", [0.9], True)],
        *[("pretrained_cfg.interpolation", new) for new in (3, ["bicubic"])],
    ],
    "timm_bit": [
        *[("pretrained_cfg", new) for new in ("cfg", [1])],
        *[("pretrained_cfg.input_size", new) for new in ("32", [32], [3, "32", "32"], [3, 0, 0], [3, 10**9, 10**9])],
        *[("pretrained_cfg.mean", new) for new in ("0.5", ["0.5"] * 3, [0.485])],
    ],
}
SETTINGS = {
    f"{name} {place}={json.dumps(new)[:30]}": (name, place, new)
    for name, rows in SETTINGS.items()
    for place, new in rows
}


@each(SETTINGS)
def setting(change, folder, rng):
    name, place, new = SETTINGS[change]
    arrays, config = foreign(name)
    return written(name, folder, arrays, changed(config, place, new))


PREPROCESSORS = {
    "mean text": {"image_mean": "0.5", "image_std": [0.5] * 3},
    "mean short": {"image_mean": [0.5], "image_std": [0.5]},
    "std zero": {"image_mean": [0.5] * 3, "image_std": [0, 0, 0]},
    "size text": {"size": "224", "resample": 2},
    "resample list": {"size": {"height": 8, "width": 8}, "resample": [2]},
    "edge text": {"size": {"shortest_edge": "8"}, "resample": 2},
    "crop zero": {"size": {"shortest_edge": 8}, "crop_size": {"height": -1}, "resample": 2, "do_center_crop": True},
    "edge huge": {
        "size": {"shortest_edge": 10**400},
        "crop_size": {"height": 1},
        "resample": 2,
        "do_center_crop": True,
    },
}


@each(PREPROCESSORS)
def preprocessor(sort, folder, rng):
    data = safetensors.numpy.save(golden_arrays("hf_vit"))
    return put(folder, {"model.safetensors": data, "preprocessor_config.json": PREPROCESSORS[sort]})


INDICES = {
    "no map": lambda names: {"metadata": {}},
    "empty": lambda names: {"weight_map": {}},
    "list": lambda names: {"weight_map": sorted(names)},
    "numbers": lambda names: {"weight_map": dict.fromkeys(names, 1)},
    "missing shard": lambda names: {"weight_map": {**names, "cls_token": "model-00002-of-00002.safetensors"}},
    "parent": lambda names: {"weight_map": dict.fromkeys(names, "../outside.safetensors")},
    "deep": lambda names: {"weight_map": dict.fromkeys(names, "../../x.safetensors")},
    "absolute": lambda names: {"weight_map": dict.fromkeys(names, "/etc/passwd")},
    "folder": lambda names: {"weight_map": dict.fromkeys(names, "inner/a.safetensors")},
    "dots": lambda names: {"weight_map": dict.fromkeys(names, "..")},
    "nothing": lambda names: {"weight_map": dict.fromkeys(names, "")},
    "zero byte": lambda names: {"weight_map": dict.fromkeys(names, "a\0.safetensors")},
    "long": lambda names: {"weight_map": dict.fromkeys(names, "a" * 5000)},
    "one too many": lambda names: {"weight_map": {**names, "blocks.9.norm1.weight": "a.safetensors"}},
    "one too few": lambda names: {"weight_map": {n: file for n, file in names.items() if n != "cls_token"}},
    "no shard": lambda names: {"weight_map": {**names, "cls_token": "page.html"}},
}


@each(INDICES)
def index(sort, folder, rng):
    arrays = golden_arrays("timm_vit")
    data = safetensors.numpy.save(arrays)
    inside = folder / "inside"
    for path in (inside, inside / "inner"):
        path.mkdir()
        (path / "a.safetensors").write_bytes(data)
    (folder / "outside.safetensors").write_bytes(data)
    (inside / "page.html").write_text("<html></html>")
    content = INDICES[sort](dict.fromkeys(arrays, "a.safetensors"))
    return put(inside, {"model.safetensors.index.json": content}).parent


@functools.cache
def parts():
    """{member: bytes} of a .keras file."""
    with zipfile.ZipFile(io.BytesIO(good("keras")["model.keras"])) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_config(folder, config):
    return put(folder, {"model.keras": zipped({**parts(), "config.json": config})})


@each(CONFIG)
def keras_config(change, folder, rng):
    place, new = CONFIG[change]
    return with_config(folder, json.dumps(changed(json.loads(parts()["config.json"]), f"config.{place}", new)))


CALL = {"module": "os", "class_name": "mkdir", "config": {"path": "executed"}, "registered_name": None}
LAMBDA = {"class_name": "__lambda__", "config": {"code": "4wEAAAAAAAAA", "defaults": None, "closure": None}}
BLOCKS = {
    "module": "keras.quantizers",
    "class_name": "Int4QuantizationConfig",
    "config": {"block_size": 1e-9, "weight_quantizer": None, "activation_quantizer": "?"},
    "registered_name": None,
}
CALLS = {
    "function": CALL,
    "lambda": {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {"name": "f", "function": LAMBDA},
        "registered_name": None,
    },
    "sequential": {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"layers": [CALL]},
        "registered_name": None,
    },
    "registered lambda": {"class_name": "Lambda", "config": LAMBDA, "registered_name": "keras_vit>Lambda"},
    "no config": {"registered_name": "keras_vit>ViT"},
    "list for a name": {"registered_name": ["keras_vit>ViT"], "config": {}},
    "another family": {"registered_name": "keras_vit>BiT"},
    "dtype": {"config.dtype": CALL},
    "dtype inside": {"config.dtype.class_name": "DTypePolicyMap"},
    "dtype of integers": {"config.dtype.config": {"name": "int8"}},
    "class token": {"config.variant.class_token": CALL},
    "remat text": {"config.remat": "all"},
    "remat beyond": {"config.remat": [7]},
    "name": {"config.name": "a/b"},
    "quantisation": {"config.quantization": "int8"},
    "quantisation to bits": {"config.quantization": {"head": "int3"}},
    "quantisation of nothing": {"config.quantization": {"tail": "int8"}},
    "quantisation of a norm": {"config.quantization": {"encoder_norm": "int8"}},
    "quantisation of floats": {"config.quantization": {"head": "int8"}},
    "quantisation by a call": {"config.quantization": {"head": CALL}},
    "quantisation in tiny blocks": {"config.quantization": {"head": BLOCKS}},
    "quantisation by text": {"config.quantization": {"head": {**BLOCKS, "class_name": "Int8QuantizationConfig"}}},
    "lora": {"config.lora": ["head"]},
    "lora without alpha": {"config.lora": {"block_00/attention/query": [2]}},
    "lora of any rank": {"config.lora": {"block_00/attention/query": [10**9, 1]}},
    "lora of rank text": {"config.lora": {"block_00/attention/query": ["2", 2]}},
    "lora of nothing": {"config.lora": {"block_00/attention": [2, 2]}},
    "lora without matrices": {"config.lora": {"block_00/attention/query": [2, 2]}},
    "lora of the head": {"config.lora": {"head": [2, 2]}},
}


@each(CALLS)
def keras_call(sort, folder, rng):
    config = CALLS[sort]
    if sort == "another family" or not {"registered_name", "class_name"} & config.keys():
        original = json.loads(parts()["config.json"])
        config = functools.reduce(lambda value, change: changed(value, *change), config.items(), original)
    return with_config(folder, json.dumps(config))


@each(BROKEN_JSON)
def keras_json(sort, folder, rng):
    return with_config(folder, BROKEN_JSON[sort])


def set_value(file, name, value):
    del file[name]
    file[name] = value


WEIGHTS = {
    "layer gone": lambda file: file.pop("layers/transformer_block_1"),
    "array gone": lambda file: file.pop("layers/dense/vars/1"),
    "all gone": lambda file: file.pop("layers"),
    "renamed": lambda file: file.move("layers/dense", "layers/denser"),
    "layer more": lambda file: file.copy("layers/dense", "layers/dense_1"),
    "shape": lambda file: set_value(file, "layers/dense/vars/0", np.zeros((5, 16), "float32")),
    "scalar": lambda file: set_value(file, "layers/dense/vars/0", np.float32(1)),
    "text": lambda file: set_value(file, "layers/dense/vars/1", np.array([b"a"] * 5)),
    "nan": lambda file: set_value(file, "layers/dense/vars/1", np.full(5, np.nan, "float32")),
    "inf": lambda file: set_value(file, "layers/dense/vars/1", np.full(5, np.inf, "float32")),
    "soft link": lambda file: set_value(file, "layers/dense/vars/1", h5py.SoftLink("/layers/dense/vars/0")),
    "other file": lambda file: set_value(file, "layers/dense/vars/1", h5py.ExternalLink("/etc/passwd", "/x")),
    "bomb": lambda file: file.create_dataset(
        "layers/x/vars/0", (10**6, 10**6), "float32", chunks=(1000, 1000), compression="gzip"
    ),
}


@each(WEIGHTS)
def keras_weights(sort, folder, rng):
    data = io.BytesIO(parts()["model.weights.h5"])
    with h5py.File(data, "a") as file:
        WEIGHTS[sort](file)
    return put(folder, {"model.keras": zipped({**parts(), "model.weights.h5": data.getvalue()})})


@each(("no weights", "no config", "truncated", "noise", "empty", "another model"))
def keras_parts(sort, folder, rng):
    weights = parts()["model.weights.h5"]
    if sort == "no config":
        return put(folder, {"model.keras": zipped({n: d for n, d in parts().items() if n != "config.json"})})
    with zipfile.ZipFile(io.BytesIO(good("bit keras")["model.keras"])) as archive:
        other = archive.read("model.weights.h5")
    new = {"truncated": weights[:5000], "noise": rng.bytes(5000), "empty": b"", "another model": other}.get(sort)
    members = {
        **{n: d for n, d in parts().items() if n != "model.weights.h5"},
        **({} if new is None else {"model.weights.h5": new}),
    }
    return put(folder, {"model.keras": zipped(members)})


@each(("link to itself", "link to nothing", "pipe"))
def no_file(sort, folder, rng):
    path = folder / "model.npz"
    if sort == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("model.npz" if "itself" in sort else "gone.npz")
    return path


@each(
    ("modèle 💥.npz", "two\nlines.keras", 'quo"te.safetensors', "-rf %s {0}.npz", " .safetensors", "x" * 200 + ".npz")
)
def odd_name(name, folder, rng):
    return put(folder, {name: rng.bytes(100)})
