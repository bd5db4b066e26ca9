"""Writes goldens/dense_heads.npz: the outputs of dense heads in PyTorch, for weights sampled by name.

A script for maintainers; the tests read what it writes. It needs torch and transformers:

    python tests/segmentation/dense_heads_torch.py

SETR's decoders follow the paper (arXiv 2012.15840, section 3.2 and figure 1) and mmsegmentation's configs; DPT and
UPerNet are transformers' own.
"""

import re

import numpy as np
import torch
import torch.nn.functional as F
import transformers
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


# transformers' names of layers as ours, in this order.
DPT_NAMES = [
    (r"^reassemble_stage\.readout_projects\.(\d)\.0", r"neck/readout_\1"),
    (r"^reassemble_stage\.layers\.(\d)\.projection", r"neck/projection_\1"),
    (r"^reassemble_stage\.layers\.(\d)\.resize", r"neck/resize_\1"),
    (r"^convs\.(\d)", r"neck/conv_\1"),
    (r"^fusion_stage\.layers\.(\d)\.", r"neck/fusion_\1/"),
    (r"residual_layer(\d)\.", r"residual_\1/"),
    (r"convolution1", "conv_0"),
    (r"convolution2", "conv_1"),
    (r"batch_norm1", "norm_0"),
    (r"batch_norm2", "norm_1"),
]
CLASS_NAMES = [("^head.0", "{}/conv/conv"), ("^head.1", "{}/conv/norm"), ("^head.4", "{}/classifier/linear")]
DEPTH_NAMES = [
    ("^projection", "head/projection"),
    (r"^(head\.0|conv1)", "head/conv_0"),
    (r"^(head\.2|conv2)", "head/conv_1"),
    (r"^(head\.4|conv3)", "head/linear"),
]
UPERNET_NAMES = [
    (r"psp_modules\.(\d)\.1", lambda match: f"head/pool_{(1, 2, 3, 6)[int(match[1])]}"),
    (r"^bottleneck", "head/pool_bottleneck"),
    (r"lateral_convs\.(\d)", r"head/lateral_\1"),
    (r"fpn_convs\.(\d)", r"head/smooth_\1"),
    (r"^fpn_bottleneck", "head/fusion"),
    (r"^convs\.(\d)", r"auxiliary_0/conv_\1"),
    ("batch_norm", "norm"),
]
LEAVES = {"bias": "bias", "running_mean": "moving_mean", "running_var": "moving_variance"}


def sampled_as_ours(module, names):
    """Gives a module of transformers the values sampled for our names and shapes; returns it for inference."""
    for name, tensor in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        owner, leaf = name.rsplit(".", 1)
        is_scale = leaf == "weight" and tensor.ndim == 1
        for pattern, ours in names:
            owner = re.sub(pattern, ours, owner)
        owner, shape = owner.replace(".", "/"), list(tensor.shape)
        path = f"{owner}/{LEAVES.get(leaf, leaf if leaf in LEAVES else 'gamma' if is_scale else 'kernel')}"
        if "norm" in owner.rsplit("/", 1)[-1] and leaf == "bias":
            path = f"{owner}/beta"
        is_linear = tensor.ndim == 2 or path.endswith("/linear/kernel")
        order = (1, 0) if is_linear else (0, 2, 3, 1) if re.search(r"resize_(0|1)/kernel", path) else (2, 3, 1, 0)
        if leaf != "weight" or is_scale:
            values = torch.from_numpy(sample(path, shape))
        else:
            shape = shape[:2] if is_linear else shape
            values = torch.from_numpy(sample(path, [shape[axis] for axis in order])).permute(*np.argsort(order))
        tensor.copy_(values.reshape(tensor.shape))
    return module.eval()


def tokens_of(features):
    """Maps (b, d, h, w) as tokens (b, 1 + n, d) behind class tokens."""
    tokens = [torch.from_numpy(sample(f"token_{i}", (1, WIDTH))) for i in range(len(features))]
    return [torch.cat([token[:, None], x.flatten(2).permute(0, 2, 1)], 1) for token, x in zip(tokens, features)]


