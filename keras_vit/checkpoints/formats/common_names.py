"""Common names of a custom ViT's arrays, and timm's names for them."""

import collections
import itertools
import re
from collections.abc import Mapping

from keras_vit.checkpoints.formats.name_map import LONGEST_NAME

_DEEPEST = 4  # numbered modules within another that may be the blocks
_PARAMETER = re.compile(r"(.*)\.(weight|bias)$")
_BLOCK = re.compile(
    r"(?:.*?\.)?(?:blocks|layers?|encoder|transformer|encoder_layers|transformer_encoder|transformer_blocks|resblocks)"
    r"\.(?:[a-z_]+_)?(\d+)\.(.+)"
)
_ATTENTION = r"(?:.*\.)?(?:\w*att\w*|msa|mha|mhsa)"
_OUT = r"o|out|o_proj|to_out|to_out\.0|out_linear|output_projection|output|output\.dense|c_proj|fc_out|[wW]_?o"
_MLP = r"(?:.*\.)?(?:mlp|ffn?|feed_?forward|pff|net)"
# Normalisations before, or after, a block's two branches, that are named after the branch.
_NORMS = tuple(
    (pattern, new)
    for branch, new in ((r"\w*(?:att|msa|mha|mhsa)\w*", "norm1"), (r"\w*(?:mlp|ff|feed_?forward)\w*", "norm2"))
    for pattern in (
        rf"(?:.*\.)?{branch}[._](?:pre_?)?(?:layer_?)?(?:norm|ln)",
        rf"(?:.*\.)?(?:pre_?)?(?:layer_?)?(?:norm|ln)_(?:before_|pre_)?{branch}",
    )
)
# Names within a block, without ".weight" and ".bias", and timm's.
_IN_BLOCK = (
    (r"(?:.*\.)?(?:layer_?)?(?:ln|norm|la)_?([12])", r"norm\1"),
    (r"(?:.*\.)?(?:proj|projection|out_proj(?:ection)?)", "attn.proj"),
    (rf"{_ATTENTION}\.(?:{_OUT})", "attn.proj"),
    *((rf"{_ATTENTION}\.linears\.{i}", f"attn.{part}") for i, part in enumerate(("q", "k", "v", "proj"))),
    *((rf"(?:.*\.)?sublayers?\.{i}\.(?:layer_?)?norm", f"norm{i + 1}") for i in (0, 1)),
    (r"(?:.*\.)?(?:to_|c_)?(?:qkv|attn)(?:_proj)?", "attn.qkv"),
    (r"(?:.*\.)?(?:to_)?(qkv_per_(?:head|channel))", r"attn.\1"),
    (r"(?:.*\.)?heads?\.(\d+)\.(?:to_|w_?)?([qkv])(?:uer(?:y|ies)|eys?|alues?)?(?:_proj)?", r"attn.\2.\1"),
    (r"(?:.*\.)?([qkv])(?:uer(?:y|ies)|eys?|alues?)?_(?:mappings?|layers|linears|projs?|heads)\.(\d+)", r"attn.\1.\2"),
    (r"(?:.*\.)?(?:to_|[wW]_?|proj_)?([qkv])(?:_proj|_linear|_lin)?", r"attn.\1"),
    (r"(?:.*\.)?(?:(q)uer(?:y|ies)|(k)eys?|(v)alues?)(?:_proj|[._]layer|[._]linear|_projection)?", r"attn.\1\2\3"),
    (r"(?:.*\.)?(?:linear_?|fc_?|dense_?|lin_?|layer_?|[wW]_?)([12])", r"mlp.fc\1"),
    (rf"{_MLP}\.(?:c_fc|fc_in|up_proj|wi|w1|intermediate)|intermediate\.dense", "mlp.fc1"),
    (rf"{_MLP}\.(?:c_proj|fc_out|down_proj|wo|w2|output)|output\.dense", "mlp.fc2"),
)
# Names outside the blocks: of arrays without ".weight", normalisations and heads.
_TOKEN = re.compile(r"(?:.*\.)?(?:cls|cls_tokens?|class_tokens?|(?:cls|class)(?:_token)?_emb(?:ed|edding)?)")
_TABLE = re.compile(
    r"(?:.*\.)?(?:pe|wpe|pos|position|positions|positional)(?:_?(?:emb|embed|embedding|embeddings|embeds|encoding|encodings))?"
    r"(?:\.weight)?"
)
_NORM = re.compile(
    r"(?:.*\.)?(?:norm|ln|layer_?norm|(?:final|last|encoder|post)_(?:layer_?)?norm|(?:norm|ln)_(?:f|final|post))"
)
_HEAD = re.compile(r"(?:.*\.)?(?:\w*head|heads|classifier|fc|out|output|classification|mlp)")
# Names within a head of two dense layers.
_IN_HEAD = (
    (r"(.+)\.(?:(?:linear_?|fc_?|dense_?)1|dense)", "pre_logits"),
    (r"(.+)\.(?:(?:linear_?|fc_?|dense_?)2|out_proj)", "head"),
)
# Target names: timm's, and arrays in another order or by attention head, which own_names.py converts.
VOCABULARY = re.compile(
    r"cls_token|reg_token|dist_token|pos_embed"
    r"|patch_embed\.(?:proj|proj_chw|proj_hwc|pixel_norm|embedding_norm)\.(?:weight|bias)"
    r"|blocks\.\d+\.(?:norm1|norm2|attn\.(?:[qkv]{1,3}|[qkv]{3}_per_(?:head|channel)|[qkv]\.\d+|q_norm|k_norm|proj)|mlp\.fc[12])"
    r"\.(?:weight|bias)"
    r"|blocks\.\d+\.ls[12]\.gamma"
    r"|(?:norm|fc_norm|pre_logits|head|head_dist)\.(?:weight|bias)"
)


