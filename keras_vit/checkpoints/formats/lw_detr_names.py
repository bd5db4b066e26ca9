"""Name maps of LW-DETR and RF-DETR: the projector and the decoder in the two spellings of transformers' files.

RF-DETR's files have the names of Roboflow's code, LW-DETR's those of transformers. Both keep the weights of each query
group in an array; ours are one, so a reader stacks them first (`stack_groups`).
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    grouped,
    same,
    stacked_bias,
    stacked_linear,
    torch_batch_norm,
    torch_conv,
    torch_dense,
    torch_enlargement,
    torch_norm,
)

_GROUPED = re.compile(r"(.*\benc_out\w*)\.(\d+)\.(.+)")
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
_SAMPLING = {
    "offsets": "sampling_offsets",
    "weights": "attention_weights",
    "value": "value_proj",
    "out": "output_proj",
}


@dataclasses.dataclass(frozen=True)
class Spelling:
    """The names of one kind of files.

    Attributes:
        root: of the decoder and the proposals.
        queries: of the learned queries and their boxes.
        joined: whether query, key and value of self-attention are one array.
        mlp, norms, last_norm: in a decoder layer, and after the layers.
        projector: of a scale, {} for its number.
        mixer, mixer_norm: of the C2f in it, and of the normalisation after it.
        ends, step, norm: first and last convolution of a C2f, those of its steps, {} for step and place from 0, and
            their normalisation.
    """

    root: str
    queries: tuple[str, str]
    joined: bool
    mlp: tuple[str, str]
    norms: tuple[str, str, str]
    last_norm: str
    projector: str
    mixer: str
    mixer_norm: str
    ends: tuple[str, str]
    step: str
    norm: str


ROBOFLOW = Spelling(
    root="transformer.",
    queries=("query_feat", "refpoint_embed"),
    joined=True,
    mlp=("linear1", "linear2"),
    norms=("norm1", "norm2", "norm3"),
    last_norm="decoder.norm",
    projector="backbone.0.projector.stages.{}.",
    mixer="0.",
    mixer_norm="1",
    ends=("cv1", "cv2"),
    step="m.{}.cv{}",
    norm="bn",
)
TRANSFORMERS = Spelling(
    root="model.",
    queries=("model.query_feat", "model.reference_point_embed"),
    joined=False,
    mlp=("mlp.fc1", "mlp.fc2"),
    norms=("self_attn_layer_norm", "cross_attn_layer_norm", "layer_norm"),
    last_norm="decoder.layernorm",
    projector="model.backbone.projector.scale_layers.{}.",
    mixer="projector_layer.",
    mixer_norm="layer_norm",
    ends=("conv1", "conv2"),
    step="bottlenecks.{}.conv{}",
    norm="norm",
)


def stack_groups(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, those of query groups stacked: "enc_output.0.weight", "enc_output.1.weight" as "enc_output.weight".

    Raises:
        ValueError: if a group is missing, or has another shape.
    """
    kept, groups = {}, {}
    for name, array in arrays.items():
        if match := _GROUPED.fullmatch(name):
            groups.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = array
        else:
            kept[name] = array
    for name, members in groups.items():
        if sorted(members) != list(range(len(members))) or len({a.shape for a in members.values()}) > 1:
            raise ValueError(f'The query groups of "{name}" should be numbered from 0 and have one shape.')
        kept[name] = np.stack([members[i] for i in range(len(members))])
    return kept


