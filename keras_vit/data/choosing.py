"""One of several functions, by a number that is known only while the data is read."""

import tensorflow as tf


def one_of(functions):
    """Returns apply(number, image, *values): functions[number](image, *values), an image of the same shape and dtype.

    In a graph, tf.switch_case would be lowered to all of the functions' nodes, every one of which an image then visits, dead or alive; here each
    function is a graph of its own, made once for all places that use it, and only the chosen one is entered.

    Args:
        functions: of tensors (image, *values) alone; what else they need are Python values.
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
