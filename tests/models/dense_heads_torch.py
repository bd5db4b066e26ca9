"""Writes goldens/dense_heads.npz: the outputs of dense heads in PyTorch, for weights sampled by name.

A script for maintainers; the tests read what it writes. It needs torch and transformers:

    python tests/models/dense_heads_torch.py

SETR's decoders follow the paper (arXiv 2012.15840, section 3.2 and figure 1) and mmsegmentation's configs.
"""

import numpy as np
import torch
import torch.nn.functional as F
from dense_head_arrays import CLASSES, GOLDENS, SIZES, WIDTH, maps, sample, thinned


def weight(name, *shape):
    return torch.from_numpy(sample(name, shape))


def convolved(x, name, width, size, bias=False):
    """A convolution that keeps the map's size; kernels are sampled as Keras has them, (h, w, c, d)."""
    kernel = weight(f"{name}/kernel", size, size, x.shape[1], width).permute(3, 2, 0, 1)
    return F.conv2d(x, kernel, weight(f"{name}/bias", width) if bias else None, padding=size // 2)


def batch_normalised(x, name):
    gamma, beta, mean, variance = (
        weight(f"{name}/{part}", x.shape[1]) for part in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    return F.batch_norm(x, mean, variance, gamma, beta, eps=1e-5)


def block(x, name, width, size):
    """Convolution, batch normalisation, ReLU."""
    return F.relu(batch_normalised(convolved(x, f"{name}/conv", width, size), f"{name}/norm"))


def layer_normalised(x, name):
    d = x.shape[1]
    y = F.layer_norm(x.permute(0, 2, 3, 1), (d,), weight(f"{name}/gamma", d), weight(f"{name}/beta", d), eps=1e-6)
    return y.permute(0, 3, 1, 2)


def enlarged(x, factor):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def classified(x, name):
    kernel = weight(f"{name}/classifier/linear/kernel", x.shape[1], CLASSES)
    bias = weight(f"{name}/classifier/linear/bias", CLASSES)
    return F.conv2d(x, kernel.T[:, :, None, None], bias)


def upsampling(x, name, convs, scale, size, width=6):
    """SETR naive (1x1 convolutions, scale 4) and PUP (3x3, scale 2): LN, (convolution, upsampling)..., classifier."""
    x = layer_normalised(x, f"{name}/norm")
    for i in range(convs):
        x = enlarged(block(x, f"{name}/conv_{i}", width, size), scale)
    return classified(x, name)


def aggregated(features):
    """MLA: 1x1 convolutions of normed maps, a running sum from the deepest, 3x3 convolutions; the deepest first."""
    projected = [
        block(layer_normalised(x, f"neck/norm_{i}"), f"neck/projection_{i}", 6, 1) for i, x in enumerate(features)
    ]
    sums = [projected[3]]
    for x in (projected[2], projected[1], projected[0]):
        sums.append(sums[-1] + x)
    return [block(x, f"neck/output_{i}", 6, 3) for i, x in enumerate(sums)]


def mla(features):
    """MLA's decoder: two 3x3 convolutions and upsampling by 4 for each map, concatenated, classified."""
    found = [
        enlarged(block(block(x, f"head/conv_{i}_0", 4, 3), f"head/conv_{i}_1", 4, 3), 4) for i, x in enumerate(features)
    ]
    return classified(torch.cat(found, dim=1), "head")


def setr(features):
    """{case: logits} of SETR's decoders and their auxiliary heads."""
    mixed = aggregated(features)
    return {
        "setr_naive": upsampling(features[3], "head", 1, 4, 1),
        "setr_naive/auxiliary": upsampling(features[1], "auxiliary_1", 2, 4, 1),
        "setr_pup": upsampling(features[3], "head", 4, 2, 3),
        "setr_pup/auxiliary": upsampling(features[2], "auxiliary_2", 1, 4, 3),
        "setr_mla": mla(mixed),
        "setr_mla/auxiliary": classified(mixed[3], "auxiliary_3"),
    }


def channels_last(x):
    return x.detach().permute(0, 2, 3, 1).numpy()


if __name__ == "__main__":
    arrays = {"library": np.array(f"torch {torch.__version__}")}
    for size, grid in SIZES.items():
        features = [torch.from_numpy(x).permute(0, 3, 1, 2) for x in maps(grid, width=WIDTH)]
        arrays |= {f"{case}/{size}": thinned(channels_last(x)) for case, x in setr(features).items()}
    np.savez_compressed(GOLDENS, **arrays)
