"""Malformed checkpoints in intact files: arrays, metadata and configs that no model has. Adds to malformed.CASES."""

import functools
import io
import json
import reprlib
import zipfile

import numpy as np
import safetensors.numpy
from golden_files import golden_arrays
from malformed import each, foreign, good, put, zipped

FOREIGN = ("vit_token", "hybrid_root_only", "timm_vit", "hf_dinov2", "lucidrains", "timm_bit")
BLOCKS = {
    "vit_token": "Transformer/encoderblock_{}/",
    "timm_vit": "blocks.{}.",
    "hf_vit": "vit.encoder.layer.{}.",
    "lucidrains": "transformer.layers.{}.",
    "timm_bit": "stages.{}.",
}


def written(name, folder, arrays, config=None):
    """Writes arrays in the format of a golden and returns the path to load; `config` replaces the golden's."""
    if config is None:
        config = foreign(name)[1]
    if "/" in next(iter(arrays)):
        np.savez(folder / "model.npz", **arrays)
        return folder / "model.npz"
    data = safetensors.numpy.save({key: a.copy(order="C") for key, a in arrays.items()})
    return put(folder, {"model.safetensors": data, **({} if config is None else {"config.json": config})})


def choose(arrays, rng, rank=1):
    """The name of an array of that rank or more; not of positions or patches, whose other sizes are valid models."""
    names = [n for n, a in arrays.items() if a.ndim >= rank and "pos" not in n and "embed" not in n and "mask" not in n]
    return names[rng.integers(len(names))]


def renamed(arrays, old, new):
    return {new if name == old else name: array for name, array in arrays.items()}


@each(FOREIGN, ("missing", "renamed", "extra"))
def name_(name, sort, folder, rng):
    arrays = dict(golden_arrays(name))
    key = choose(arrays, rng)
    if sort == "extra":
        arrays[f"{key}2"] = arrays[key]
    else:
        arrays = renamed(arrays, key, f"{key}2") if sort == "renamed" else {n: a for n, a in arrays.items() if n != key}
    return written(name, folder, arrays)


DUPLICATES = {
    "vit_token": ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding"),
    "timm_vit": ("blocks.0.norm1.weight", "blocks.0.0.norm1.weight"),
    "lucidrains": ("transformer.norm.weight", "mlp_head.0.weight"),
}


@each(DUPLICATES)
def duplicate(name, folder, rng):
    arrays = dict(golden_arrays(name))
    arrays[DUPLICATES[name][1]] = arrays[DUPLICATES[name][0]]
    return written(name, folder, arrays)


SHAPES = {
    "transposed": lambda a: a.T if a.T.shape != a.shape else a[1:],
    "short": lambda a: a[..., :-1],
    "long": lambda a: np.concatenate([a, a]),
    "empty": lambda a: a[:0],
    "axis": lambda a: a[None, None],
    "scalar": lambda a: np.array(1, "float32"),
    "huge and empty": lambda a: np.zeros((10**9, 0), "float32"),
}


@each(FOREIGN, SHAPES)
def shape(name, sort, folder, rng):
    arrays = dict(golden_arrays(name))
    key = choose(arrays, rng, 2)
    return written(name, folder, {**arrays, key: SHAPES[sort](arrays[key])})


TYPES = {
    "int": lambda a: a.astype("int32"),
    "bool": lambda a: a > 0,
    "complex": lambda a: a.astype("complex64"),
    "nan": lambda a: np.where(a == a.max(), np.nan, a),
    "inf": lambda a: np.where(a == a.min(), -np.inf, a).astype("float16"),
    "beyond float32": lambda a: a.astype("float64") * 1e300,
}


@each(("vit_token", "timm_vit"), TYPES)
def values(name, sort, folder, rng):
    arrays = dict(golden_arrays(name))
    key = choose(arrays, rng, 2)
    return written(name, folder, {**arrays, key: TYPES[sort](arrays[key])})


@each(("U5", "S5", "M8[s]", "V8", "i4,f4"))
def type_of_npz(kind, folder, rng):
    arrays = dict(golden_arrays("vit_token"))
    return written("vit_token", folder, {**arrays, "head/bias": np.zeros(5, kind)})


@each(BLOCKS, ("first gone", "gap", "far"))
def blocks(name, sort, folder, rng):
    arrays = dict(golden_arrays(name))
    pattern = BLOCKS[name]
    if sort == "first gone":
        return written(name, folder, {n: a for n, a in arrays.items() if not n.startswith(pattern.format(0))})
    new = pattern.format(3 if sort == "gap" else 10**12)
    return written(name, folder, {n.replace(pattern.format(1), new): a for n, a in arrays.items()})


@each(("one longer", "none", "scalar", "unstacked too", "a million"))
def scanned(sort, folder, rng):
    arrays = dict(golden_arrays("bv_map_scanned"))
    stacked = {n: a for n, a in arrays.items() if "encoderblock/" in n}
    key = next(iter(stacked))
    changed = {
        "one longer": lambda: {key: np.concatenate([stacked[key]] * 2)},
        "none": lambda: {n: a[:0] for n, a in stacked.items()},
        "scalar": lambda: {key: np.array(1, "float32")},
        "unstacked too": lambda: {key.replace("encoderblock/", "encoderblock_0/"): stacked[key][0]},
        "a million": lambda: {n: np.zeros((10**6,), "float32") for n in stacked},
    }[sort]()
    return written("bv_map_scanned", folder, {**arrays, **changed})


