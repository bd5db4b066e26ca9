"""A stem of plain convolutions before the patches (Xiao et al., "Early Convolutions Help Transformers See Better", arXiv 2106.14881)."""

import keras

MOMENTUM = 0.95  # of the running statistics, which short trainings of few examples must reach


def conv_stem(x, widths, strides, policy):
    """3x3 convolutions, each normalised over the batch, of all replicas together, and rectified.

    Args:
        x: (b, h, w, c).
        widths, strides: channels and stride of each convolution.
        policy: Keras' dtype policy.

    Returns:
        (b, h/s, w/s, channels of the last), s the product of the strides; rounded up.
    """
    for i, (channels, stride) in enumerate(zip(widths, strides), 1):
        conv = keras.layers.Conv2D(channels, 3, stride, "same", use_bias=False, dtype=policy, name=f"stem_conv{i}")
        norm = keras.layers.BatchNormalization(momentum=MOMENTUM, synchronized=True, dtype=policy, name=f"stem_norm{i}")
        x = keras.layers.Activation("relu", dtype=policy, name=f"stem_relu{i}")(norm(conv(x)))
    return x
