"""Read a Keras model's graph and arrays from a `.keras` or `.h5` file. No layer is built, and no code runs."""

import collections
import dataclasses
import io
import json
import pathlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np

from keras_vit.checkpoints.reading.archives import BROKEN, check_unpacked

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_MODELS = ("Functional", "Sequential", "Model")
# Layers that change nothing in prediction.
_IDENTITIES = re.compile(
    r"Random\w+|\w*Dropout\w*|GaussianNoise|AlphaDropout|ActivityRegularization|Identity|RandAugment|AugMix|CutMix|MixUp"
)
_OPERATIONS = set(
    "Add Concatenate ExtractPatches Gelu GetItem Mean Relu Reshape Sigmoid Silu SlicingOpLambda Softmax TFOpLambda"
    " Tanh".split()
)
# The places of arrays in a .keras file, for the names in an .h5 file.
_PLACES = {"kernel": "0", "gamma": "0", "mean": "0", "embeddings": "0", "bias": "1", "beta": "1", "variance": "1"}


@dataclasses.dataclass(eq=False)
class Node:
    """A call of a layer or of an operation.

    Attributes:
        kind: name of its class.
        name: its name in the graph.
        config: its arguments, as in the file.
        inputs: the calls that give its inputs.
        call: its arguments, as in the file.
        arrays: {its place in the layer, such as "0" or "query/0": array}.
        is_custom: whether it is a custom class, with code outside the file.
    """

    kind: str
    name: str
    config: dict[str, Any]
    inputs: list["Node"]
    call: Any
    arrays: dict[str, np.ndarray]
    is_custom: bool


def _datasets(file, path):
    """{path: array} of an HDF5 file's layers; ValueError if it declares more than it contains."""
    found = {}

    def visit(name, item):
        name = name.removeprefix("model_weights/")
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiuV" and "optimizer" not in name:
            found[name] = item

    file.visititems(visit)
    check_unpacked(path, sum(item.nbytes for item in found.values()))
    return {name: np.asarray(item) for name, item in found.items()}


def _is_graph(text):
    """Whether a config, JSON, is of a Keras model of layers, not of a subclass."""
    config = json.loads(text)
    known = isinstance(config, dict) and isinstance(config.get("config"), dict)
    return known and config.get("class_name") in _MODELS and config.get("registered_name") in (None, *_MODELS)


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(config, {path: array}) of a model with one of Keras' own classes; None for other classes and damaged files.

    Args:
        path: of a .keras file, of a folder with its parts, or of an .h5 file.

    Raises:
        ValueError: if the file declares more than it contains.
    """
    try:
        if path.is_dir():
            text, weights = (path / _CONFIG).read_bytes(), path / _WEIGHTS
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                text = archive.read(_CONFIG)
                weights = io.BytesIO(archive.read(_WEIGHTS)) if _is_graph(text) else None
        else:
            with h5py.File(path) as file:
                text, weights = file.attrs.get("model_config", "null"), path
        if not _is_graph(text):
            return None
        with h5py.File(weights) as file:
            return json.loads(text), _datasets(file, path)
    except BROKEN:
        return None


def _name(layer):
    return layer.get("name") or layer["config"]["name"]


def _snake(name):
    """A class's name as Keras writes it in paths: "MultiHeadAttention" is "multi_head_attention"."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _place(path):
    """An array's place in its layer: "query_dense/vars/0" and "query/kernel:0" are "query/0"."""
    *modules, last = path.split("/")
    last = last.partition(":")[0]
    modules = [part.strip("_").removesuffix("_dense").removeprefix("attention_") for part in modules if part != "vars"]
    return "/".join([*modules, _PLACES.get(last, last)])


def _tensors(value) -> Iterator[tuple[str, int]]:
    """The (layer, number of its call) of all tensors in a layer's arguments, in the forms of Keras 2 and 3."""
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        yield tuple(value["config"]["keras_history"][:2])
    elif isinstance(value, list) and len(value) in (3, 4) and [type(part) for part in value[:3]] == [str, int, int]:
        yield value[0], value[1]
        yield from _tensors(value[3:])
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


class _Graph:
    """Builds nodes from configs.

    Args:
        arrays: {path: array} of the file.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.by_place = any(path.startswith("layers/") for path in arrays)  # in .keras, else by name

    def _layer_arrays(self, path, name):
        """A layer's arrays: below its path in a .keras file, below its name within `path` in an .h5 file."""
        if self.by_place:
            below = {key.removeprefix(path): array for key, array in self.arrays.items() if key.startswith(path)}
        else:
            inside = {key: array for key, array in self.arrays.items() if key.startswith(path) and f"/{name}/" in key}
            below = {key.rpartition(f"/{name}/")[2]: array for key, array in inside.items()}
        return {_place(key): array for key, array in below.items()}

    def _paths(self, layers, parent):
        """Where each layer of a model has its arrays."""
        counts: collections.Counter[str] = collections.Counter()
        for layer in layers:
            stem = _snake(layer["class_name"].rpartition(">")[2])
            number = f"_{counts[stem]}" if counts[stem] else ""
            counts[stem] += not str(layer.get("module")).startswith("keras.src.ops")
            yield f"{parent}layers/{stem}{number}/" if self.by_place else parent or f"{_name(layer)}/"

    def _called(self, layer, path, inputs, call):
        kind, config = layer["class_name"].rpartition(">")[2], layer["config"]
        if kind in _MODELS:
            return self.output(layer, path, inputs)
        kind = "Add" if kind == "TFOpLambda" and config.get("function") in ("__operators__.add", "math.add") else kind
        known = hasattr(keras.layers, kind) or kind in _OPERATIONS
        module = layer.get("module", "keras" if known else None)  # .h5 files have none
        custom = str(module).partition(".")[0] != "keras"
        if _IDENTITIES.fullmatch(kind) and not custom:
            return inputs[0]
        return Node(kind, _name(layer), config, inputs, call, self._layer_arrays(path, _name(layer)), custom)

    def output(self, model: Mapping[str, Any], path: str = "", inputs: list[Node] | None = None) -> Node:
        """The last node of a model; ValueError for several inputs or outputs.

        Args:
            model: its config.
            path: where a nested model's arrays are.
            inputs: of a nested model.
        """
        config, last, nodes = model["config"], inputs or [], {}
        is_chain = model["class_name"] == "Sequential"
        for layer, place in zip(config["layers"], self._paths(config["layers"], path)):
            calls = [[]] if is_chain else layer["inbound_nodes"] or [[]]
            if layer["class_name"] in _MODELS and len(calls) > 1:
                raise ValueError(f'the model "{_name(layer)}" is called {len(calls)} times.')
            for i, call in enumerate(calls):
                if layer["class_name"] == "InputLayer" and inputs:
                    node = inputs[0]
                else:
                    sources = last if is_chain else [nodes[tensor] for tensor in _tensors(call)]
                    node = self._called(layer, place, sources, call)
                nodes[_name(layer), i], last = node, [node]
                nodes[_name(layer), i + 1] = node  # Keras counts from 1 the calls of models that have an input
        ends = {end: list(_tensors(config.get(f"{end}_layers"))) for end in ("input", "output")}
        if max(map(len, ends.values())) > 1:
            raise ValueError("the model has several inputs or outputs.")
        return last[0] if is_chain else nodes[ends["output"][0]]


def output(config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Node:
    """The node that a model's result comes from, by what `read` returns; see _Graph."""
    return _Graph(arrays).output(config)