def dpt(features):
    """{case: logits or depth} of DPT's neck and heads, and of Depth Anything's."""
    from transformers.models.depth_anything import modeling_depth_anything as anything
    from transformers.models.dpt import modeling_dpt as original

    h, w = features[0].shape[2:]
    sizes = {"neck_hidden_sizes": [4, 6, 8, 10], "fusion_hidden_size": 6, "hidden_size": WIDTH, "num_labels": CLASSES}
    found = {}
    for readout, with_norm in (("project", True), ("add", False), ("ignore", False)):
        config = transformers.DPTConfig(
            readout_type=readout, use_batch_norm_in_fusion_residual=with_norm, add_projection=False, **sizes
        )
        neck = sampled_as_ours(original.DPTNeck(config), DPT_NAMES)
        fused = neck(tokens_of(features), h, w)
        named = [(pattern, name.format("head")) for pattern, name in CLASS_NAMES]
        found[f"dpt_{readout}"] = sampled_as_ours(original.DPTSemanticSegmentationHead(config), named)(fused)
        if readout == "project":
            named = [(pattern, name.format("auxiliary_0")) for pattern, name in CLASS_NAMES]
            named[0], named[1] = (("^head.0", "auxiliary_0/conv_0/conv"), ("^head.1", "auxiliary_0/conv_0/norm"))
            found["dpt_project/auxiliary"] = sampled_as_ours(original.DPTAuxiliaryHead(config), named)(fused[-1])
        else:
            head = sampled_as_ours(original.DPTDepthEstimationHead(config), DEPTH_NAMES)
            found[f"dpt_{readout}/depth"] = head(fused)[:, None]
    for kind in ("relative", "metric"):
        config = transformers.DepthAnythingConfig(
            reassemble_hidden_size=WIDTH,
            patch_size=14,
            depth_estimation_type=kind,
            max_depth=3,
            head_hidden_size=4,
            **sizes,
        )
        fused = sampled_as_ours(anything.DepthAnythingNeck(config), DPT_NAMES)(tokens_of(features), h, w)
        head = sampled_as_ours(anything.DepthAnythingDepthEstimationHead(config), DEPTH_NAMES)
        found[f"depth_anything/{kind}"] = head(fused, h, w)[:, None]
    return found


def upernet(grid):
    """{case: logits} of transformers' UPerNet and its auxiliary head, on maps of several sizes."""
    from transformers.models.upernet import modeling_upernet as original

    features = [torch.from_numpy(x).permute(0, 3, 1, 2) for x in maps(grid, scales=(4, 2, 1, 0.67))]
    config = transformers.UperNetConfig(
        hidden_size=6, num_labels=CLASSES, auxiliary_channels=5, auxiliary_num_convs=1, auxiliary_in_channels=WIDTH
    )
    head_names = [*UPERNET_NAMES, ("^classifier", "head/classifier/linear")]
    other_names = [*UPERNET_NAMES, ("^classifier", "auxiliary_0/classifier/linear")]
    head = sampled_as_ours(original.UperNetHead(config, [WIDTH] * 4), head_names)
    other = sampled_as_ours(original.UperNetFCNHead(config, [WIDTH] * 4), other_names)
    return {"upernet": head(features), "upernet/auxiliary": other(features)}


def channels_last(x):
    return x.detach().permute(0, 2, 3, 1).numpy()


if __name__ == "__main__":
    arrays = {"library": np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")}
    for size, grid in SIZES.items():
        features = [torch.from_numpy(x).permute(0, 3, 1, 2) for x in maps(grid, width=WIDTH)]
        with torch.no_grad():
            found = setr(features) | dpt(features) | upernet(grid)
        arrays |= {f"{case}/{size}": thinned(channels_last(x)) for case, x in found.items()}
    np.savez_compressed(GOLDENS, **arrays)
