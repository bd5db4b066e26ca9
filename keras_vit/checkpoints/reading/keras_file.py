"""Read this package's .keras files without trusting them: a config can name classes, but cannot bring code.

A family's model is built by its own constructor from checked values. A keras_vit.Model is a graph of layers: Keras
builds it once every class in the config proves to be one of Keras' own layers (no Lambda, none that loads other files)
or registered in this process.
"""

import contextlib
import io
import math
import os
import sys
import tempfile
import zipfile

import h5py
import keras
import numpy as np

from keras_vit.checkpoints.reading import dense_config, metadata
from keras_vit.checkpoints.reading.archives import BROKEN, check_archive, check_unpacked
from keras_vit.checkpoints.reading.files import parse_json
from keras_vit.fit import state
from keras_vit.fit.model import Model
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.io.tokenizer import FILE
from keras_vit.layers.dense import ComposedLayer
from keras_vit.models import TextEncoder, families, make_text_spec
from keras_vit.models.without_values import without_values


def _family(name, kind):
    """The family with its "model" or "spec" class (`kind`) registered under the name in a config, or None."""
    rows = {keras.saving.get_registered_name(getattr(row, kind)): row for row in families.FAMILIES.values()}
    return rows.get(name) if isinstance(name, str) else None


_WEIGHTS = "model.weights.h5"
_ASSETS = "assets"
# Allowed in a config besides class objects: Keras' notation for graph tensors and plain values.
_VALUES = {"__keras_tensor__", "__tensor__", "__numpy__", "__ellipsis__", "__slice__"}
# Public Keras modules with the classes of a graph. Tensor arithmetic comes from keras.src.ops.
_MODULES = {
    "keras": keras,
    "keras.constraints": keras.constraints,
    "keras.dtype_policies": keras.dtype_policies,
    "keras.initializers": keras.initializers,
    "keras.layers": keras.layers,
    "keras.models": keras.models,
    "keras.quantizers": keras.quantizers,
    "keras.regularizers": keras.regularizers,
}
_KINDS = (
    keras.Operation,  # layers and models too
    keras.DTypePolicy,
    keras.constraints.Constraint,
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    *dense_config.QUANTIZERS,
)
# They run code from the file, or read other files it names.
_UNSAFE = (
    keras.layers.Lambda,
    keras.layers.TFSMLayer,
    keras.layers.TorchModuleWrapper,
    keras.layers.JaxLayer,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def _shapes(weights, path):
    """The shapes of the layers' arrays in an HDF5 file, without the optimizers of nested models.

    Raises:
        ValueError: if it is not HDF5, or declares far more than it contains.
    """
    shapes = []

    def visit(name, item):
        if name.startswith("layers/") and "/optimizer/" not in name and isinstance(item, h5py.Dataset):
            if item.dtype.kind not in "fiuV":
                raise ValueError(f'array "{name}" contains {item.dtype}, expected numbers')
            shapes.append(item.shape)

    try:
        with h5py.File(io.BytesIO(weights)) as file:
            file.visititems(visit)
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f'The weights in "{path}" are not a complete HDF5 file: {error}') from None
    check_unpacked(path, 4 * sum(map(math.prod, shapes)))
    return shapes


def _member(archive, name):
    """A member's bytes. With a size, read() unpacks no more than was declared; without one, everything."""
    with archive.open(name) as file:
        return file.read(archive.getinfo(name).file_size)


def _unpack(path):
    """(config bytes, array shapes) of a .keras file, or of a folder with its parts.

    ValueError unless each part is complete and its checksum right.
    """
    if path.is_dir():
        weights = path / _WEIGHTS
        return (path / "config.json").read_bytes(), _shapes(weights.read_bytes(), weights)
    check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            config, weights = (_member(archive, name) for name in ("config.json", _WEIGHTS))
    except BROKEN as error:
        raise ValueError(f'"{path}" is not a complete .keras file: {error}') from None
    return config, _shapes(weights, path)


