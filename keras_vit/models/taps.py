"""Symbolic tensors inside a model, found by layer name: features, tokens and feature maps.

For models of any family, models built on their tensors (`vit.with_head(layer)`, `keras_vit.Model(vit.input, ...)`), and
models that call one as a layer (nested).
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit.fit import checks
from keras_vit.layers.arguments import is_integer
from keras_vit.layers.embedding.patches import PatchGrid
from keras_vit.models import families

# The features' layer, whichever the model has: the last in the graph comes first.
_FEATURES = ("features", "pre_logits", "fc_norm", "pool")
_BLOCK = "block_"


def blocks(model: keras.Model) -> list:
    """The blocks in the model's own graph, in order."""
    return [layer for layer in model.layers if layer.name.startswith(_BLOCK) and families.of_block(layer)]


def family_in(model: keras.Model) -> families.Family:
    """The family of the blocks in the model's own graph."""
    return next(filter(None, map(families.of_block, reversed(blocks(model)))))


def is_reserved(name: str, spec: families.Spec) -> bool:
    """Whether models with this spec find layers by this name, so that a head must not use it."""
    return name in (*_FEATURES, families.find(spec).encoded) or name.startswith((_BLOCK, "position_embedding"))


def encoder_in(model: keras.Model) -> tuple:
    """(the one model with the blocks in its graph, its symbolic images): `model` or a nested one, else ValueError."""
    if blocks(model):
        return model, model.input
    nested, image = _call_of_encoder(model)
    encoder, inner = encoder_in(nested)
    return encoder, image if encoder is nested else keras.Model(nested.input, inner)(image)


def _node_of_encoder(model):
    """The node that calls the nested model with the blocks; ValueError unless there is exactly one."""
    nodes = [node for level in getattr(model, "_nodes_by_depth", {}).values() for node in level]
    calls = [node for node in nodes if _is_call_of_encoder(node)]
    if len(calls) != 1:
        raise ValueError(
            f'"{model.name}" should contain one {families.any_name()}, with blocks named block_00..., and call it once;'
            f" it contains {len(calls)} such calls. Its layers: {[layer.name for layer in model.layers]}."
        )
    return calls[0]


def _call_of_encoder(model):
    """(the nested model with the blocks, its symbolic images)."""
    call = _node_of_encoder(model)
    [image] = call.input_tensors
    return call.operation, image


def own_encoder(model: keras.Model) -> keras.Model | None:
    """The encoder inside a pre-training model, or a distillation's student; any other model itself.

    None for DINO, which calls its encoder inside, and twice.
    """
    encoder = model.get_encoder() if hasattr(model, "get_encoder") else model
    return encoder if encoder is model or any(encoder.input is tensor for tensor in model.inputs) else None


def trunk(model: keras.Model) -> list:
    """The layers, also nested, up to the features, or unpooled tokens or feature map; ValueError without encoder."""
    if not blocks(model):
        nested, image = _call_of_encoder(model)
        return [*_layers_up_to(model, image), *trunk(nested)]
    pooled = any(layer.name in _FEATURES for layer in model.layers)
    return _layers_up_to(model, _features(model) if pooled else encoded(model))


def _layers_up_to(model, tensor):
    return keras.Model(model.inputs, tensor).layers


def _is_call_of_encoder(node):
    """Whether a node calls a functional model with blocks on one tensor."""
    operation = node.operation
    is_functional = isinstance(operation, keras.Model) and hasattr(operation, "_nodes_by_depth")
    return is_functional and len(node.input_tensors) == 1 and _holds_blocks(operation)


def _holds_blocks(model):
    nested = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    return bool(blocks(model)) or any(map(_holds_blocks, nested))


def _outside(model, tap):
    """tap(encoder), tensors in the encoder's graph, as tensors in the graph of `model`."""
    encoder, image = encoder_in(model)
    tensors = tap(encoder)
    return tensors if encoder is model else keras.Model(encoder.input, tensors)(image)


def features(model: keras.Model) -> keras.KerasTensor:
    """Features before the head, symbolic (b, d); ValueError if there are none: heads on tokens or maps do not pool."""
    return _outside(model, _features)


def _features(model):
    names = {layer.name for layer in model.layers}
    name = next((name for name in _FEATURES if name in names), None)
    if name is None:
        raise ValueError(f'"{model.name}" does not pool its tokens to features: its head takes tokens or feature maps.')
    # For a distilled model with two heads: its graph lacks the mean.
    if name == "pool" and "pool_dist" in names:
        return keras.layers.average([model.get_layer("pool").output, model.get_layer("pool_dist").output])
    return model.get_layer(name).output


def tokens(model: keras.Model) -> keras.KerasTensor:
    """A ViT's tokens, symbolic (b, n, d), with prefix, after block and normalisation; ValueError without a ViT."""
    return _outside(model, _tokens)


def _tokens(model):
    family = family_in(model)
    if not family.spec.has_tokens:
        raise ValueError(f'"{model.name}" is a {family.name}, which has no tokens. Use feature_map.')
    return encoded(model)


def encoded(model: keras.Model) -> keras.KerasTensor:
    """The encoder's output, tokens or a feature map, after any last normalisation; `model` contains the blocks."""
    last, name = blocks(model)[-1], family_in(model).encoded
    return next((layer.output for layer in model.layers if layer.name == name), _output(last))