def _known_in_block(tail, rank):
    """timm's name, after "blocks.0.", of an array in a block; an unknown name stays."""
    in_proj = re.fullmatch(r"(?:.*\.)?in_proj_(weight|bias)", tail)  # nn.MultiheadAttention
    if in_proj:
        return f"attn.qkv.{in_proj[1]}"
    parameter = _PARAMETER.fullmatch(tail)
    for pattern, new in (*_IN_BLOCK, *(_NORMS if rank == 1 else ())) if parameter else ():
        match = re.fullmatch(pattern, parameter[1])
        if match:
            return f"{match.expand(new)}.{parameter[2]}"
    return tail


def known_name(name: str, rank: int) -> str:
    """timm's name of a commonly named array, whatever its prefix; an unknown name stays.

    Args:
        name: in the file, after the rules.
        rank: number of axes.
    """
    if VOCABULARY.fullmatch(name):
        return name
    block = _BLOCK.fullmatch(name)
    if block and rank == 1 and block[2] in ("weight", "bias"):  # the last member of the blocks' Sequential
        return f"norm.{block[2]}"
    if block:
        return f"blocks.{block[1]}.{_known_in_block(block[2], rank)}"
    if _TOKEN.fullmatch(name):
        return "cls_token"
    if _TABLE.fullmatch(name):
        return "pos_embed"
    parameter = _PARAMETER.fullmatch(name)
    if parameter and rank == 1 and _NORM.fullmatch(parameter[1]):
        in_head = _HEAD.fullmatch(parameter[1].rpartition(".")[0])
        return f"{'head_norm' if in_head else 'norm'}.{parameter[2]}"
    if parameter and re.fullmatch(r"(?:.*\.)?(?:pre_logits|pre_head|representation)", parameter[1]):
        return f"pre_logits.{parameter[2]}"
    if parameter and _HEAD.fullmatch(parameter[1]):
        return f"head.{parameter[2]}"
    for pattern, new in _IN_HEAD if parameter else ():
        match = re.fullmatch(pattern, parameter[1])
        if match and _HEAD.fullmatch(match[1]):
            return f"{new}.{parameter[2]}"
    return name


def _stack(ranks):
    """{name: name as "blocks.0..."} of blocks without a telling name, such as "1.0." and "1.1.": numbered modules with
    the same arrays, attention among them.
    """
    groups = collections.defaultdict(lambda: collections.defaultdict(dict))  # {prefix: {number: {tail: name}}}
    for name in ranks:
        for match in itertools.islice(re.finditer(r"(?<![^.])(\d+)\.", name), _DEEPEST):
            groups[name[: match.start()]][int(match[1])][name[match.end() :]] = name
    for prefix in sorted(groups, key=len):
        blocks = groups[prefix]
        tails = blocks.get(0, {})
        attention = any(_known_in_block(tail, ranks[name]).startswith("attn.") for tail, name in tails.items())
        if (
            attention
            and sorted(blocks) == list(range(len(blocks)))
            and all(b.keys() == tails.keys() for b in blocks.values())
        ):
            return {name: f"blocks.{i}.{tail}" for i, block in blocks.items() for tail, name in block.items()}
    return {}


def _modules(name):
    parts = name.split(".")
    return {tuple(parts[:n]) for n in range(1, len(parts))}