def load(path):
    """The model of a .keras file or folder, not compiled: a family's, or a keras_vit.Model built on one.

    Raises:
        ValueError: if the file is damaged, altered, contains another model, or names a class that is not allowed.
    """
    data, shapes = _unpack(path)
    where = f'The config of "{path}"'
    config = parse_json(data, where)
    name = config.get("registered_name")
    values = sum(map(math.prod, shapes))
    if (family := _family(name, "model")) is not None:
        arguments = _arguments(config, shapes, path)
        try:
            model = family.model.from_config(arguments)
            state.restore(model, config["config"].get(state.KEY))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where} describes a model that cannot be built: {error}") from None
    elif _is_composed(config):
        model = _composed(config, shapes, path)
    else:
        known = _find_class(config) is not None or str(config.get("module")).split(".")[0] == "keras"
        subclass = (
            " If it is your subclass of one, decorate it with @keras.saving.register_keras_serializable() before you"
            " save the model, and import it before you load the file."
        )
        raise ValueError(
            f'"{path}" contains a {config.get("class_name") or name}, not a {families.any_name()} of keras_vit, or'
            f" keras_vit.Model built on one.{'' if known else subclass}"
        )
    _fill(model, path, values)
    if isinstance(model, DualEncoder):
        _read_tokenizer(model, path)
    return model


def _read_tokenizer(model, path):
    """Gives a model the tokenizer in its file, if there is one; ValueError for a damaged one."""
    try:
        if path.is_dir():
            model.load_assets(path / _ASSETS)
            return
        with zipfile.ZipFile(path) as archive:
            if (name := f"{_ASSETS}/{FILE}") in archive.namelist():
                model.read_tokenizer(_member(archive, name).decode("utf-8"))
    except BROKEN as error:
        raise ValueError(f'The tokenizer in "{path}" is damaged: {error}') from None


def _is_composed(config):
    """Whether a config is of keras_vit.Model, or of a registered custom subclass."""
    cls = _find_class(config)
    return isinstance(cls, type) and issubclass(cls, keras.Model) and not cls.__module__.startswith("keras.")


def _arguments(config, shapes, path):
    """A config's constructor arguments; ValueError for impossible values or a model larger than its file."""
    where = f'The config of "{path}"'
    recorded = config.get("config")
    recorded = {k: v for k, v in recorded.items() if k != state.KEY} if isinstance(recorded, dict) else recorded
    family = _family(config["registered_name"], "model")
    arguments = metadata.arguments(recorded, where, family.name)
    values = sum(map(math.prod, shapes))
    _check_dense_config(arguments, values, where)
    values = 2 * values if dense_config.is_packed(arguments) else values
    try:
        metadata.check_size(family.make_spec(arguments["variant"]), arguments, len(shapes), values, path)
    except ValueError as error:
        raise ValueError(f"{where} describes a model that cannot be built: {error}") from None
    return arguments


def _objects(config):
    """The objects that Keras would build from a config, without compile_config: optimizer and loss are not built."""
    waiting = [config]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class_name" in node:
                node.pop("compile_config", None)
                yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _find_class(node):
    """The class that a config names, if registered in this process or one of Keras' own, or None."""
    if "module" not in node:  # Keras would read it as its older format
        return None
    registered, module, name = node.get("registered_name"), node["module"], node.get("class_name")
    custom = keras.saving.get_registered_object(registered) if isinstance(registered, str) else None
    if custom is not None:
        return custom
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    if module in _MODULES:
        return getattr(_MODULES[module], name, None)
    if module.startswith("keras.src.ops.") or module == "keras.src.models.functional":
        return getattr(sys.modules.get(module), name, None)
    return None


