"""State dicts as people's own code and tutorials write them, with that code's forward pass in NumPy."""

import re
import types

import numpy as np
import safetensors.numpy
import scipy.special

HEADS, WIDTH, EPSILON = 4, 16, 1e-5
MEAN, STD = (120.0, 110.0, 100.0), (60.0, 61.0, 62.0)
PIXELS = np.random.default_rng(1).integers(0, 256, (3, 8, 12, 3), dtype="uint8")
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "quick_gelu": lambda x: x * scipy.special.expit(1.702 * x),
    "tanh": np.tanh,
}


def dense(*shape, rng):
    return rng.normal(size=shape).astype("float32") / np.sqrt(shape[-1])


def arrays(depth=2, classes=5, hidden=None, patches=(3, 4, 4), seed=0):
    """A ViT's arrays under timm's names, with a head of one dense layer, or two with `hidden` units between."""
    rng, result = np.random.default_rng(seed), {}

    def linear(name, out, inputs):
        result[f"{name}.weight"], result[f"{name}.bias"] = dense(out, inputs, rng=rng), dense(out, rng=rng)

    def norm(name):
        result[f"{name}.weight"], result[f"{name}.bias"] = 1 + dense(WIDTH, rng=rng), dense(WIDTH, rng=rng)

    result["patch_embed.proj.weight"] = dense(WIDTH, *patches, rng=rng)
    result["patch_embed.proj.bias"] = dense(WIDTH, rng=rng)
    result["cls_token"], result["pos_embed"] = dense(1, 1, WIDTH, rng=rng), dense(1, 7, WIDTH, rng=rng)
    for i in range(depth):
        norm(f"blocks.{i}.norm1"), norm(f"blocks.{i}.norm2")
        linear(f"blocks.{i}.attn.qkv", 3 * WIDTH, WIDTH), linear(f"blocks.{i}.attn.proj", WIDTH, WIDTH)
        linear(f"blocks.{i}.mlp.fc1", 24, WIDTH), linear(f"blocks.{i}.mlp.fc2", WIDTH, 24)
    norm("norm")
    if hidden:
        linear("pre_logits", hidden, WIDTH)
    linear("head", classes, hidden or WIDTH)
    return result