def unstack_groups(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `stack_groups`."""
    found = {}
    for name, array in arrays.items():
        match = re.fullmatch(r"(.*\benc_out\w*)\.(.+)", name)
        found |= {f"{match[1]}.{i}.{match[2]}": a for i, a in enumerate(array)} if match else {name: array}
    return found


def _conv(theirs: str, ours: str, spelling: Spelling, batch: bool) -> NameMap:
    """A ConvBlock."""
    norm = torch_batch_norm if batch else torch_norm
    convolution = torch_conv(f"{theirs}.conv", f"{ours}/conv", bias=False)
    return {**convolution, **norm(f"{theirs}.{spelling.norm}", f"{ours}/norm")}


def projector_map(spelling: Spelling, scales, taps: int, blocks: int, batch: bool, wide: bool) -> NameMap:
    """{name: Entry} of the projector.

    Args:
        scales: as in Projector.
        taps: number of maps that enter.
        blocks: steps of each C2f.
        batch: batch normalisation instead of layer normalisation.
        wide: whether an enlargement is preceded by a convolution.
    """
    entries: NameMap = {}
    for i, scale in enumerate(scales):
        root = spelling.projector.format(i)
        for end, ours in zip(spelling.ends, ("first", "last")):
            entries |= _conv(f"{root}{spelling.mixer}{end}", f"neck/mixer_{i}/{ours}", spelling, batch)
        for step in range(blocks):
            for j in range(2):
                theirs = f"{root}{spelling.mixer}{spelling.step.format(step, j + 1)}"
                entries |= _conv(theirs, f"neck/mixer_{i}/step_{step}_{j}", spelling, batch)
        entries |= torch_norm(f"{root}{spelling.mixer_norm}", f"neck/norm_{i}")
        for j in range(0 if scale == 1 else taps):
            theirs, ours = f"{root}sampling_layers.{j}.layers", f"neck/resampling_{i}_{j}"
            if scale != 2:
                entries |= _conv(f"{theirs}.0", ours, spelling, batch)
                continue
            entries |= _conv(f"{theirs}.0", f"{ours}/narrowing", spelling, batch) if wide else {}
            entries |= torch_enlargement(f"{theirs}.{int(wide)}", f"{ours}/enlargement")
    return entries


def _layer_map(theirs: str, ours: str, spelling: Spelling) -> NameMap:
    """A layer of the decoder."""
    attention, qkv = f"{ours}/attention", ("query", "key", "value")
    if spelling.joined:
        kernels, biases = ([f"{attention}/{name}/{kind}" for name in qkv] for kind in ("kernel", "bias"))
        entries = {
            f"{theirs}self_attn.in_proj_weight": stacked_linear(*kernels),
            f"{theirs}self_attn.in_proj_bias": stacked_bias(*biases),
            **torch_dense(f"{theirs}self_attn.out_proj", f"{attention}/out"),
        }
    else:
        entries = {}
        for name, their_name in _PROJECTIONS.items():
            entries |= torch_dense(f"{theirs}self_attn.{their_name}", f"{attention}/{name}")
    for name, their_name in _SAMPLING.items():
        entries |= torch_dense(f"{theirs}cross_attn.{their_name}", f"{ours}/map_attention/{name}")
    for name, their_name in zip(("hidden", "out"), spelling.mlp):
        entries |= torch_dense(f"{theirs}{their_name}", f"{ours}/{name}")
    for name, their_name in zip(("attention_norm", "map_norm", "mlp_norm"), spelling.norms):
        entries |= torch_norm(f"{theirs}{their_name}", f"{ours}/{name}")
    return entries


def _grouped_dense(theirs: str, ours: str) -> dict[str, Entry]:
    return {f"{theirs}.weight": grouped(f"{ours}/kernel"), f"{theirs}.bias": same(f"{ours}/bias")}


def decoder_map(spelling: Spelling, layers: int) -> NameMap:
    """{name as `stack_groups` makes it: Entry} of proposals, decoder layers and predictions."""
    root, ours = spelling.root, "head/proposals"
    features, boxes = spelling.queries
    entries: NameMap = {f"{features}.weight": same("head/features"), f"{boxes}.weight": same("head/boxes")}
    entries |= _grouped_dense(f"{root}enc_output", f"{ours}/output")
    entries |= torch_norm(f"{root}enc_output_norm", f"{ours}/norm")
    entries |= _grouped_dense(f"{root}enc_out_class_embed", f"{ours}/classifier")
    for i in range(3):
        entries |= _grouped_dense(f"{root}enc_out_bbox_embed.layers.{i}", f"{ours}/box_{i}")
        entries |= torch_dense(f"bbox_embed.layers.{i}", f"head/box_{i}")
    for i in range(layers):
        entries |= _layer_map(f"{root}decoder.layers.{i}.", f"head/layer_{i}", spelling)
    entries |= torch_norm(f"{root}{spelling.last_norm}", "head/norm")
    for i in range(2):
        entries |= torch_dense(f"{root}decoder.ref_point_head.layers.{i}", f"head/position_{i}")
    return entries | torch_dense("class_embed", "head/classifier")
