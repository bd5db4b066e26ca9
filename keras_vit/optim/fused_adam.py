"""Adam's update as one operation of TensorFlow: one pass over weights, moments and gradient, where single operations
make a dozen.
"""

from typing import Any

import keras


def has_adam() -> bool:
    """Whether `apply_adam` is there, and worth it. TPUs' whole program is compiled, as on JAX, and fuses single
    operations.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def apply_adam(
    variable: Any,
    m: Any,
    v: Any,
    gradient: Any,
    learning_rate: Any,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    step: Any,
) -> None:
    """Moves both moments and the variable: w -= lr m^ / (sqrt(v^) + epsilon), with m^ = m / (1 - beta_1^step) and v^
    likewise.

    Args:
        variable, m, v: variables of one shape and dtype, in one replica or within the strategy's `update`.
        gradient: of that shape.
        learning_rate, beta_1, beta_2, epsilon: as in arXiv 1412.6980, algorithm 1.
        step: the number of this step, from 1.
    """
    import tensorflow as tf

    variable, m, v = (x.value if isinstance(x, keras.Variable) else x for x in (variable, m, v))
    t, one = tf.cast(step, variable.dtype), tf.ones((), variable.dtype)
    power_1, power_2 = tf.pow(beta_1 * one, t), tf.pow(beta_2 * one, t)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=power_1,
        beta2_power=power_2,
        lr=tf.cast(learning_rate, variable.dtype),
        beta1=beta_1 * one,
        beta2=beta_2 * one,
        epsilon=epsilon * tf.sqrt(1 - power_2),  # the operation adds it to the root of v, before its correction
        grad=tf.cast(tf.convert_to_tensor(gradient), variable.dtype),
    )
