"""Writes goldens/dense/mmseg_*.json: what a PyTorch reference with mmsegmentation's names answers.

    python tests/checkpoints/originals_mmsegmentation.py        # with torch

mmsegmentation needs mmcv, which does not build for current releases of torch. The modules here follow the papers (SETR,
arXiv 2012.15840, section 3.2; UPerNet, arXiv 1807.10221, section 3) and carry the names of mmsegmentation's files.
"""

import json

import torch
import torch.nn.functional as F
from dense_files import EVERY, FOLDER, image, size_of, value
from torch import nn

WIDTH, CLASSES, PATCH = 16, 3, 8


def enlarged(x, factor):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


class Block(nn.Module):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs, width, size):
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, size, padding=size // 2, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class Layer(nn.Module):
    """A pre-norm Transformer block."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attn, self.ffn = Attention(), nn.Module()
        self.ffn.layers = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU()), nn.Linear(32, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn.layers(self.ln2(x))


class Backbone(nn.Module):
    """A ViT: maps (b, d, h, w) after blocks `taps`; `token` says whether it sees the class token."""

    def __init__(self, taps, token=True, final=False, mode="bilinear"):
        super().__init__()
        self.taps, self.token, self.mode = taps, token, mode
        self.patch_embed = nn.Module()
        self.patch_embed.projection = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + 16, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        if final:
            self.ln1 = nn.LayerNorm(WIDTH, 1e-6)

    def positions(self, h, w):
        table = self.pos_embed[:, 1:].reshape(1, 4, 4, WIDTH).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(h, w), mode=self.mode, align_corners=False)
        return torch.cat([self.pos_embed[:, :1], table.flatten(2).transpose(1, 2)], 1)

    def forward(self, x):
        x = self.patch_embed.projection(x)
        h, w = x.shape[2:]
        x = torch.cat([self.cls_token, x.flatten(2).transpose(1, 2)], 1) + self.positions(h, w)
        x = x if self.token else x[:, 1:]
        maps = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == len(self.layers) - 1 and hasattr(self, "ln1"):
                x = self.ln1(x)
            if i in self.taps:
                patches = x[:, 1:] if self.token else x
                maps.append(patches.transpose(1, 2).reshape(-1, WIDTH, h, w))
        return maps


class Upsampling(nn.Module):
    """SETR's naive head and PUP."""

    def __init__(self, place, convs, size, scale, width=6):
        super().__init__()
        self.place, self.scale = place, scale
        self.norm = nn.LayerNorm(WIDTH, 1e-6)
        self.up_convs = nn.ModuleList(nn.Sequential(Block(width if i else WIDTH, width, size)) for i in range(convs))
        self.conv_seg = nn.Conv2d(width, CLASSES, 1)

    def forward(self, maps):
        x = self.norm(maps[self.place].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for block in self.up_convs:
            x = enlarged(block(x), self.scale)
        return self.conv_seg(x)


class MLANeck(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH, 1e-6) for _ in range(4))
        self.mla = nn.Module()
        self.mla.channel_proj = nn.ModuleList(Block(WIDTH, width, 1) for _ in range(4))
        self.mla.feat_extract = nn.ModuleList(Block(width, width, 3) for _ in range(4))

    def forward(self, maps):
        normed = [norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) for norm, x in zip(self.norm, maps)]
        projected = [project(x) for project, x in zip(self.mla.channel_proj, normed)]
        total, sums = 0, []
        for x in projected[::-1]:
            total = total + x
            sums.append(total)
        return [extract(x) for extract, x in zip(self.mla.feat_extract, sums)]


class MLAHead(nn.Module):
    def __init__(self, inputs=6, width=4):
        super().__init__()
        self.up_convs = nn.ModuleList(nn.Sequential(Block(inputs, width, 3), Block(width, width, 3)) for _ in range(4))
        self.conv_seg = nn.Conv2d(4 * width, CLASSES, 1)

    def forward(self, maps):
        return self.conv_seg(torch.cat([enlarged(branch(x), 4) for branch, x in zip(self.up_convs, maps)], 1))


class FCNHead(nn.Module):
    def __init__(self, place, inputs, width=None):
        super().__init__()
        self.place = place
        self.convs = nn.Sequential(*([Block(inputs, width, 3)] if width else []))
        self.conv_seg = nn.Conv2d(width or inputs, CLASSES, 1)

    def forward(self, maps):
        return self.conv_seg(self.convs(maps[self.place]))


class Plain(nn.Module):
    """A convolution with bias alone, under the name that it has in a Block."""

    def __init__(self, inputs, width, size):
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, size, padding=size // 2)

    def forward(self, x):
        return self.conv(x)


class MultiLevelNeck(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.lateral_convs = nn.ModuleList(Plain(WIDTH, width, 1) for _ in range(4))
        self.convs = nn.ModuleList(Plain(width, width, 3) for _ in range(4))

    def forward(self, maps):
        levels = zip(self.lateral_convs, self.convs, maps, (4, 2, 1, 0.5))
        return [conv(enlarged(lateral(x), scale)) for lateral, conv, x, scale in levels]


class Feature2Pyramid(nn.Module):
    def __init__(self):
        super().__init__()

        def up():
            return nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2)

        self.upsample_4x = nn.Sequential(up(), nn.BatchNorm2d(WIDTH), nn.GELU(), up())
        self.upsample_2x = nn.Sequential(up())

    def forward(self, maps):
        return [self.upsample_4x(maps[0]), self.upsample_2x(maps[1]), maps[2], F.max_pool2d(maps[3], 2, 2)]