def logits(a, first=True, activation="gelu", hidden="tanh", epsilon=EPSILON, pool="token"):
    """The logits of PIXELS; norms, attention's output and the hidden layer count where they are in `a`.

    With pool="mean", or no class token, the last normalisation follows the mean.
    """

    def linear(x, name):
        return x @ a[f"{name}.weight"].T + a.get(f"{name}.bias", 0)

    def norm(x, name):
        if f"{name}.weight" not in a:
            return x
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
        return x * a[f"{name}.weight"] + a[f"{name}.bias"]

    def attention(x, name):
        b, n, _ = x.shape
        q, k, v = linear(x, f"{name}.qkv").reshape(b, n, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
        weights = scipy.special.softmax(q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -1)
        x = (weights @ v).swapaxes(1, 2).reshape(b, n, -1)
        return linear(x, f"{name}.proj") if f"{name}.proj.weight" in a else x

    def mlp(x, name):
        return linear(ACTIVATIONS[activation](linear(x, f"{name}.fc1")), f"{name}.fc2")

    def residual(x, branch, name, norm_name):
        return x + branch(norm(x, norm_name), name) if first else norm(x + branch(x, name), norm_name)

    x = ((PIXELS - np.array(MEAN)) / STD).reshape(3, 2, 4, 3, 4, 3).transpose(0, 1, 3, 5, 2, 4).reshape(3, 6, -1)
    x = x @ a["patch_embed.proj.weight"].reshape(WIDTH, -1).T + a.get("patch_embed.proj.bias", 0)
    tokens = [np.broadcast_to(a["cls_token"], (3, 1, WIDTH))] if "cls_token" in a else []
    x = np.concatenate([*tokens, x], 1) + a["pos_embed"]
    for i in range(len([name for name in a if name.endswith("norm1.weight")])):
        x = residual(x, attention, f"blocks.{i}.attn", f"blocks.{i}.norm1")
        x = residual(x, mlp, f"blocks.{i}.mlp", f"blocks.{i}.norm2")
    x = norm(x[:, 0] if pool == "token" else x.mean(1), "norm")
    if "pre_logits.weight" in a:
        x = ACTIVATIONS[hidden](linear(x, "pre_logits"))
    return linear(x, "head")


def renamed(a, rules, without=None):
    """Arrays under other names, by rules (pattern, replacement); `without` is a pattern of those to leave out."""
    result = {}
    for name, array in a.items():
        if without is None or not re.search(without, name):
            for pattern, new in rules:
                name = re.sub(pattern, new, name)
            result[name] = array
    return result


def apart(a):
    """With queries, keys and values apart: blocks.0.attn.q..."""
    result = {}
    for name, array in a.items():
        if ".qkv." in name:
            for letter, part in zip("qkv", np.split(array, 3)):
                result[name.replace("qkv", letter)] = part
        else:
            result[name] = array
    return result


def by_head(a, new):
    """With one layer of queries, keys and values per head: new(block's prefix, letter, head, weight or bias)."""
    result = {}
    for name, array in apart(a).items():
        match = re.fullmatch(r"(blocks\.\d+)\.attn\.([qkv])\.(weight|bias)", name)
        for h, part in enumerate(np.split(array, HEADS)) if match else ():
            result[new(match[1], match[2], h, match[3])] = part
        if not match:
            result[name] = array
    return result


WORDS = {"q": "query", "k": "key", "v": "value"}
TORCH = [
    (r"^blocks\.(\d+)\.attn\.qkv\.(weight|bias)", r"transformer.layers.\1.self_attn.in_proj_\2"),
    (r"^blocks\.(\d+)\.attn\.proj", r"transformer.layers.\1.self_attn.out_proj"),
    (r"^blocks\.(\d+)\.mlp\.fc", r"transformer.layers.\1.linear"),
    (r"^blocks\.(\d+)\.norm", r"transformer.layers.\1.norm"),
    (r"^patch_embed\.proj", "patches.conv"),
    (r"^pos_embed$", "embedding.pos"),
    (r"^norm\.", "transformer.norm."),
    (r"^head\.", "classifier.1."),
    (r"^pre_logits\.", "classifier.0."),
]
TORCHVISION = [
    *[(pattern, new.replace("transformer.layers.", "encoder.layers.encoder_layer_")) for pattern, new in TORCH[:4]],
    (r"self_attn", "self_attention"),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.linear1", ".mlp.0"),
    (r"\.linear2", ".mlp.3"),
    (r"^patch_embed\.proj", "conv_proj"),
    (r"^cls_token", "class_token"),
    (r"^pos_embed", "encoder.pos_embedding"),
    (r"^norm\.", "encoder.ln."),
    (r"^(head|pre_logits)\.", r"heads.\1."),
]
LUCID = [
    (r"^blocks\.(\d+)\.norm1", r"transformer.layers.\1.0.norm"),
    (r"^blocks\.(\d+)\.norm2", r"transformer.layers.\1.1.norm"),
    (r"^blocks\.(\d+)\.attn\.qkv", r"transformer.layers.\1.0.fn.to_qkv"),
    (r"^blocks\.(\d+)\.attn\.proj", r"transformer.layers.\1.0.fn.to_out.0"),
    (r"^blocks\.(\d+)\.mlp\.fc1", r"transformer.layers.\1.1.fn.net.0"),
    (r"^blocks\.(\d+)\.mlp\.fc2", r"transformer.layers.\1.1.fn.net.3"),
    (r"^patch_embed\.proj", "to_patch_embedding.1"),
    (r"^pos_embed", "pos_embedding"),
    (r"^norm\.", "mlp_head.0."),
    (r"^head\.", "mlp_head.1."),
]
SEQUENTIAL = [
    (r"^patch_embed\.proj", "0.projection.0"),
    (r"^cls_token", "0.cls_token"),
    (r"^pos_embed", "0.positions"),
    (r"^blocks\.(\d+)\.norm1", r"1.\1.0.fn.0"),
    (r"^blocks\.(\d+)\.attn\.proj", r"1.\1.0.fn.1.projection"),
    (r"^blocks\.(\d+)\.attn\.", r"1.\1.0.fn.1."),
    (r"^blocks\.(\d+)\.norm2", r"1.\1.1.fn.0"),
    (r"^blocks\.(\d+)\.mlp\.fc1", r"1.\1.1.fn.1.0"),
    (r"^blocks\.(\d+)\.mlp\.fc2", r"1.\1.1.fn.1.3"),
    (r"^norm\.", "2.1."),
    (r"^head\.", "2.2."),
]
IN_BLOCKS = [
    (r"^patch_embed\.proj", "patch_embedding.patcher"),
    (r"^cls_token", "class_embedding"),
    (r"^pos_embed", "position_embedding"),
    (r"^blocks\.(\d+)\.norm1", r"transformer_encoder.\1.msa_block.layer_norm"),
    (r"^blocks\.(\d+)\.attn\.qkv\.", r"transformer_encoder.\1.msa_block.multihead_attn.in_proj_"),
    (r"^blocks\.(\d+)\.attn\.proj", r"transformer_encoder.\1.msa_block.multihead_attn.out_proj"),
    (r"^blocks\.(\d+)\.norm2", r"transformer_encoder.\1.mlp_block.layer_norm"),
    (r"^blocks\.(\d+)\.mlp\.fc1", r"transformer_encoder.\1.mlp_block.mlp.0"),
    (r"^blocks\.(\d+)\.mlp\.fc2", r"transformer_encoder.\1.mlp_block.mlp.3"),
    (r"^norm\.", "classifier.0."),
    (r"^head\.", "classifier.1."),
]
BY_BRANCH = [
    (r"^patch_embed", "transformer.embeddings.patch_embeddings"),
    (r"^pos_embed", "transformer.embeddings.position_embeddings"),
    (r"^cls_token", "transformer.embeddings.cls_token"),
    (r"^blocks\.(\d+)\.norm1", r"transformer.encoder.layer.\1.attention_norm"),
    (r"^blocks\.(\d+)\.norm2", r"transformer.encoder.layer.\1.ffn_norm"),
    (r"^blocks\.(\d+)\.mlp", r"transformer.encoder.layer.\1.ffn"),
    (r"^blocks\.(\d+)\.attn\.proj", r"transformer.encoder.layer.\1.attn.out"),
    (r"^blocks", "transformer.encoder.layer"),
    (r"^norm", "transformer.encoder.encoder_norm"),
]
STACKED = [
    (r"^patch_embed\.proj", "patch_emb.conv"),
    (r"^pos_embed", "pos_emb.positional_encodings"),
    (r"^cls_token", "cls_token_emb"),
    (r"^blocks\.(\d+)\.norm1", r"stages.\1.norm_self_attn"),
    (r"^blocks\.(\d+)\.norm2", r"stages.\1.norm_ff"),
    (r"attn\.q\.", "self_attn.query.linear."),
    (r"attn\.k\.", "self_attn.key.linear."),
    (r"attn\.v\.", "self_attn.value.linear."),
    (r"^blocks\.(\d+)\.attn\.proj", r"stages.\1.proj"),
    (r"mlp\.fc", "feed_forward.layer"),
    (r"^blocks", "stages"),
    (r"^norm", "ln"),
    (r"^head", "classification.linear2"),
    (r"^pre_logits", "classification.linear1"),
]
POST_NORM_RELU = {"norm_first": False, "mlp_activation": "relu"}


def encoder(a):
    """nn.TransformerEncoder with torch's defaults: post-norm, ReLU, no normalisation at the end."""
    a = {name: array for name, array in a.items() if not name.startswith("norm.")}
    return renamed(a, TORCH), a


def tutorial(a):
    """A layer of queries, keys and values for each head, numbered dense layers, no normalisation at the end."""
    a = {name: array for name, array in a.items() if not name.startswith("norm.")}
    theirs = by_head(a, lambda block, letter, h, kind: f"{block}.attention.heads.{h}.{WORDS[letter]}.{kind}")
    rules = [
        (r"^blocks", "encoder.blocks"),
        (r"attn\.proj", "attention.output_projection"),
        (r"norm([12])", r"layernorm_\1"),
        (r"mlp\.fc", "mlp.dense_"),
        (r"^patch_embed\.proj", "embedding.patch_embeddings.projection"),
        (r"^cls_token", "embedding.cls_token"),
        (r"^pos_embed", "embedding.position_embeddings"),
        (r"^head", "classifier"),
    ]
    return renamed(theirs, rules), a


def slices(a):
    """Each head maps its slice of a token alone, without a dense layer after the attention; dense patches."""
    a = {name: array for name, array in a.items() if not re.search(r"^norm|attn\.proj", name)}
    own, c = a.copy(), WIDTH // HEADS
    for name in [name for name in a if name.endswith("qkv.weight")]:
        inside = np.kron(np.eye(HEADS), np.ones((c, c)))
        own[name] = (a[name].reshape(3, WIDTH, WIDTH) * inside).reshape(-1, WIDTH).astype("float32")
    theirs = by_head(own, lambda block, letter, h, kind: f"{block}.mhsa.{letter}_mappings.{h}.{kind}")
    for name, array in theirs.items():
        match = re.search(r"mappings\.(\d)\.weight", name)
        if match:
            theirs[name] = array[:, int(match[1]) * c : (int(match[1]) + 1) * c]
    rules = [
        (r"^patch_embed\.proj", "linear_mapper"),
        (r"^cls_token", "class_token"),
        (r"^pos_embed", "positional_embeddings"),
        (r"mlp\.fc1", "mlp.0"),
        (r"mlp\.fc2", "mlp.2"),
        (r"^head", "mlp.0"),
    ]
    theirs = renamed(theirs, rules)
    theirs["linear_mapper.weight"] = theirs["linear_mapper.weight"].reshape(WIDTH, -1)  # channel, row, column
    return theirs, own


def lucid(a):
    """vit-pytorch's names with wrappers, in which PreNorm and PostNorm look alike; no biases of q, k and v."""
    own = {name: array for name, array in a.items() if not name.endswith("qkv.bias")}
    theirs = renamed(own, LUCID)
    kernel = theirs["to_patch_embedding.1.weight"]
    theirs["to_patch_embedding.1.weight"] = kernel.transpose(0, 2, 3, 1).reshape(WIDTH, -1)
    return theirs, own


def sequential(a):
    """Models in an nn.Sequential, residuals in wrappers, queries, keys and values channel by channel."""
    theirs = {
        name: array.reshape(3, WIDTH, -1).swapaxes(0, 1).reshape(array.shape) if ".qkv." in name else array
        for name, array in a.items()
    }
    return renamed(theirs, SEQUENTIAL), a


def stacked(a):
    """Blocks that no word tells, positions for tokens before the batch."""
    theirs = renamed(apart(a), STACKED)
    positions = theirs.pop("pos_emb.positional_encodings")
    return {**theirs, "pos_emb.positional_encodings": positions.swapaxes(0, 1)}, a


def dense_general(a):
    """With an axis of heads, as in Flax: queries, keys and values (d, k, c), the attention's output (k, c, d)."""
    theirs = {}
    for name, array in apart(a).items():
        if re.search(r"attn\.[qkv]\.", name):
            array = array.T.reshape(*array.T.shape[:-1], HEADS, -1)
        elif name.endswith("attn.proj.weight"):
            array = array.T.reshape(HEADS, -1, WIDTH)
        theirs[name.replace("blocks", "encoder_layers")] = array
    return theirs, a


def unbiased(a):
    own = {name: array for name, array in a.items() if not re.search(r"(qkv|proj|fc\d|head)\.bias", name)}
    rules = [(r"^blocks", "transformer.h"), (r"attn\.qkv", "attn.c_attn"), (r"attn\.proj", "attn.c_proj")]
    rules += [(r"fc1", "c_fc"), (r"fc2", "c_proj"), (r"^pos_embed", "transformer.wpe.weight"), (r"^head", "lm_head")]
    return renamed(own, [*rules, (r"^norm\.", "transformer.ln_f.")]), own


def annotated(a):
    numbers = {"q": 0, "k": 1, "v": 2, "proj": 3}
    rules = [(rf"attn\.{part}\.", f"self_attn.linears.{i}.") for part, i in numbers.items()]
    rules += [(r"norm1", "sublayer.0.norm"), (r"norm2", "sublayer.1.norm"), (r"mlp\.fc", "feed_forward.w_")]
    return renamed(apart(a), [*rules, (r"^blocks", "encoder.layers")]), a


def simple(a):
    """vit-pytorch's SimpleViT: no tokens, positions of sines and cosines, few biases, the mean of the patches."""
    own = {name: array for name, array in a.items() if not re.search(r"attn.*bias|token|pos_embed", name)}
    rules = [
        (r"^blocks\.(\d+)\.norm1", r"transformer.layers.\1.0.norm"),
        (r"^blocks\.(\d+)\.attn\.qkv", r"transformer.layers.\1.0.to_qkv"),
        (r"^blocks\.(\d+)\.attn\.proj", r"transformer.layers.\1.0.to_out"),
        (r"^blocks\.(\d+)\.norm2", r"transformer.layers.\1.1.net.0"),
        (r"^blocks\.(\d+)\.mlp\.fc1", r"transformer.layers.\1.1.net.1"),
        (r"^blocks\.(\d+)\.mlp\.fc2", r"transformer.layers.\1.1.net.3"),
        (r"^patch_embed\.proj", "to_patch_embedding.1"),
        (r"^norm\.", "linear_head.0."),
        (r"^head\.", "linear_head.1."),
    ]
    theirs = renamed(own, rules)
    kernel = theirs["to_patch_embedding.1.weight"]
    theirs["to_patch_embedding.1.weight"] = kernel.transpose(0, 2, 3, 1).reshape(WIDTH, -1)
    y, x = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    waves = 1 / 10000 ** (np.arange(WIDTH // 4) / (WIDTH // 4 - 1))
    y, x = y[:, None] * waves, x[:, None] * waves
    return theirs, {**own, "pos_embed": np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1)[None]}


CASES = {
    "torch's encoder": (encoder, {}, POST_NORM_RELU),
    "torch's encoder, a hidden layer": (encoder, {"hidden": 8}, {**POST_NORM_RELU, "pre_logits_activation": "relu"}),
    "pre-norm with a last normalisation": (lambda a: (renamed(a, TORCH), a), {}, {"mlp_activation": "relu"}),
    "the last normalisation in the blocks' Sequential": (
        lambda a: (renamed(a, [*TORCH, (r"^transformer\.norm\.", "transformer.layers.2.")]), a),
        {},
        {},
    ),
    "torchvision": (lambda a: (renamed(a, TORCHVISION), a), {}, {"epsilon": 1e-6}),
    "torchvision, representation_size": (lambda a: (renamed(a, TORCHVISION), a), {"hidden": 8}, {"epsilon": 1e-6}),
    "a layer per head": (tutorial, {}, {}),
    "a layer per head's slice": (slices, {}, {"names": [(r"^linear_mapper\.", "patch_embed.proj_chw.")]}),
    "vit-pytorch with ReLU": (lucid, {}, {"mlp_activation": "relu"}),
    "vit-pytorch with PostNorm": (lucid, {}, POST_NORM_RELU),
    "vit-pytorch with the mean of all tokens": (lucid, {}, {"pool": "mean"}),
    "a Sequential, the mean of all tokens": (
        sequential,
        {},
        {"pool": "mean", "names": [(r"\.0\.fn\.1\.", ".0.attention."), ("qkv", "qkv_per_channel")]},
    ),
    "normalisations within attention and MLP": (lambda a: (renamed(a, IN_BLOCKS), a), {}, {}),
    "normalisations named after attention and MLP": (lambda a: (renamed(apart(a), BY_BRANCH), a), {}, {}),
    "an axis of heads": (dense_general, {}, {}),
    "GPT's names, without biases": (unbiased, {}, {}),
    "the Annotated Transformer's names": (annotated, {}, {}),
    "vit-pytorch's SimpleViT": (simple, {}, {"pool": "gap"}),
    "blocks of an unknown name": (
        stacked,
        {"hidden": 8},
        {"mlp_activation": "relu", "pre_logits_activation": "relu"},
    ),
    "timm's names, post-norm": (lambda a: (a, a), {}, {**POST_NORM_RELU, "names": []}),
}
TOLD = {"heads": HEADS, "mean": MEAN, "std": STD, "norm_first": True, "mlp_activation": "gelu", "epsilon": EPSILON}
TOLD |= {"pool": "token"}


def write(case, folder):
    """(path of the file, arguments of load, logits) of a case."""
    style, shape, told = CASES[case]
    theirs, own = style(arrays(**shape))
    path, arguments = folder / "model.safetensors", {**TOLD, "image_size": (8, 12), **told}
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in theirs.items()}, path)
    code = types.SimpleNamespace(**{"hidden": arguments.get("pre_logits_activation", "tanh"), **arguments})
    return path, arguments, logits(own, code.norm_first, code.mlp_activation, code.hidden, code.epsilon, code.pool)
