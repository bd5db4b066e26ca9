"""Operations of a forward pass and of a training step: matrix products and convolutions, 2 per multiply-add."""


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


def _parts(spec, image_size, channels):
    """Operations of one image's forward pass, of what comes before the blocks and of one block; of a BiT all is before them."""
    if hasattr(spec, "units"):
        return 2 * _resnet_products(spec.units, spec.width, image_size, channels)[0], 0
    stem, channels = _conv_products(spec.conv_stem, spec.conv_strides, image_size, channels)
    if spec.stem is not None:
        stem, channels = _resnet_products(spec.stem, spec.stem_width, image_size, channels)
    n_patches = (image_size // spec.stride[0]) * (image_size // spec.stride[1])
    n, d, inner = n_patches + spec.prefix, spec.width, spec.heads * (spec.head_dim or spec.width // spec.heads)
    mlp = (3 if spec.mlp_form == "swiglu" else 2) * n * d * spec.mlp_dim
    block = 4 * n * d * inner + 2 * n * n * inner + mlp
    patches = n_patches * spec.patch_size[0] * spec.patch_size[1] * channels * d
    return 2 * (patches + stem), 2 * block


def forward_flops(spec, image_size, channels=3):
    """Operations of one image's forward pass in matrix products and convolutions, 2 per multiply-add."""
    before, block = _parts(spec, image_size, channels)
    return before + getattr(spec, "depth", 0) * block


def training_flops(model):
    """Operations of one image's step: the forward pass, as much again for the weights that train, and as much again for the activations
    of everything above the lowest of them. Where all weights train this is three times the forward pass; where only a head does, once.

    Args:
        model: a ViT or BiT; its frozen layers count.
    """
    before, block = _parts(model.spec, model.image_size[0], model.channels)
    names = [layer.name for layer in model.layers]
    blocks = [layer for layer in model.layers if layer.name.startswith("block_")] if block else []
    below = model.layers[: names.index(blocks[0].name if blocks else "head")]
    costs = [(before, below), *((block, [layer]) for layer in blocks)]
    trained = [i for i, (_, layers) in enumerate(costs) if any(layer.trainable_variables for layer in layers)]
    backward = sum(cost for cost, _ in costs[trained[0] :]) + sum(costs[i][0] for i in trained) if trained else 0
    return sum(cost for cost, _ in costs) + backward