class UPerHead(nn.Module):
    """Pyramid pooling on the smallest map, and a feature pyramid."""

    def __init__(self, inputs, width=6, bins=(1, 2, 3, 6)):
        super().__init__()
        pools = ([nn.AdaptiveAvgPool2d(n), Block(inputs, width, 1)] for n in bins)
        self.psp_modules = nn.ModuleList(nn.Sequential(*pool) for pool in pools)
        self.bottleneck = Block(inputs + len(bins) * width, width, 3)
        self.lateral_convs = nn.ModuleList(Block(inputs, width, 1) for _ in range(3))
        self.fpn_convs = nn.ModuleList(Block(width, width, 3) for _ in range(3))
        self.fpn_bottleneck = Block(4 * width, width, 3)
        self.conv_seg = nn.Conv2d(width, CLASSES, 1)

    def forward(self, maps):
        def resized(x, y):
            return F.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=False)

        pooled = [resized(pool(maps[3]), maps[3]) for pool in self.psp_modules]
        levels = [lateral(x) for lateral, x in zip(self.lateral_convs, maps)]
        levels.append(self.bottleneck(torch.cat([maps[3], *pooled], 1)))
        for i in (3, 2, 1):
            levels[i - 1] = levels[i - 1] + resized(levels[i], levels[i - 1])
        smooth = [conv(x) for conv, x in zip(self.fpn_convs, levels)]
        same = [resized(x, levels[0]) for x in (*smooth, levels[3])]
        return self.conv_seg(self.fpn_bottleneck(torch.cat(same, 1)))


class Model(nn.Module):
    """Backbone, neck, heads: image (b, 3, h, w) -> [logits (b, k, h, w), all auxiliary ones at a quarter of that]."""

    def __init__(self, backbone, head, neck=None, auxiliary=None):
        super().__init__()
        self.backbone, self.decode_head = backbone, head
        if neck is not None:
            self.neck = neck
        if auxiliary is not None:
            self.auxiliary_head = nn.ModuleList(auxiliary) if isinstance(auxiliary, list) else auxiliary

    def forward(self, x):
        maps = self.backbone(x)
        maps = self.neck(maps) if hasattr(self, "neck") else maps
        others = getattr(self, "auxiliary_head", [])
        others = others if isinstance(others, (list, nn.ModuleList)) else [others]
        h, w = x.shape[2:]
        found = [F.interpolate(other(maps), size=(h // 4, w // 4), mode="bilinear") for other in others]
        logits = F.interpolate(self.decode_head(maps), size=(h, w), mode="bilinear")
        return [logits, *([torch.cat(found, 1)] if found else [])]


_TAPS, _SETR = (0, 1, 3, 4), (1, 2, 3, 4)
CASES = {  # {name: (model, backbone's settings that no array shows, sizes)}
    "mmseg_naive": (
        lambda: Model(Backbone(_SETR), Upsampling(3, 1, 1, 4), None, [Upsampling(i, 2, 1, 4) for i in range(3)]),
        {"out_indices": _SETR, "interpolate_mode": "bilinear"},
        ("32x32", "24x40"),
    ),
    "mmseg_pup": (
        lambda: Model(Backbone(_SETR), Upsampling(3, 4, 3, 2), None, [Upsampling(i, 1, 3, 4) for i in range(3)]),
        {"out_indices": _SETR, "interpolate_mode": "bilinear"},
        ("32x32", "24x40"),
    ),
    "mmseg_mla": (
        lambda: Model(Backbone(_TAPS, token=False), MLAHead(), MLANeck(), [FCNHead(i, 6) for i in range(4)]),
        {"out_indices": _TAPS, "interpolate_mode": "bilinear", "with_cls_token": False},
        ("32x32", "24x40"),
    ),
    "mmseg_upernet": (
        lambda: Model(Backbone(_TAPS, final=True, mode="bicubic"), UPerHead(10), MultiLevelNeck(), FCNHead(3, 10, 5)),
        {"out_indices": _TAPS, "interpolate_mode": "bicubic", "final_norm": True},
        ("32x32", "24x40"),
    ),
    "mmseg_transposed": (
        lambda: Model(Backbone(_TAPS, mode="bicubic"), UPerHead(WIDTH), Feature2Pyramid()),
        {"out_indices": _TAPS, "interpolate_mode": "bicubic"},
        ("32x32", "24x40"),
    ),
}


def _golden(model, backbone, sizes):
    model.eval()
    outputs = {}
    with torch.no_grad():
        floats = {key: tensor for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
        for key, tensor in floats.items():
            tensor.copy_(torch.tensor(value(key, tensor.shape)))
        for size in sizes:
            h, w = size_of(size)
            x = torch.tensor((image(h, w) / 255 - 0.5) / 0.5, dtype=torch.float32).permute(0, 3, 1, 2)
            outputs[size] = []
            for answer in model(x):
                print(size, f"from {answer.min():.3f} to {answer.max():.3f}")
                some = answer[0].permute(1, 2, 0)[::EVERY, ::EVERY]
                outputs[size].append(some.numpy().astype(float).round(6).tolist())
    shapes = {key: list(tensor.shape) for key, tensor in sorted(floats.items())}
    common = {
        "type": "VisionTransformer",
        "img_size": [32, 32],
        "num_heads": 2,
        "norm_cfg": {"type": "LN", "eps": 1e-6},
    }
    library = f"torch {torch.__version__.split('+')[0]}"
    return {"library": library, "backbone": {**common, **backbone}, "shapes": shapes, "outputs": outputs}


def main():
    for name, (build, backbone, sizes) in CASES.items():
        lines = [f'"{key}": {json.dumps(field)}' for key, field in _golden(build(), backbone, sizes).items()]
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