def _output(block):
    """A block's tokens or feature map."""
    return block.output[0] if isinstance(block.output, (list, tuple)) else block.output  # with the sizes of tokens


def patch_grid(model: keras.Model) -> tuple[int, int]:
    """The patch grid (h, w) of the model with the blocks, from its first layer with one; ValueError without any."""
    grid = next((grid for grid in (getattr(layer, "grid", None) for layer in model.layers) if grid is not None), None)
    if grid is None:
        raise ValueError(
            f'"{model.name}" does not say how its patches lie: it has neither a PatchEncoder nor an AddPositionEmbs.'
        )
    return tuple(grid)


def check_whole_grid(model: keras.Model) -> None:
    """Refuses a model without one token per patch: its maps have no places; ValueError with how to load it."""
    from keras_vit.layers.blocks.token_merging import ReducingBlock
    from keras_vit.layers.embedding.patch_dropout import PatchDropout

    if any(isinstance(layer, (ReducingBlock, PatchDropout)) for layer in model.layers):
        raise ValueError(
            f'"{model.name}" merges or leaves out patches, so that its tokens are no map of the image. Load it with'
            " token_merging=None and patch_dropout=0."
        )


def block_outputs(model: keras.Model) -> list:
    """All blocks' outputs, symbolic: tokens (b, n, d), prefix tokens included, or feature maps (b, h, w, d)."""
    return _outside(model, lambda encoder: [_output(block) for block in blocks(encoder)])


def split(model: keras.Model, tap: Callable[[keras.Model], keras.KerasTensor]) -> tuple[keras.Model, keras.Model]:
    """A model cut in two at a tensor inside its encoder: (images to tensor, tensor to outputs).

    Args:
        model: of any family, or built on one, with one input.
        tap: function from the model with the blocks to the tensor in its graph.

    Raises:
        ValueError: if the model does not contain one encoder, or its outputs do not depend on the tensor alone.
    """
    if blocks(model):
        tensor = tap(model)
        return keras.Model(model.input, tensor), _after(model, tensor)
    call = _node_of_encoder(model)
    front, back = split(call.operation, tap)
    [image], [output] = call.input_tensors, call.output_tensors
    if output is model.output:  # nothing follows
        return keras.Model(model.input, front(image)), back
    return keras.Model(model.input, front(image)), keras.Model(back.input, _after(model, output)(back.output))


def _after(model, tensor):
    """The part of a model from a tensor in its graph to its output."""
    try:
        return keras.Model(tensor, model.output)
    except ValueError:
        raise ValueError(
            f'The output of "{model.name}" depends on more than the outputs of its {families.any_name()}: it'
            " cannot be cut there."
        ) from None


def ends_in_probabilities(model: keras.Model) -> bool:
    """Whether the model's one output, possibly a nested model's, is visibly a softmax or sigmoid."""
    return isinstance(model.output, keras.KerasTensor) and checks.what_is(model.output) == "probabilities"


def feature_map(model: keras.Model, numbers: int | Sequence[int] | None = None) -> Any:
    """Feature maps, or tokens on the patch grid, after given blocks: for dense heads and inspection.

    Args:
        model: of any family, or built on one.
        numbers: a block's number, or a list, negative ones from the end; None for the encoder's output after its last
            normalisation.

    Returns:
        A symbolic tensor (b, h, w, d), or a list of them, without class token and registers. A map after block i has
            the stride `spec.strides[i]`; a BiT's last normalisation is followed by a ReLU.

    Raises:
        ValueError: for an unknown block number, or a model without blocks.
    """
    return _outside(model, lambda encoder: _feature_map(encoder, numbers))


def normalised_map(model: keras.Model, number: int) -> keras.KerasTensor:
    """The map (b, h, w, d) after a block and the encoder's last normalisation, which the blocks share.

    Without such a layer, or in a family with a normalisation after its last block alone, only that block's is
    normalised.
    """
    units = blocks(model)
    family = family_in(model)
    if number % len(units) == len(units) - 1:
        return _feature_map(model, None)
    norm = next((layer for layer in model.layers if layer.name == family.encoded), None)
    if norm is None or not family.spec.has_tokens:
        return _feature_map(model, number)
    return _on_grid(model, norm(_output(units[number])))


def _on_grid(model, tokens):
    """A ViT's tokens (b, n, d) as a map (b, h, w, d), without class token and registers."""
    check_whole_grid(model)
    h, w = patch_grid(model)
    policy = blocks(model)[-1].dtype_policy
    return PatchGrid((h, w), prefix=tokens.shape[1] - h * w, dtype=policy)(tokens)


def _feature_map(model, numbers):
    units = blocks(model)
    if numbers is None:
        tensors = [encoded(model)]
    else:
        chosen = numbers if isinstance(numbers, (list, tuple)) else [numbers]
        wrong = [i for i in chosen if not is_integer(i) or not -len(units) <= i < len(units)]
        if wrong or not chosen:
            raise ValueError(f"Unknown blocks {wrong or chosen}: the model has blocks 0 to {len(units) - 1}.")
        tensors = [_output(units[i]) for i in chosen]
    if family_in(model).spec.has_tokens:
        tensors = [_on_grid(model, tokens) for tokens in tensors]
    return tensors if isinstance(numbers, (list, tuple)) else tensors[0]
