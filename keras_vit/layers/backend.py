"""The layers' only backend-dependent module: replicas, seeds, counts, masks, GELU, fused matrix products, kernels."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops


def replica_id():
    """The replica's number in its strategy; 0 on one device and on JAX (one global program)."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context.replica_id_in_sync_group if context is not None else 0


def replicas() -> int:
    """The number of replicas that share a batch; 1 on one device and on JAX (one global program)."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(tensors: list) -> list:
    """The sums of tensors over the replicas that share a batch, in replica context."""
    if replicas() == 1:
        return tensors
    import tensorflow as tf

    context, sums = tf.distribute.get_replica_context(), list(tensors)
    dtypes = [keras.backend.standardize_dtype(t.dtype) for t in tensors]
    for dtype in () if context is None else sorted(set(dtypes)):  # the replicas pack one dtype
        places = [i for i, other in enumerate(dtypes) if other == dtype]
        for i, total in zip(places, context.all_reduce("SUM", [tensors[i] for i in places])):
            sums[i] = total
    return sums


def gather_over_replicas(tensors: list) -> list:
    """The tensors (b, ...) of all replicas that share a batch, in their order: (replicas * b, ...)."""
    if replicas() == 1:
        return tensors
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return tensors if context is None else [context.all_gather(t, axis=0) for t in tensors]


def count_values(values: Any, n: int) -> Any:
    """How often each of 0, 1... n - 1 occurs in int32 values (m,): int32 (n,)."""
    if keras.backend.backend() != "tensorflow":
        return ops.segment_sum(ops.ones_like(values), values, num_segments=n)
    import tensorflow as tf

    # 35 times as fast as a sum of segments. tf.math.bincount computes the size in the graph: XLA needs a constant.
    return tf.raw_ops.DenseBincount(input=values, size=n, weights=tf.constant([], "int32"))


def seed_dtype() -> str:
    """The integer type of seeds for the backend's random functions."""
    return "uint32" if keras.backend.backend() == "jax" else "int64"


def _on_tpus():
    """Whether TensorFlow traces for TPUs, where the program is compiled whole."""
    import tensorflow as tf

    return isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def hashes_masks(shape: tuple) -> bool:
    """Whether masks of this shape come from the hash in dropout.py.

    True where a step is one compiled program, which makes masks where they are used: on JAX, and on TensorFlow for TPUs
    if the shape is known. Elsewhere TensorFlow's single random operation is quicker on a CPU than a dozen.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.backend.backend() == "jax"
    return _on_tpus() and all(isinstance(size, int) for size in shape)


@functools.cache
def _has_xla():
    """Whether this TensorFlow can compile for this machine's CPU; some builds cannot."""
    import tensorflow as tf

    try:
        with tf.init_scope(), tf.device("CPU:0"):
            return float(tf.function(lambda x: x + 1.0, jit_compile=True)(tf.zeros(()))) == 1.0
    except tf.errors.OpError:
        return False


