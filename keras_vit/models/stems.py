"""Convolutional stems: the hybrids' ResNet (appendix B.2 of arXiv 2010.11929) and 3x3 convolutions (2106.14881)."""

import keras

from keras_vit.layers.convolutions import BottleneckUnit, StdConv2D, group_norm
from keras_vit.layers.normalization import BatchNormalization

MOMENTUM = 0.95  # of the running statistics: high values lag behind in short trainings on few examples


def hybrid_stem(x, stages: tuple, width: int, remat: bool, policy):
    """A hybrid's stem: root, max-pooling, and post-activation units named `stem_block1_unit1`...

    Args:
        x: (b, h, w, c).
        stages: residual units per stage; () for the root alone.
        width: channels of the root.
        remat: rematerialise the units.
        policy: Keras' dtype policy.

    Returns:
        (b, h/4, w/4, width) without stages; otherwise (b, h/s, w/s, 4 * width * 2^(stages-1)), s = 4 * 2^(stages-1).
    """
    x = StdConv2D(width, 7, 2, dtype=policy, name="stem_conv")(x)
    x = group_norm(1e-6, policy, "stem_norm")(x)
    x = keras.layers.Activation("relu", dtype=policy, name="stem_relu")(x)
    x = keras.layers.MaxPooling2D(3, 2, "same", "channels_last", dtype=policy, name="stem_pool")(x)
    for i, units in enumerate(stages):
        for j in range(units):
            strides = 2 if i and not j else 1
            name = f"stem_block{i + 1}_unit{j + 1}"
            x = BottleneckUnit(width * 2**i, strides, remat=remat, dtype=policy, name=name)(x)
    return x


def conv_stem(x, widths: tuple, strides: tuple, form: str, policy):
    """3x3 convolutions, each with global batch normalisation and ReLU ("Early Convolutions", arXiv 2106.14881).

    Args:
        x: (b, h, w, c).
        widths, strides: channels and stride of each convolution.
        form: "plain"; or "residual": after the first convolution max-pooling replaces strides, and a convolution that
            keeps the shape is added to its input.
        policy: Keras' dtype policy.

    Returns:
        (b, h/s, w/s, widths[-1]), rounded up, s the product of the strides.
    """
    for i, (channels, stride) in enumerate(zip(widths, strides), 1):
        residual = form == "residual" and i > 1
        before, step = x, 1 if residual else stride
        x = keras.layers.Conv2D(
            channels, 3, step, "same", "channels_last", use_bias=False, dtype=policy, name=f"stem_conv{i}"
        )(x)
        if step != stride:
            pool = keras.layers.MaxPooling2D(
                stride, stride, "same", "channels_last", dtype=policy, name=f"stem_pool{i}"
            )
            x = pool(x)
        x = BatchNormalization(MOMENTUM, dtype=policy, name=f"stem_norm{i}")(x)
        x = keras.layers.Activation("relu", dtype=policy, name=f"stem_relu{i}")(x)
        if residual and x.shape == before.shape:
            x = keras.layers.Add(dtype=policy, name=f"stem_add{i}")([before, x])
    return x
