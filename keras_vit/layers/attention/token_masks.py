"""Token masks for attention and pooling: boolean or integers, True or 1 for tokens that exist or may be attended to."""

import keras
from keras import ops


def token_count(x):
    """The number of tokens n of x (b, n, ...): an int if known, else a scalar tensor."""
    return x.shape[1] if x.shape[1] is not None else ops.shape(x)[1]


def _boolean(mask, shapes, what):
    """`mask` as a boolean tensor.

    Args:
        mask: tensor or array.
        shapes: {rank: valid shape}; None for a size known only at run time. Sizes of 1 fit all axes but the last.
        what: the argument's name, for the error.
    """
    mask = ops.convert_to_tensor(mask)
    if "float" in keras.backend.standardize_dtype(mask.dtype):
        raise ValueError(
            f"{what} must be boolean, or integers with 1 for yes, got {keras.backend.standardize_dtype(mask.dtype)}."
            " For an additive mask, of 0 and large negative numbers, pass its comparison with 0: mask == 0."
        )
    expected = shapes.get(len(mask.shape), ())
    sizes = list(zip(mask.shape, expected))
    fits = [m is None or e is None or m == e or (m == 1 and i < len(sizes) - 1) for i, (m, e) in enumerate(sizes)]
    if not fits or not all(fits):
        valid = " or ".join(str(shape) for shape in shapes.values())
        raise ValueError(f"{what} has the shape {tuple(mask.shape)}, expected {valid}.")
    return ops.cast(mask, "bool")


def present(x, mask):
    """The mask of tokens x (b, n, d) as booleans (b, n); ValueError for another shape or floating-point numbers."""
    return _boolean(mask, {2: (x.shape[0], x.shape[1])}, "mask")


def attendable(x, heads: int, mask=None, attention_mask=None):
    """An attention layer's two masks as one.

    Args:
        x: tokens (b, n, d).
        heads: number of heads k.
        mask: (b, n), which tokens exist, or None.
        attention_mask: (b, n), (b, n, n) or (b, k, n, n), to which tokens (the last axis) each may attend, or None.

    Returns:
        Booleans that broadcast to (b, k, n, n), or None without any mask.

    Raises:
        ValueError: for a mask of another shape, or of floating-point numbers.
    """
    masks = []
    if mask is not None:
        masks.append(present(x, mask)[:, None, None, :])  # (b, n) -> (b, 1, 1, n)
    if attention_mask is not None:
        b, n = x.shape[:2]
        allowed = _boolean(attention_mask, {2: (b, n), 3: (b, n, n), 4: (b, heads, n, n)}, "attention_mask")
        if len(allowed.shape) == 2:
            allowed = allowed[:, None, None, :]  # (b, n) -> (b, 1, 1, n)
        elif len(allowed.shape) == 3:
            allowed = allowed[:, None]  # (b, n, n) -> (b, 1, n, n)
        masks.append(allowed)
    if len(masks) == 2:
        return ops.logical_and(*masks)
    return masks[0] if masks else None


def causal(n):
    """The causal mask, booleans (n, n): tokens attend to themselves and earlier ones; n is an int or a tensor."""
    places = ops.arange(n)
    return places[:, None] >= places[None, :]


def _lowest(scores):
    """The lowest finite number of the scores' dtype: -inf would turn fully masked rows into NaN."""
    return ops.cast(-65504.0 if keras.backend.standardize_dtype(scores.dtype) == "float16" else -3e38, scores.dtype)


def causal_softmax(scores, n):
    """Causal softmax of scores (b, k, n, n). Every row allows a token, so adding (n, n) numbers suffices."""
    return ops.softmax(scores + ops.where(causal(n), ops.cast(0, scores.dtype), _lowest(scores)))


def masked_softmax(scores, mask=None):
    """Softmax over the last axis of scores (b, k, n, n) where the mask allows; else 0, also in fully masked rows."""
    if mask is None:
        return ops.softmax(scores)
    weights = ops.softmax(ops.where(mask, scores, _lowest(scores)))
    return ops.where(mask, weights, ops.zeros_like(weights))