def compiles_parts() -> bool:
    """Whether `one_pass` pays off: on TensorFlow with only CPUs. Programs for TPUs and JAX are compiled whole."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not _on_tpus() and not tf.config.list_physical_devices("GPU") and _has_xla()


class Forms(NamedTuple):
    """The quickest forms of parts of a training step, for an engine and a chip."""

    gelu_keeps: str | None  # for its backward pass: its "slope", its "input", or what the engine keeps, None
    bias_gradient: str  # in 16 bits: a "sum" in float32, or a "product" with ones, on a TPU's matrix unit


# Four blocks of ViT-B/16 in plain JAX on an H100: keeping the input saves 5.5% of a step, sums 3.9%. 12,608 rows on a
# TPU v5e, by XLA's estimate: 171 us for a sum, 17 us for the product. TensorFlow's GELU is one operation; on CPUs alone
# two compiled passes, from the input, are faster still. JAX on a CPU also plans for TPUs, with their forms.
_FORMS = {
    "jax": {"cpu": Forms("slope", "product"), "gpu": Forms("input", "sum"), "tpu": Forms("slope", "product")},
    "tensorflow": {"cpu": Forms("input", "sum"), "gpu": Forms(None, "sum"), "tpu": Forms(None, "product")},
}


def forms() -> Forms:
    """The forms for this engine and its chips."""
    if keras.backend.backend() == "jax":
        from keras_vit.layers.kernels import cudnn

        return _FORMS["jax"][cudnn.platform()]
    return _FORMS["tensorflow"]["tpu" if _on_tpus() else "cpu" if compiles_parts() else "gpu"]


def one_pass(function: Callable) -> Callable:
    """`function` of tensors as one pass through memory for elementwise operations: on TensorFlow compiled by XLA."""
    if keras.backend.backend() != "tensorflow":
        return function  # a part of a program that is compiled whole
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def _fuses_by_xla():
    """Whether XLA compiles and fuses the whole program; on a TPU reshaping tokens copies them, unless 8 divides n."""
    return keras.backend.backend() != "tensorflow" or _on_tpus()


def as_matrix(x):
    """Tokens (b, n, d) as (b*n, d) on TensorFlow, which fuses a product only without a reshape after it; x on XLA."""
    if _fuses_by_xla() or len(x.shape) == 2:
        return x
    return ops.reshape(x, (-1, x.shape[-1]))


def as_tokens(y, x):
    """A result for as_matrix(x), (b*n, d), as (b, n, d) again."""
    if _fuses_by_xla() or len(x.shape) == 2:
        return y
    return ops.reshape(y, (*ops.shape(x)[:-1], y.shape[-1]))


def affine(x, kernel, bias=None, activation=None):
    """activation(x kernel + bias): (b, n, c) or (b*n, c), (c, d), (d,) -> (b, n, d) or (b*n, d).

    TensorFlow on a CPU fuses bias and GELU into a matrix product only for BiasAdd, which `keras.ops` does not offer: 5%
    of ViT-B/16's forward pass. XLA (JAX, TPUs) fuses the ordinary form by itself.
    """
    if _fuses_by_xla():
        y = ops.einsum("...c,cd->...d", x, kernel) if keras.backend.backend() == "tensorflow" else ops.matmul(x, kernel)
        y = y if bias is None else _with_bias(y, bias)
        return y if activation is None else activation(y)
    import tensorflow as tf

    y = tf.matmul(as_matrix(x), kernel)  # (b, n, c) -> (b*n, d)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    y = y if activation is None else activation(y)
    return as_tokens(y, x)


def fused_batch_normalization(x, gamma, beta, epsilon):
    """(x normalised over all axes but the last, means (c,), variances (c,)) of (b, h, w, c), or None.

    TensorFlow's one operation, for one replica: in bfloat16 on a CPU a sixth of the time of Keras' single operations.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    if x.dtype == tf.float64 or replicas() > 1:
        return None  # over several replicas the statistics are sums of theirs
    scale, offset = (tf.cast(tf.convert_to_tensor(weight), tf.float32) for weight in (gamma, beta))
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=[], variance=[], epsilon=epsilon
    )
    n = tf.cast(tf.size(x) // x.shape[-1], variance.dtype)
    return y, mean, variance * ((n - 1.0) / n)  # the operation divides by n - 1, Keras by n


def resized_bilinearly(x: Any, size: tuple[int, int], aligned: bool) -> Any:
    """layers.resizing.resize_bilinear by TensorFlow's one operation, in float32: on a CPU a quarter of the products'
    time. None for float64, and on JAX, where XLA's products are fast.
    """
    if isinstance(x, keras.KerasTensor):  # of planning, to which interpolation is no product
        return ops.image.resize(x, size, data_format="channels_last")
    if keras.backend.backend() != "tensorflow" or keras.backend.standardize_dtype(x.dtype) == "float64":
        return None
    import tensorflow as tf

    return tf.raw_ops.ResizeBilinear(images=x, size=size, align_corners=aligned, half_pixel_centers=not aligned)


def cudnn_attends(x: Any, width: int) -> bool:
    """layers.kernels.self_check.is_default on JAX; False elsewhere."""
    if keras.backend.backend() != "jax" or isinstance(x, keras.KerasTensor):
        return False
    from keras_vit.layers.kernels import self_check

    return self_check.is_default(x, width)


def with_even_count(x: Any) -> Any:
    """Tokens x (b, n, d) for cuDNN's kernel on JAX, with one more if n is odd; its output has a row too many then.

    XLA fuses this copy with what computes x, and dropping the row with what follows the output's product. Copies of
    queries, keys and values took a tenth of a ViT-B/16's step on an H100.
    """
    from keras_vit.layers.kernels import cudnn

    return cudnn.with_even_count(x)


def dot_product_attention(
    q: Any, k: Any, v: Any, allowed: Any = None, is_causal: bool = False, count: int | None = None
) -> Any:
    """Keras' operation on q, k and v (b, n, k, c); with JAX on a GPU also for an odd number of tokens by cuDNN. On TPUs
    without Keras' call of JAX's splash attention, which takes attention without a mask for causal (3.15).

    Args:
        allowed: boolean, broadcastable to (b, k, n, n); None for all.
        is_causal: whether a token attends only to itself and earlier ones.
        count: how many tokens exist, if `with_even_count` added one.
    """
    flash = None
    if keras.backend.backend() == "jax":
        from keras_vit.layers.kernels import cudnn

        if allowed is None and not is_causal and q.shape[1] and cudnn.usable(q, q.shape[-1]):
            return cudnn.attend(q, k, v, count)
        flash = None if cudnn.platform() != "tpu" else False
    return ops.dot_product_attention(q, k, v, mask=allowed, is_causal=is_causal, flash_attention=flash)


def _with_bias(y, bias):
    """y (..., d) + bias (d,), in 16 bits with the bias' gradient as in layers/kernels/bias.py."""
    if keras.backend.standardize_dtype(y.dtype) not in ("bfloat16", "float16"):
        return y + bias
    if keras.backend.backend() == "tensorflow":
        return _with_bias_on_tensorflow(y, bias)
    from keras_vit.layers.kernels import bias as on_jax

    return on_jax.add(y, ops.convert_to_tensor(bias), forms().bias_gradient)


def _with_bias_on_tensorflow(y, bias):
    import tensorflow as tf

    rows = "abcdefgh"[: len(y.shape) - 1]

    def gradients(g):
        ones = tf.ones(tf.concat([tf.shape(g)[:-1], [8]], 0), g.dtype)  # as on JAX
        return g, tf.einsum(f"{rows}y,{rows}z->yz", ones, g)[0]

    return tf.custom_gradient(lambda y, bias: (y + bias, gradients))(y, bias)