TABLES = {
    "vit_token": "Transformer/posembed_input/pos_embedding",
    "timm_vit": "pos_embed",
    "hf_vit": "vit.embeddings.position_embeddings",
    "lucidrains": "pos_embedding",
}


@each(TABLES, ((1, 8, 16), (1, 0, 16), (16,), (), (1, 5, 17), (2, 5, 16)))
def position_table(name, size, folder, rng):
    return written(name, folder, {**golden_arrays(name), TABLES[name]: np.zeros(size, "float32")})


@each(("vit_token", "timm_vit", "hf_vit"))
def heads_that_do_not_divide(name, folder, rng):
    arrays, config = foreign(name)
    if name == "vit_token":
        key = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
        return written(name, folder, {**arrays, key: np.zeros((16, 3, 5), "float32")})
    changed = {"model_args": {**config.get("model_args", {}), "num_heads": 3}, "num_attention_heads": 3}
    return written(name, folder, arrays, {**config, **changed})


@functools.cache
def saved(form):
    """(arrays, metadata) of a file of ours."""
    data = good(form)[{"bit": "model.npz", "google": "model.npz"}.get(form, "model.safetensors")]
    if form in ("bit", "google"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
            return members, json.loads(archive.comment)
    size = int.from_bytes(data[:8], "little")
    return safetensors.numpy.load(data), json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["keras_vit"])


def with_metadata(form, folder, metadata):
    """A file of ours with other metadata, as text or JSON."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    arrays = saved(form)[0]
    if form == "timm":
        data = safetensors.numpy.save(arrays, {"keras_vit": text})
        return put(folder, {"model.safetensors": data, "config.json": good("timm")["config.json"]})
    path = put(folder, {"model.npz": zipped(arrays)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = text.encode()
    return path


def changed(value, place, new):
    """A copy of nested dicts with another value at a place such as "config.variant.depth"; ... removes the value."""
    key, _, rest = place.partition(".")
    if rest:
        return {**value, key: changed(value[key], rest, new)}
    return {**{k: v for k, v in value.items() if k != key}, **({} if new is ... else {key: new})}


# Changes of a model's config, in the metadata or in a .keras file.
CONFIG = [
    *[("variant", new) for new in (..., None, [], "B/16", {})],
    *[("variant.depth", new) for new in (..., None, "2", 2.0, True, 0, 3, 10**9, 10**400)],
    *[("variant.width", new) for new in (32, 10**9, "16")],
    *[("variant.heads", new) for new in (0, 3, 10**9, [2])],
    *[("variant.mlp_dim", new) for new in (64, 10**12, {})],
    *[("variant.head_dim", new) for new in (-8, 10**9)],
    *[("variant.registers", new) for new in (-1, 10**9)],
    *[("variant.pre_logits", new) for new in (0, 10**9)],
    *[("variant.stem", new) for new in ([], [10**9], "R50", [2, "2"])],
    *[("variant.patch_size", new) for new in (0, [8, 8], [0, 0], [4], ["4", "4"])],
    *[("variant.epsilon", new) for new in (0, 10.0, "1e-6", float("nan"))],
    *[("variant.mean", new) for new in ([1, 2], "127.5", [None] * 3, float("inf"))],
    *[("variant.std", new) for new in (0, [1, 0, 1])],
    *[("variant.dropout", new) for new in (1.5, "none")],
    *[(f"variant.{name}", "Lambda") for name in ("pool", "positions", "mlp_activation", "layer_scale", "qk_norm")],
    *[("variant.pool", "map"), ("variant.positions", "sincos2d"), ("variant.layer_scale", 0.1), ("variant.flops", 1)],
    *[("variant.units", [1]), ("shape", 1), ("image_size", ...), ("classes", ...)],
    *[("image_size", new) for new in ([16, 16], [10**9, 10**9], [8], "8", [8, -8], [8, 8.0])],
    *[("classes", new) for new in (6, -5, "5", 10**9)],
    *[("channels", new) for new in (1, 0, 10**9, "3", None)],
    *[("class_names", new) for new in ("abcde", ["a"], [1.5] * 5, {"0": "a"})],
    *[("preprocessing", new) for new in (5, ["resize(8)"])],
]
CONFIG = {f"{place}={'gone' if new is ... else reprlib.repr(new)}": (place, new) for place, new in CONFIG}


@each(("timm",), CONFIG)
def metadata_config(form, change, folder, rng):
    place, new = CONFIG[change]
    metadata = {"config": saved(form)[1]["config"]}  # without the checksum, which would reveal the change
    return with_metadata(form, folder, changed(metadata, f"config.{place}", new))


TEXTS = {"blank": " ", "prose": "no JSON", "list": "[1]", "number": "5", "empty": "{}", "nested": '{"a":' * 5000}


@each(("timm", "google"), TEXTS)
def metadata_text(form, sort, folder, rng):
    return with_metadata(form, folder, TEXTS[sort])


@each(("timm", "google"), ("0" * 8, None, 5, "variant"))
def metadata_checksum(form, crc32, folder, rng):
    change = ("config.variant.epsilon", 1e-5) if crc32 == "variant" else ("crc32", crc32)
    return with_metadata(form, folder, changed(saved(form)[1], *change))


@each(("units", "width_factor", "family"))
def metadata_of_a_bit(field, folder, rng):
    if field == "family":
        return with_metadata("bit", folder, {"config": saved("google")[1]["config"]})
    metadata = {"config": saved("bit")[1]["config"]}
    return with_metadata(
        "bit", folder, changed(metadata, f"config.variant.{field}", [10**6] * 1000 if field == "units" else 1e30)
    )
