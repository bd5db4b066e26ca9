"""Graph branches that cost nothing unless taken, neither when the graph starts nor per image."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def outlined(function: Callable) -> Callable:
    """Compiles `function`, of tensors and Python values, as a separate graph that is not inlined; for rare branches.

    Traces once per process for each signature. A call takes about 50 microseconds.
    """
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


def switch(functions: Sequence[Callable]) -> Callable:
    """Returns apply(number, image, *values): functions[number](image, *values), of the image's shape and dtype.

    In a graph, tf.switch_case is lowered to the nodes of all functions, and every image visits every node, dead or
    alive. Here each function is a separate graph, traced once for all uses, and only the chosen one runs.

    Args:
        functions: sequence of callables. Each maps tensors (image, *values) to an image, and may otherwise use only
            Python values.
    """
    traced = [tf.function(function, autograph=False) for function in functions]

    def apply(number, image, *values):
        if tf.executing_eagerly():
            return functions[int(number)](image, *values)
        inputs = [image, *(tf.convert_to_tensor(value) for value in values)]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
        (result,) = tf.raw_ops.StatelessCase(
            branch_index=number,
            input=inputs,
            Tout=[image.dtype],
            branches=[function.get_concrete_function(*specs) for function in traced],
            output_shapes=[image.shape],
        )
        return tf.ensure_shape(result, image.shape)

    return apply