def _is_allowed(node):
    """Whether building a config's object runs only code that this process has already."""
    name = node["class_name"]
    if isinstance(name, str) and name in _VALUES:
        return True
    if name == "function":
        function, module = node.get("config"), node.get("module")
        if not isinstance(function, str):
            return False
        if keras.saving.get_registered_object(function) is not None:
            return True
        return module in ("builtins", "keras.activations") and callable(getattr(keras.activations, function, None))
    cls = _find_class(node)
    if not isinstance(cls, type) or issubclass(cls, _UNSAFE):
        return False
    return issubclass(cls, _KINDS) or _family(node.get("registered_name"), "spec") is not None


def _check_dense_config(config, values, where):
    """Checks the quantised or LoRA dense layers in a config; ValueError if this package does not write them so."""
    dense_config.check(config, values, where)
    for node in _objects(config.get("quantization")):
        if not _is_allowed(node):
            raise ValueError(f"{where} names {node['class_name']} for quantisation, which is not built from a file.")
        dense_config.check_object(node, where)


def _check_text(node, shapes, where):
    """ValueError if a config's TextEncoder would outgrow its file; packed integers count twice."""
    values, arguments = 2 * sum(map(math.prod, shapes)), node["config"]
    try:
        spec = make_text_spec(arguments["variant"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where} describes a model that cannot be built: {error}") from None
    with without_values():
        larger = spec.depth > len(shapes) or TextEncoder(spec, name="described").count_params() > values
    if larger:
        raise ValueError(f"{where} describes a larger text encoder than the file contains: {spec}.")


def _composed(config, shapes, path):
    """The keras_vit.Model of a config, without its weights.

    Raises:
        ValueError: if the config names a class that is not allowed, or cannot be built.
    """
    where = f'The config of "{path}"'
    for node in _objects(config):
        if not _is_allowed(node):
            raise ValueError(
                f"{where} names {node.get('registered_name') or node['class_name']} of the module {node.get('module')},"
                " which is not built from a file. Allowed are Keras' own layers, except Lambda and those that read"
                " files, and classes registered in this process: import the module that registers it"
                " (keras.saving.register_keras_serializable) before loading."
            )
        if _family(node.get("registered_name"), "model"):
            _arguments(node, shapes, path)
        if _find_class(node) is TextEncoder:
            _check_text(node, shapes, where)
        if _is_composed(node) and isinstance(node.get("config"), dict) and "spec" in node["config"]:
            metadata.check_description(node["config"], (), where)
        if (
            isinstance(_find_class(node), type)
            and issubclass(_find_class(node), (ComposedLayer, Model))
            and isinstance(node["config"], dict)
        ):
            dense_config.check(node["config"], sum(map(math.prod, shapes)), where)
        dense_config.check_object(node, where)
        if (family := _family(node.get("registered_name"), "spec")) is not None:
            metadata.check_fields(node["config"], family.spec, where)
    try:
        return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # Keras and the layers raise many kinds of errors
        raise ValueError(f"{where} describes a model that cannot be built: {error}") from error


@contextlib.contextmanager
def _named(path):
    """A context with a path of the file that ends in .keras, or of a folder's weights, as Keras requires."""
    if path.is_dir() or path.suffix == ".keras":
        yield path / _WEIGHTS if path.is_dir() else path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "model.keras")
        os.symlink(os.path.abspath(path), link)
        yield link


def _fill(model, path, values):
    """Loads a .keras file's weights, `values` numbers in all; ValueError if they do not fit or are not finite."""
    try:
        with _named(path) as named:
            model.load_weights(named)
    except Exception as error:  # h5py and Keras raise many kinds of errors
        raise ValueError(f'The weights in "{path}" are not those of the model in its config: {error}') from error
    # Counted one by one: two nested models may share paths.
    needed = sum(math.prod(weight.shape) for weight in model.weights)
    if needed != values:
        raise ValueError(f'The weights in "{path}" are {values:,} numbers, the model in its config has {needed:,}.')
    wrong = [weight.path for weight in model.weights if not np.isfinite(keras.ops.convert_to_numpy(weight)).all()]
    if wrong:
        raise ValueError(
            f'"{path}": the weights {", ".join(wrong[:8])} ({len(wrong)}) are not finite: its training diverged.'
        )
