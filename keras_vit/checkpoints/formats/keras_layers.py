"""ViTs of Keras' own layers, such as derivatives of keras.io's "Image classification with Vision Transformer".

The graph in the file shows the computation: it is followed from the head back to the pixels, and its arrays get
timm's names. Custom layers, with code outside the file, are judged by their arrays, with a warning.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from keras_vit.checkpoints.formats import timm
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.formats.questions import Options, Unanswered
from keras_vit.checkpoints.reading import keras_graph
from keras_vit.checkpoints.reading.keras_graph import Node

# {an activation, or the layer or operation that computes one, in lower case: our name}.
_ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "softmax", "sigmoid")},
    "swish": "silu",
}
_FIRST_TOKEN = re.compile(r'"step": null\}\}?, 0[],]')  # x[:, 0] or x[:, 0, :], as Keras 3 and 2 write it
_PIXELS = 2  # a smaller standard deviation is not one of pixels 0..255


def _argument(config, name):
    """A layer's argument; a function's name if it is one."""
    value = config.get(name)
    return value.get("config") if isinstance(value, dict) and value.get("class_name") == "function" else value


def _refuse(node, expected) -> NoReturn:
    code = ", with code that is not in the file" if node.is_custom else ""
    raise ValueError(f'expected {expected}, got the layer "{node.name}" ({node.kind}){code}.')


def _source(node, kind, expected):
    """The only node that `node`, of a kind, takes; ValueError for another kind."""
    if node.kind != kind or len(node.inputs) != 1:
        _refuse(node, expected)
    return node.inputs[0]


def _activation(node):
    """(our name for an activation node, the node before it); (None, node) if it is not one."""
    name = str(_argument(node.config, "activation")) if node.kind == "Activation" else node.kind.lower()
    if name not in _ACTIVATIONS or node.is_custom or node.config.get("max_value") or node.config.get("negative_slope"):
        return None, node
    by_tanh = node.kind == "Gelu" and node.config.get("approximate", True)
    return "gelu_tanh" if by_tanh else _ACTIVATIONS[name], node.inputs[0]


def _mlp_input(node):
    """The node that the MLP at this end of a branch reads, or None."""
    outer = _activation(node)[1]
    inner = _activation(outer.inputs[0])[1] if outer.kind == "Dense" else outer
    return inner.inputs[0] if outer.kind == inner.kind == "Dense" else None


def _mlp_inputs(node):
    """The inputs of the MLPs that this node, or the one before its normalisation, adds up."""
    total = node.inputs[0] if node.kind == "LayerNormalization" else node
    read = map(_mlp_input, total.inputs if total.kind == "Add" else ())
    return [start for start in read if start is not None]


class _Reader:
    """Follows a graph from its output back to the pixels.

    Attributes:
        arrays: {timm's name: array}; "blocks.-1" is the last block.
        stated: {field: value} that the graph shows.
        own: nodes of custom classes, and Lambda layers.
    """

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}
        self.stated: dict[str, Any] = {}
        self.own: list[Node] = []

    def state(self, name, value, node):
        if self.stated.setdefault(name, value) != value:
            raise ValueError(f'the layer "{node.name}" has {name} {value!r}, others {self.stated[name]!r}.')

    def dense(self, node, name, expected):
        """(activation or None, the node before a dense layer)."""
        outer, node = _activation(node)
        source = _source(node, "Dense", expected)
        inner = str(_argument(node.config, "activation") or "linear")
        if inner != "linear" and (outer or inner not in _ACTIVATIONS):
            _refuse(node, f"{expected} with one of the activations {', '.join(_ACTIVATIONS)}")
        self.arrays[f"{name}.weight"] = node.arrays["0"].T
        self.arrays[f"{name}.bias"] = node.arrays.get("1", np.zeros(node.arrays["0"].shape[1], "float32"))
        return outer or _ACTIVATIONS.get(inner), source

    def norm(self, node, name):
        """The node before a layer normalisation."""
        source = _source(node, "LayerNormalization", "a layer normalisation")
        if node.config.get("rms_scaling") or not node.config.get("scale", True):
            _refuse(node, "a layer normalisation with mean and scale")
        self.state("epsilon", node.config.get("epsilon", 1e-3), node)
        self.arrays[f"{name}.weight"] = node.arrays["0"]  # (d,): Keras' default axis
        self.arrays[f"{name}.bias"] = node.arrays.get("1", np.zeros_like(node.arrays["0"]))
        return source

    def attention(self, node, name):
        """The node before self-attention."""
        config = node.config
        unusual = ("output_shape", "use_gate", "sliding_window")
        if (
            node.kind != "MultiHeadAttention"
            or len(set(node.inputs)) != 1
            or config.get("value_dim") not in (None, config["key_dim"])
            or config.get("attention_axes") not in (None, [1])
            or any(config.get(option) for option in unusual)
            or '"use_causal_mask": true' in json.dumps(node.call)
        ):
            _refuse(node, "MultiHeadAttention of all tokens to themselves, without a mask")
        self.state("heads", config["num_heads"], node)
        qkv = [node.arrays[f"{part}/0"] for part in ("query", "key", "value")]  # (d, k, c) each
        self.arrays[f"{name}.qkv.weight"] = np.concatenate([part.reshape(len(part), -1).T for part in qkv])
        if "query/1" in node.arrays:
            biases = [node.arrays[f"{part}/1"].reshape(-1) for part in ("query", "key", "value")]  # (k * c,) each
            self.arrays[f"{name}.qkv.bias"] = np.concatenate(biases)
        out = node.arrays["output/0"]  # (k, c, d)
        self.arrays[f"{name}.proj.weight"] = out.reshape(-1, out.shape[2]).T
        self.arrays[f"{name}.proj.bias"] = node.arrays.get("output/1", np.zeros(out.shape[2], "float32"))
        return node.inputs[0]

    def residual(self, node, kind):
        """(branch that ends in a layer of this kind, the node that it is added to)."""
        if node.kind != "Add" or len(node.inputs) != 2:
            _refuse(node, "a residual sum")
        a, b = node.inputs
        return (a, b) if _activation(a)[1].kind == kind else (b, a)

    def block(self, node, name):
        """The node before a block."""
        norm_first = node.kind != "LayerNormalization"
        self.state("norm_first", norm_first, node)
        branch, middle = self.residual(node if norm_first else self.norm(node, f"{name}.norm2"), "Dense")
        last, hidden = self.dense(branch, f"{name}.mlp.fc2", "the second dense layer of an MLP")
        activation, start = self.dense(hidden, f"{name}.mlp.fc1", "the first dense layer of an MLP")
        if last or (self.norm(start, f"{name}.norm2") if norm_first else start) is not middle:
            _refuse(branch, "an MLP of two dense layers that reads its block's tokens")
        self.state("mlp_activation", activation, hidden)
        branch, before = self.residual(
            middle if norm_first else self.norm(middle, f"{name}.norm1"), "MultiHeadAttention"
        )
        start = self.attention(branch, f"{name}.attn")
        if (self.norm(start, f"{name}.norm1") if norm_first else start) is not before:
            _refuse(branch, "attention that reads its block's tokens")
        return before

    def head(self, node):
        """The last block's output."""
        if _activation(node)[1].kind == "Dense":
            end, before = self.dense(node, "head", "the head")
            if end not in (None, "softmax", "sigmoid"):
                _refuse(node, "a head with softmax, sigmoid or no activation")
            self.stated["activation"], node = end, before
        if _activation(node)[1].kind == "Dense":
            self.stated["pre_logits_activation"], node = self.dense(node, "pre_logits", "the head's hidden layer")
        if node.kind == "LayerNormalization":
            node = self.norm(node, "fc_norm")
        node = self.pooled(node)
        if node.kind != "LayerNormalization" or any(start in node.inputs[0].inputs for start in _mlp_inputs(node)):
            return node  # a block's sum, or the normalisation of a post-norm block with an MLP that reads the sum
        if "fc_norm.weight" in self.arrays:
            _refuse(node, "the last block, for a ViT has one normalisation before the head")
        return self.norm(node, "norm")

    def pooled(self, node):
        """The tokens that the head reads."""
        if node.kind == "GlobalAveragePooling1D" or (node.kind == "Mean" and node.config.get("axis") in (1, [1])):
            self.stated["pool"] = "mean"
        elif node.kind in ("GetItem", "SlicingOpLambda") and _FIRST_TOKEN.search(json.dumps(node.call)):
            self.stated["pool"] = "token"
        elif node.kind == "Lambda" or (node.is_custom and not node.arrays):
            pass  # its code is asked for
        else:
            _refuse(node, "the mean of the tokens or the class token")
        return node.inputs[0]

    def parameters(self, node):
        """Takes the arrays of a custom layer: patch embedding, positions or class token."""
        width = self.arrays["blocks.-1.norm1.weight"].size
        self.own.append(node)
        for place, array in node.arrays.items():
            layer, _, number = place.rpartition("/")
            if layer and f"{layer}/1" in node.arrays:  # a dense layer, or a convolution
                name = f"patch_embed.proj.{'bias' if number == '1' else 'weight'}"
                array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
            elif array.shape[-1:] == (width,) and array.size in (width, width * max(array.shape[:-1], default=1)):
                name, array = "cls_token" if array.size == width else "pos_embed", array.reshape(1, -1, width)
            else:
                _refuse(node, "the embedding of patches, their positions or a class token")
            if name in self.arrays:
                _refuse(node, f"no second {name}")
            self.arrays[name] = array

    def tokens(self, node):
        """The pixels that the patch embedding reads."""
        while "patch_embed.proj.weight" not in self.arrays:
            if node.kind in ("Add", "Concatenate") and len(node.inputs) == 2:
                added, node = node.inputs if node.inputs[0].arrays or node.kind != "Add" else node.inputs[::-1]
                if not added.is_custom or not added.arrays:
                    _refuse(added, "a layer with positions or a class token")
                self.parameters(added)
                continue
            if node.kind == "Conv2D":
                size = node.config["kernel_size"]
                if node.config["strides"] != size or _argument(node.config, "activation") not in ("linear", None):
                    _refuse(node, "a convolution with strides of its kernel's size, without activation")
                self.arrays["patch_embed.proj.weight"] = node.arrays["0"].transpose(3, 2, 0, 1)
                self.arrays["patch_embed.proj.bias"] = node.arrays.get("1", np.zeros(node.arrays["0"].shape[3], "f4"))
            elif node.kind == "Dense":
                if self.dense(node, "patch_embed.proj", "the patch embedding")[0]:
                    _refuse(node, "a patch embedding without activation")
            elif node.is_custom and node.arrays:
                self.parameters(node)
            elif node.kind != "Reshape":
                _refuse(node, "the embedding of patches")
            node = node.inputs[0]
        return node

    def pixels(self, node):
        """(the shape of the images, mean and std of their normalisation)."""
        mean, std, size = np.zeros(1), np.ones(1), None
        dense = self.arrays["patch_embed.proj.weight"].ndim == 2
        while node.kind != "InputLayer":
            config = node.config
            if node.kind == "Rescaling":
                mean, std = (mean - config["offset"]) / config["scale"], std / config["scale"]
            elif node.kind == "Normalization" and not config.get("invert"):
                shift, variance = config.get("mean"), config.get("variance")  # or arrays, by `adapt`
                factor = np.sqrt(np.ravel(node.arrays["1"] if variance is None else variance))
                mean, std = np.ravel(node.arrays["0"] if shift is None else shift) + mean * factor, std * factor
            elif node.kind == "Resizing":
                size = size or [config["height"], config["width"]]
            elif dense and (node.kind == "ExtractPatches" or (node.is_custom and not node.arrays)):
                self.own += [node] if node.is_custom else []
                dense = False  # it cuts into patches
            elif node.kind != "Reshape":
                _refuse(node, "a layer that keeps, rescales or resizes pixels")
            node = _source(node, node.kind, "a layer of one input")
        shape = (node.config.get("batch_shape") or node.config["batch_input_shape"])[1:]
        if len(shape) != 3:
            raise ValueError(f"the input has the shape {shape}, not that of images (height, width, channels).")
        return [*(size or shape[:2]), shape[2]], mean, std

    def read(self, node):
        """Fills in the attributes; returns what `pixels` does."""
        blocks = [self.head(node)]
        while _mlp_inputs(blocks[-1]) or len(blocks) == 1:
            blocks.append(self.block(blocks[-1], f"blocks.-{len(blocks)}"))
        result = self.pixels(self.tokens(blocks[-1]))
        numbers = {f"blocks.-{i}": f"blocks.{len(blocks) - 1 - i}" for i in range(1, len(blocks))}
        self.arrays = {
            re.sub(r"^blocks\.-\d+", lambda match: numbers[match[0]], name): array
            for name, array in self.arrays.items()
        }
        return result


def _refusal(arrays, error):
    """Why a graph is not a ViT of this package."""
    if not any("query" in name for name in arrays):
        return "It is a model of Keras' own layers, and not a Vision Transformer."
    return f"It is a Transformer of Keras' own layers, as in keras.io's example, that cannot be expressed: {error}"


def _convolution(kernel, channels, size):
    """torch's kernel (d, c, h, w), also of a dense layer (d, h * w * c); ValueError unless it fits images of `size`."""
    if kernel.ndim == 2:
        side = math.isqrt(kernel.shape[1] // channels)
        kernel = kernel.reshape(-1, side, side, channels).transpose(0, 3, 1, 2)
    if None not in size and any(s % p for s, p in zip(size, kernel.shape[2:])):
        raise ValueError(f"images of {size} pixels are not a whole number of patches of {kernel.shape[2:]} pixels.")
    return kernel


def _described(own, activation):
    """Sentences on assumptions, and on differences here."""
    names = ", ".join(dict.fromkeys(node.kind for node in own))
    parts = [
        f"The file does not contain the code of {names}. Assumed: a patch's values are in the order row, column,"
        " channel; a dense layer embeds them; position embeddings are added; a class token, if any, comes first."
    ] * bool(own)
    return parts + [f"The model ends with {activation}; here it returns the logits."] * bool(activation)


def parse(contents, options: Mapping[str, Any]) -> ParsedCheckpoint:
    """Parses the graph and arrays that keras_graph.read returns.

    Args:
        contents: from files.read.
        options: arguments of `load` for values that the graph does not show: mean and std, and pool where code decides
            it.

    Raises:
        ValueError: with the layer that a ViT of this package lacks, or with the missing values.
    """
    reader = _Reader()
    try:
        (*size, channels), mean, std = reader.read(keras_graph.output(contents.config, contents.arrays))
    except ValueError as error:
        raise ValueError(_refusal(contents.arrays, error)) from None
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("The graph of layers in the file, or their arrays, are not complete.") from error
    stated = reader.stated
    if stated.get("pool") == "mean" and "cls_token" not in reader.arrays:
        stated["pool"] = "gap"
    mean, std = (np.broadcast_to(value, channels) for value in (mean, std))
    shown = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())} if min(std) > _PIXELS else {}
    answers = {**shown, **{name: options[name] for name in ("mean", "std") if options.get(name) is not None}}
    if "pool" not in stated and options.get("pool"):
        stated["pool"] = options["pool"]
    missing = [name for name, value in (("mean", answers), ("std", answers), ("pool", stated)) if name not in value]
    if missing:
        of_pixels = (
            f"Its layers compute (x - {mean.tolist()}) / {std.tolist()}, where x cannot be pixels 0..255. If your code"
            f" divides them by 255 before, pass mean={(255 * mean).tolist()}, std={(255 * std).tolist()}."
        )
        raise Unanswered(contents.path, [of_pixels] * ("mean" in missing), dict.fromkeys(missing), {})
    kernel = _convolution(reader.arrays["patch_embed.proj.weight"], channels, size)
    answers = {**answers, "heads": stated.pop("heads"), **({} if None in size else {"recorded_size": size})}
    activation = stated.pop("activation", None)
    parsed = timm.parse(
        dataclasses.replace(contents, arrays={**reader.arrays, "patch_embed.proj.weight": kernel}, config={}),
        Options(answers, asks=False),
    )
    return dataclasses.replace(
        parsed,
        fields={**parsed.fields, **stated},
        assumptions=_described(reader.own, activation),
        activation=activation,
        preprocessing=None,
    )