def _by_branch(new, ranks):
    """{name: timm's name} of normalisations in the same module as their block's attention, or as its MLP, alone.

    Args:
        new: {name: timm's name, or an unknown one in "blocks.0."}.
        ranks: {name: number of axes of the weight}.
    """
    branches = collections.defaultdict(lambda: {"attn": set(), "mlp": set()})  # {block: {branch: modules around it}}
    for name, now in new.items():
        if match := re.match(r"(blocks\.\d+)\.(attn|mlp)\.", now):
            branches[match[1]][match[2]] |= _modules(name)
    found = {}
    for name, now in new.items():
        match = re.fullmatch(r"(blocks\.\d+)\..+\.(weight|bias)", now)
        if match and ranks[name] == 1 and not VOCABULARY.fullmatch(now):
            attention, mlp = (len(_modules(name) & modules) for modules in branches[match[1]].values())
            if attention != mlp:
                found[name] = f"{match[1]}.{'norm1' if attention > mlp else 'norm2'}.{match[2]}"
    return found


def _sequential(names, ranks):
    """{name: timm's name} of numbered nn.Sequential layers: a block's MLP and the head.

    An MLP's dense layers are fc1 and fc2, a normalisation before them norm2. A head's dense layers are the head, or
    pre_logits and the head; a normalisation before them comes after the pooling.

    Args:
        names: after `known_name`.
        ranks: {name: number of axes}.
    """
    layers = collections.defaultdict(dict)  # {the Sequential's name: {its layer's number: axes of the weight}}
    for name in names:
        match = re.fullmatch(r"(.+)\.(\d+)\.weight", name)
        if match and not VOCABULARY.fullmatch(name):
            layers[match[1]][int(match[2])] = ranks[name]
    found = {}
    for parent, weights in layers.items():
        block = re.match(r"blocks\.\d+\.", parent)
        dense = sorted(number for number, rank in weights.items() if rank == 2)
        norms = [number for number, rank in weights.items() if rank == 1]
        in_sequence = norms and re.fullmatch(r"(?:.*\.)?\d+", parent)  # of a model that is an nn.Sequential
        if not block and not _HEAD.fullmatch(parent) and not in_sequence:
            continue
        targets = [f"{block[0]}mlp.fc1", f"{block[0]}mlp.fc2"] if block else ["pre_logits", "head"][-len(dense) :]
        if len(dense) != len(targets) or len(norms) > 1 or any(number > dense[0] for number in norms):
            continue
        targets = {**dict(zip(dense, targets)), **dict.fromkeys(norms, f"{block[0]}norm2" if block else "head_norm")}
        found.update(
            {f"{parent}.{i}.{kind}": f"{new}.{kind}" for i, new in targets.items() for kind in ("weight", "bias")}
        )
    return {name: found[name] for name in names if name in found}


def _patch_names(names, ranks):
    """{name: timm's name} of the patch embedding: the only array with four axes, and its bias."""
    kernels = [name for name in names if ranks[name] == 4]
    if len(kernels) != 1 or not kernels[0].endswith(".weight"):
        return {}
    kernel = kernels[0].removesuffix("weight")
    return {f"{kernel}{kind}": f"patch_embed.proj.{kind}" for kind in ("weight", "bias")}


def timm_names(ranks: Mapping[str, int]) -> dict[str, str]:
    """{name: timm's name} of a file's arrays; unknown names stay. `ranks` is {name: number of axes}."""
    stack = {} if any(map(_BLOCK.fullmatch, ranks)) else _stack(ranks)
    patch = _patch_names(ranks, ranks)
    of_weight = {name: ranks.get(f"{name.removesuffix('bias')}weight", rank) for name, rank in ranks.items()}
    new = {name: patch.get(name) or known_name(stack.get(name, name), of_weight[name]) for name in ranks}
    numbered = _sequential(new.values(), {now: ranks[name] for name, now in new.items()})
    new = {name: numbered.get(now, now) for name, now in new.items()}
    return {**new, **_by_branch(new, of_weight)}


def is_vit(ranks: Mapping[str, int]) -> bool:
    """Whether arrays of these names and numbers of axes are probably a ViT's: attention in blocks, and one of patches
    or positions.
    """
    names = timm_names({name: rank for name, rank in ranks.items() if len(name) <= LONGEST_NAME}).values()
    attention = any(name.startswith("blocks.0.attn.") and VOCABULARY.fullmatch(name) for name in names)
    return attention and not {"patch_embed.proj.weight", "pos_embed"}.isdisjoint(names)
