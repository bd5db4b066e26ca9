"""Operations of a forward pass: its matrix products and convolutions, 2 per multiply-add. Training takes three times as many."""


def _resnet_products(stages, width, side, channels):
    """(multiply-adds of a ResNet's convolutions, its output channels), including the root."""
    side = -(-side // 2)
    total, inputs, side = side**2 * 49 * channels * width, width, -(-side // 2)
    for i, units in enumerate(stages):
        f = width * 2**i
        for j in range(units):
            before, side = side, -(-side // 2) if i and not j else side
            total += before**2 * inputs * f + side**2 * (9 * f * f + 4 * f * f)
            total += side**2 * inputs * 4 * f if not j else 0
            inputs = 4 * f
    return total, inputs


def _conv_products(widths, strides, side, channels):
    """(multiply-adds of 3x3 convolutions, their output channels)."""
    total = 0
    for width, stride in zip(widths, strides):
        side = -(-side // stride)
        total, channels = total + side**2 * 9 * channels * width, width
    return total, channels


def forward_flops(spec, image_size, channels=3):
    """Operations of one image's forward pass in matrix products and convolutions, 2 per multiply-add."""
    if hasattr(spec, "units"):
        return 2 * _resnet_products(spec.units, spec.width, image_size, channels)[0]
    stem, channels = _conv_products(spec.conv_stem, spec.conv_strides, image_size, channels)
    if spec.stem is not None:
        stem, channels = _resnet_products(spec.stem, spec.stem_width, image_size, channels)
    n_patches = (image_size // spec.stride[0]) * (image_size // spec.stride[1])
    n, d, inner = n_patches + spec.prefix, spec.width, spec.heads * (spec.head_dim or spec.width // spec.heads)
    mlp = (3 if spec.mlp_form == "swiglu" else 2) * n * d * spec.mlp_dim
    block = 4 * n * d * inner + 2 * n * n * inner + mlp
    patches = n_patches * spec.patch_size[0] * spec.patch_size[1] * channels * d
    return 2 * (spec.depth * block + patches + stem)
