"""Names of LW-DETR and RF-DETR: projector, decoder and mask branch in the two spellings of transformers' files.

RF-DETR's files have the names of Roboflow's code, LW-DETR's those of transformers. Both keep the weights of each query
group in an array; ours are one.
"""

from collections.abc import Mapping, Sequence

from keras_vit.checkpoints.formats.name_map import Entry, NameMap, Names, spellings

# {0} is the number of a scale or step, {1} that of a convolution in the step.
WORDS = spellings(
    """
    word        rf_detr                           lw_detr
    root        transformer.                      model.
    features    query_feat                        model.query_feat
    boxes       refpoint_embed                    model.reference_point_embed
    fc1         linear1                           mlp.fc1
    fc2         linear2                           mlp.fc2
    norm1       norm1                             self_attn_layer_norm
    norm2       norm2                             cross_attn_layer_norm
    norm3       norm3                             layer_norm
    last_norm   decoder.norm                      decoder.layernorm
    projector   backbone.0.projector.stages.{0}.  model.backbone.projector.scale_layers.{0}.
    mixer       0.                                projector_layer.
    mixer_norm  1                                 layer_norm
    first       cv1                               conv1
    last        cv2                               conv2
    step        m.{0}.cv{1}                       bottlenecks.{0}.conv{1}
    norm        bn                                norm
    """
)
MASKS = "segmentation_head."
_CONV = Names(
    """
    {theirs}.conv    {ours}/conv  kernel
    {theirs}.{norm}  {ours}/norm  batch_norm  if batch
    {theirs}.{norm}  {ours}/norm  norm        if not batch
    """
)
_NORM = Names("{theirs} {ours} norm")
_ENLARGEMENT = Names("{theirs} {ours} enlarging")


def _of_group(fields, ours):
    """The values of query group g: one of the arrays that are one of ours, which has an axis of groups."""
    g, kernel = fields["g"], ours.endswith("kernel")  # (out, in) there
    return Entry(
        (ours,),
        lambda a: a[g].T if kernel else a[g],
        lambda a, shapes: [(a.T if kernel else a)[None]],
        parts=fields["groups"],
        joined=0,
    )


_GROUP = Names(
    """
    {root}enc_output.{g}.weight                         head/proposals/output/kernel       group
    {root}enc_output.{g}.bias                           head/proposals/output/bias         group
    {root}enc_output_norm.{g}.weight                    head/proposals/norm/gamma          group
    {root}enc_output_norm.{g}.bias                      head/proposals/norm/beta           group
    {root}enc_out_class_embed.{g}.weight                head/proposals/classifier/kernel   group
    {root}enc_out_class_embed.{g}.bias                  head/proposals/classifier/bias     group
    {root}enc_out_bbox_embed.{g}.layers.<0,1,2>.weight  head/proposals/box_<0,1,2>/kernel  group
    {root}enc_out_bbox_embed.{g}.layers.<0,1,2>.bias    head/proposals/box_<0,1,2>/bias    group
    """,
    {"group": _of_group},
)
_DECODER = Names(
    """
    {features}.weight                        head/features                              same
    {boxes}.weight                           head/boxes                                 same
    bbox_embed.layers.<0,1,2>                head/box_<0,1,2>                           dense
    {layer}self_attn.in_proj_weight          {ours}/attention/<query,key,value>/kernel  linear  if joined
    {layer}self_attn.in_proj_bias            {ours}/attention/<query,key,value>/bias    same    if joined
    {layer}self_attn.out_proj                {ours}/attention/out                       dense   if joined
    {layer}self_attn.<q,k,v,o>_proj          {ours}/attention/<query,key,value,out>     dense   if not joined
    {layer}cross_attn.sampling_offsets       {ours}/map_attention/offsets               dense
    {layer}cross_attn.attention_weights      {ours}/map_attention/weights               dense
    {layer}cross_attn.value_proj             {ours}/map_attention/value                 dense
    {layer}cross_attn.output_proj            {ours}/map_attention/out                   dense
    {layer}{fc1}                             {ours}/hidden                              dense
    {layer}{fc2}                             {ours}/out                                 dense
    {layer}{norm1}                           {ours}/attention_norm                      norm
    {layer}{norm2}                           {ours}/map_norm                            norm
    {layer}{norm3}                           {ours}/mlp_norm                            norm
    {root}{last_norm}                        head/norm                                  norm
    {root}decoder.ref_point_head.layers.0    head/position_0                            dense
    {root}decoder.ref_point_head.layers.1    head/position_1                            dense
    class_embed                              head/classifier                            dense
    """
).spelled(layer="{root}decoder.layers.{i}.", ours="head/layer_{i}")

_MASKS = Names(
    """
    {root}blocks.{i}.dwconv.weight           {ours}/block_{i}/depthwise/kernel  depthwise
    {root}blocks.{i}.dwconv.bias             {ours}/block_{i}/depthwise/bias    same
    {root}blocks.{i}.norm                    {ours}/block_{i}/norm              norm
    {root}blocks.{i}.pwconv1                 {ours}/block_{i}/dense             dense
    {root}spatial_features_proj              {ours}/places                      pixelwise
    {root}query_features_block.norm_in       {ours}/query_norm                  norm
    {root}query_features_block.layers.0      {ours}/query_hidden                dense
    {root}query_features_block.layers.2      {ours}/query_out                   dense
    {root}query_features_proj                {ours}/query                       dense
    {root}bias                               {ours}/bias                        same
    """
).spelled(root=MASKS, ours="head/masks")


def projector_map(
    words: Mapping[str, str], scales: Sequence[float], taps: int, blocks: int, batch: bool, wide: bool
) -> NameMap:
    """{name: Entry} of the projector.

    Args:
        words: a column of WORDS.
        scales: as in Projector.
        taps: number of maps that enter.
        blocks: steps of each C2f.
        batch: batch normalisation instead of layer normalisation.
        wide: whether an enlargement is preceded by a convolution.
    """
    entries: NameMap = {}

    def add(table, theirs, ours):
        entries.update(table.spelled(theirs=theirs, ours=ours, norm=words["norm"]).map(batch=batch))

    for i, scale in enumerate(scales):
        root = words["projector"].format(i)
        mixer, ours = root + words["mixer"], f"neck/mixer_{i}"
        for end in ("first", "last"):
            add(_CONV, mixer + words[end], f"{ours}/{end}")
        for step, j in ((step, j) for step in range(blocks) for j in (0, 1)):
            add(_CONV, mixer + words["step"].format(step, j + 1), f"{ours}/step_{step}_{j}")
        add(_NORM, root + words["mixer_norm"], f"neck/norm_{i}")
        for j in range(0 if scale == 1 else taps):
            theirs, ours = f"{root}sampling_layers.{j}.layers", f"neck/resampling_{i}_{j}"
            if scale != 2:
                add(_CONV, f"{theirs}.0", ours)
                continue
            if wide:
                add(_CONV, f"{theirs}.0", f"{ours}/narrowing")
            add(_ENLARGEMENT, f"{theirs}.{int(wide)}", f"{ours}/enlargement")
    return entries


def decoder_map(words: Mapping[str, str], layers: int, groups: int) -> NameMap:
    """{name: Entry} of proposals, decoder layers and predictions."""
    entries = _DECODER.spelled(**words).map(depth=layers, joined=words is WORDS["rf_detr"])
    for g in range(groups):
        entries |= _GROUP.spelled(g=g, **words).map(g=g, groups=groups)
    return entries


def mask_map(layers: int) -> NameMap:
    """{name: Entry} of RF-DETR-Seg's mask branch."""
    return _MASKS.map(depth=layers)
