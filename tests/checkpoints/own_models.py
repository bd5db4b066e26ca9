"""ViTs as people write them in torch, each with names and conventions of its own: for originals.py, which writes their
goldens.

encoder      nn.TransformerEncoder, class token, learned positions
tutorial     nn.MultiheadAttention, blocks in parts, no class token, a normalisation after the mean
sequential   conv patches and the head in a Sequential, fused queries, keys and values head by head, tokens and tables
without a batch axis unfolded     patches by nn.Unfold and a dense layer, queries, keys and values apart and without
biases, positions for the patches only
"""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, image_size, classes, patch, width, depth, heads, mlp_dim):
        super().__init__()
        tokens = (image_size[0] // patch) * (image_size[1] // patch)
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, mlp_dim, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)  # (b, n, d)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.out(self.encoder(x)[:, 0])


class TutorialBlock(nn.Module):
    def __init__(self, width, heads, mlp_dim):
        super().__init__()
        self.attend = nn.ModuleDict(
            {"norm": nn.LayerNorm(width), "mha": nn.MultiheadAttention(width, heads, batch_first=True)}
        )
        self.think = nn.ModuleDict({"norm": nn.LayerNorm(width)})
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(mlp_dim, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        y = self.attend["norm"](x)
        x = x + self.attend["mha"](y, y, y, need_weights=False)[0]
        return x + self.mlp(self.think["norm"](x))


class Tutorial(nn.Module):
    def __init__(self, image_size, classes, patch, width, depth, heads, mlp_dim):
        super().__init__()
        tokens = (image_size[0] // patch) * (image_size[1] // patch)
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Embedding(tokens, width)
        self.stack = nn.ModuleList(TutorialBlock(width, heads, mlp_dim) for _ in range(depth))
        self.mlp_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2) + self.position.weight
        for block in self.stack:
            x = block(x)
        return self.mlp_head(x.mean(1))


class SequentialBlock(nn.Module):
    def __init__(self, width, heads, mlp_dim):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, mlp_dim), nn.GELU(approximate="tanh"), nn.Linear(mlp_dim, width))

    def forward(self, x):
        b, n, d = x.shape
        split = self.qkv(self.ln_1(x)).reshape(b, n, self.heads, 3, d // self.heads)  # head by head: (b, n, k, 3, c)
        q, k, v = split.permute(3, 0, 2, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.merge(y)
        return x + self.net(self.ln_2(x))


class Sequential(nn.Module):
    def __init__(self, image_size, classes, patch, width, depth, heads, mlp_dim):
        super().__init__()
        tokens = (image_size[0] // patch) * (image_size[1] // patch)
        self.patcher = nn.Sequential(nn.Conv2d(3, width, patch, patch, bias=False), nn.Flatten(2))
        self.class_token = nn.Parameter(torch.zeros(width))
        self.pos_embedding = nn.Parameter(torch.zeros(1 + tokens, width))
        self.layers = nn.Sequential(*(SequentialBlock(width, heads, mlp_dim) for _ in range(depth)))
        self.classifier = nn.Sequential(nn.LayerNorm(width, eps=1e-6), nn.Dropout(0.1), nn.Linear(width, classes))

    def forward(self, images):
        x = self.patcher(images).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.pos_embedding
        return self.classifier(self.layers(x)[:, 0])


class UnfoldedBlock(nn.Module):
    def __init__(self, width, heads, mlp_dim):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in ("query", "key", "value")})
        self.attn["out"] = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, mlp_dim), nn.Linear(mlp_dim, width)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm1(x)
        q, k, v = (
            self.attn[name](y).reshape(b, n, self.heads, -1).transpose(1, 2) for name in ("query", "key", "value")
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.attn["out"](y)
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Unfolded(nn.Module):
    def __init__(self, image_size, classes, patch, width, depth, heads, mlp_dim):
        super().__init__()
        tokens = (image_size[0] // patch) * (image_size[1] // patch)
        self.unfold = nn.Unfold(patch, stride=patch)
        self.to_tokens = nn.Linear(3 * patch * patch, width)
        self.cls_token = nn.Parameter(torch.zeros(1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(UnfoldedBlock(width, heads, mlp_dim) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.to_tokens(self.unfold(images).transpose(1, 2)) + self.pos_embed
        x = torch.cat([self.cls_token.expand(len(x), 1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


# {case: (class, rules, what else is told)}
CASES = {
    "own_encoder": (Encoder, [(r"^positions$", "pos_embed"), (r"^out\.", "head.")], {}),
    "own_tutorial": (
        Tutorial,
        [
            (r"^stack\.(\d+)\.", r"blocks.\1."),
            (r"attend\.norm", "norm1"),
            (r"think\.norm", "norm2"),
            (r"^position\.weight", "pos_embed"),
        ],
        {},
    ),
    "own_sequential": (
        Sequential,
        [(r"\.qkv\.", ".attn.qkv_per_head."), (r"\.merge\.", ".attn.proj.")],
        {"epsilon": 1e-6, "mlp_activation": "gelu_tanh"},
    ),
    "own_unfolded": (Unfolded, [(r"^to_tokens\.", "patch_embed.proj_chw.")], {}),
}
