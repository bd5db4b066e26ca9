"""Parameters, FLOPs and activations by formulas: published figures, other counters, and the layers of built models."""

import keras
import pytest

import keras_vit
from keras_vit.models import make_spec
from keras_vit.models.costs import transformer_block
from keras_vit.models.families import find_spec
from keras_vit.planning import counting
from keras_vit.planning.flops import forward_flops
from keras_vit.planning.model_count import read_counts
from keras_vit.planning.model_counts import count
from keras_vit.planning.models import CATALOGUE, count_models, layers_table, rows_of, variants
from keras_vit.planning.rows_of_text import models_table

# GFLOP of a forward pass at 224 pixels. The first column is table 6 of arXiv 2010.11929; the second was counted by
# torch 2.13.0's FlopCounterMode on timm 1.0.31's models, with attention as plain products: vit_base_patch16_224, ...,
# resnetv2_50x1_bit, vit_base_r50_s16_224 (which has no head: 0.0015 less).
PUBLISHED = {
    "Ti/16": (None, 2.5074),
    "S/16": (None, 9.1978),
    "B/16": (35.2, 35.1277),
    "B/32": (None, 8.8184),
    "L/16": (123.1, 123.1094),
    "H/14": (334.9, 334.5902),
    "g/14": (None, 534.0630),
    "G/14": (None, 967.4951),
    "R50x1": (None, 8.1784),
    "R50+B/16": (None, 43.0692 + 0.0015),
    "R26+S/32": (None, 6.9277),
}
# The same counter's: parameters as timm builds them, GFLOP. Ours have a row of positions for the class token, theirs
# partly do not.
OTHERS = {
    "dinov2/g14": (1_136_479_232, 3566.6859, 0),
    "dinov2/s14-reg": (22_057_344, 93.7657, 384),
    "deit3/huge-224-i1k": (632_126_440, 334.5902, 1280),
    "deit3/medium-224-i1k": (38_849_512, 15.9819, 512),
    "deit/tiny-distilled": (5_910_800, 2.5220, 0),
    "siglip/B_16-224": (92_884_224, 35.4166, 0),
    "siglip/L_16-384": (316_283_904, 383.8525, 0),
    "siglip/So400m_14-384": (428_225_600, 670.3464, 0),
    "siglip2/g-opt_16-256": (1_163_168_256, 598.9954, 0),
}
SMALL = {"depth": 2, "width": 32, "heads": 2, "mlp_dim": 48}
# Every option of a spec that weights or products depend on: (variant, image size, classes, channels, overrides).
FORMS = [
    ("Ti/4", (8, 12), 5, 3, {}),
    (
        "Ti/4",
        (8, 12),
        None,
        1,
        {"patch_size": (4, 2), "registers": 3, "qk_norm": True, "layer_scale": 0.1, "qkv_bias": False},
    ),
    ("Ti/4", (8, 12), 5, 3, {"patch_norm": True, "distillation_token": True, "mlp_form": "swiglu", "head_dim": 5}),
    ("Ti/4", 8, None, 3, {"distillation_token": True}),
    ("Ti/4", 8, 5, 3, {"pool": "map", "pre_norm": True}),
    ("Ti/4", 8, 5, 3, {"pool": "mean", "fc_norm": True}),
    ("Ti/4", 8, 5, 3, {"pool": "token_gap", "fc_norm": True, "pre_logits": 7}),
    ("Ti/2", (32, 16), 5, 3, {"conv_stem": (8, 16), "conv_strides": (2, 1), "pool": "gap", "positions": "sincos2d"}),
    (
        "Ti/1",
        (32, 16),
        5,
        3,
        {"conv_stem": (8, 16, 16), "conv_strides": (2, 2, 1), "conv_form": "residual", "pool": "gap"},
    ),
    ("Ti/2", (12, 16), 5, 3, {"token_merging": 5, "registers": 2, "patch_dropout": 0.2, "pool": "token_gap"}),
    ("Ti/2", (12, 16), 5, 3, {"token_merging": (3, 5), "patch_dropout": 0.5, "patch_dropout_block": 1, "pool": "map"}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "none"}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "learned2d", "positions_at": "every", "registers": 2}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "learned", "positions_at": "shared", "distillation_token": True}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "relative", "registers": 2}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "relative2d", "pool": "gap"}),
    ("Ti/4", (8, 12), 5, 3, {"positions": "rope2d", "qk_norm": True, "key_bias": False}),
    ("EVA02-B/4", (8, 12), 5, 3, {}),
    ("PE-Ti/4", (8, 12), 5, 3, {}),
    ("Ti/4", (12, 20), 5, 3, {"attention": "window(2, global=(1,))", "registers": 2}),
    ("Ti/4", (12, 20), 5, 3, {"attention": "strided"}),
    ("Ti/4", (8, 12), 5, 3, {"attention": "axial", "positions": "rope2d"}),
    ("Ti/1", (4, 6), 5, 3, {"palette": 9, "causal": True, "class_token": True, "pool": "gap"}),
    ("R+Ti/16", (64, 32), 5, 3, {"stem_width": 32}),
    ("R26+Ti/32", (64, 32), 5, 4, {"stem": (2, 1, 1), "stem_width": 32}),
    ("R50x1", (33, 65), 5, 3, {"units": (1, 2), "width_factor": 0.5}),
]


@pytest.mark.parametrize("variant", PUBLISHED)
def test_flops_are_those_of_the_paper_and_of_another_counter(variant):
    paper, counter = PUBLISHED[variant]
    gflop = forward_flops(find_spec(variant)) / 1e9
    assert gflop == pytest.approx(counter, abs=1e-4)
    assert paper is None or gflop == pytest.approx(paper, rel=0.01)


def test_relative_attention_costs_its_own_products():
    """Each patch's query with an embedding for each of 2n - 1 offsets, and with those of the other tokens, in numbers;
    a bias costs none.
    """
    plain, relative, bias = (
        forward_flops(make_spec("Ti/4", **SMALL, positions=kind), (8, 12))
        for kind in ("none", "relative", "relative2d")
    )
    # 2 blocks, 6 patches, width 32.
    assert relative - plain == 2 * 2 * (6 * 11 * 32 + (1 + 6 + 1) * 32) and bias == plain


def test_rectangles_are_counted_as_rectangles():
    assert forward_flops(make_spec("B/16"), (160, 320)) / 1e9 == pytest.approx(35.8705, abs=1e-4)  # the same counter
    assert forward_flops(make_spec("B/16"), (320, 160)) == forward_flops(make_spec("B/16"), (160, 320))
    with pytest.raises(ValueError, match="not divisible by patches"):
        forward_flops(make_spec("B/16"), (160, 321))


@pytest.mark.parametrize("name", OTHERS)
def test_published_models_have_another_librarys_parameters_and_flops(name):
    parameters, gflop, row = OTHERS[name]
    rows = rows_of(name)
    assert counting.parameters(rows) == parameters + row
    assert counting.flops(rows) / 1e9 == pytest.approx(gflop, abs=1e-4)


def built(variant, image_size, classes, channels, **overrides):
    family = keras_vit.BiT if "units" in overrides else keras_vit.ViT
    return family(variant, image_size=image_size, classes=classes, channels=channels, **overrides)


def _first(outputs):
    return keras.tree.flatten(outputs)[0]


@pytest.mark.extended
@pytest.mark.parametrize(("variant", "image_size", "classes", "channels", "overrides"), FORMS)
def test_formulas_agree_with_the_layers_of_a_built_model(
    variant, image_size, classes, channels, overrides, without_values
):
    with without_values():
        model = built(variant, image_size, classes, channels, **({} if "units" in overrides else SMALL), **overrides)
        layers = {layer.name: layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)}
        rows = {row.name: row for row in counting.layer_counts(model.spec, image_size, classes, channels)}
        assert rows.keys() == layers.keys()
        for name, row in rows.items():
            assert (row.parameters, row.output) == (
                layers[name].count_params(),
                _first(layers[name].output).shape[1:],
            ), name
        assert sum(row.parameters for row in rows.values()) == model.count_params()
        counted = {row.name: row for row in count(model)}
        assert {name: row.flops for name, row in counted.items()} == {name: row.flops for name, row in rows.items()}


@pytest.mark.parametrize("variant", ["S/16", "R26+S/32", "R50x3"])
def test_every_variant_has_the_parameters_of_its_model(variant, without_values):
    with without_values():
        model = (keras_vit.BiT if "x" in variant else keras_vit.ViT)(variant)
        assert counting.parameters(rows_of(variant)) == model.count_params()


def test_a_block_keeps_what_the_formula_for_large_models_says():
    """Table 2 of arXiv 2205.05198 without dropout, in numbers: 11 n d for attention, 19 for the MLP, in bytes of 2 and
    masks of 1.
    """
    n, d, heads = 197, 768, 12
    row = transformer_block("block_00", n, d, {"heads": heads, "mlp_dim": 4 * d})
    assert row.kept == 16 * n * d + heads * n * n


def test_a_pooling_holds_its_input_and_its_output():
    [pool] = [row for row in rows_of("R50x1") if row.name == "stem_pool"]
    assert (pool.alive, pool.kept) == (112 * 112 * 64 + 56 * 56 * 64, 56 * 56 * 64)


def test_rematerialised_blocks_keep_their_output():
    spec = make_spec("Ti/16")
    plain, remat = (counting.layer_counts(spec, remat=which) for which in (False, True))
    block = next(row for row in plain if row.name == "block_00")
    saved = counting.training_activations(plain) - counting.training_activations(remat)
    assert saved == 11 * (block.kept - 197 * 192)  # of twelve, one is made again at a time
    assert counting.flops(plain) == counting.flops(remat)


class Own(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 2))

    def call(self, x):
        return keras.ops.matmul(x, self.kernel)


def test_heads_of_ones_own_and_nested_models_are_counted(tiny):
    model = tiny()  # 6 patches of 4x4, width 16
    deconvolution = model.with_head(keras.layers.Conv2DTranspose(7, 4, 4, name="up"), on="feature_map")
    rows = {row.name: row for row in count(deconvolution)}
    assert rows["up"].flops == 2 * 6 * 16 * 16 * 7 and rows["up"].output == (8, 12, 7)
    image = keras.Input((16, 24, 3))
    nested = keras_vit.Model(image, keras.layers.Dense(2, name="last")(model(keras.layers.AveragePooling2D(2)(image))))
    rows = {row.name: row for row in count(nested)}
    assert counting.parameters(rows.values()) == nested.count_params()
    assert counting.flops(rows.values()) == forward_flops(model.spec, (8, 12), classes=5) + 2 * 5 * 2
    assert f"{model.name}/block_01" in rows and rows["last"].parameters == 12
    own = count(model.with_head(Own(name="own")))
    assert own[-1].flops is None and own[-1].parameters == 32
    assert "at least" in layers_table(own) and " ?" in layers_table(own)


def test_a_model_with_lora_has_its_parameters(tiny):
    model = tiny()
    model.enable_lora(2)
    assert counting.parameters(count(model)) == model.count_params()


def test_a_model_without_a_fixed_size_is_refused():
    image = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="must be fixed"):
        count(keras.Model(image, keras.layers.Conv2D(2, 3)(image)))


# Parameters of DPTForSemanticSegmentation in transformers 5.24.0, and in the README of Depth Anything V2.
PUBLISHED_DENSE = {
    "dpt/large-ade": 343_960_364,
    "depth-anything-v2/small": 24.8e6,
    "depth-anything-v2/base": 97.5e6,
    "depth-anything-v2/large": 335.3e6,
}


# Parameters in transformers 5.24.0: YOLOS' all; of RF-DETR without a token for masked patches, 384.
PUBLISHED_DETECTORS = {
    "yolos/tiny": 6_488_736,
    "yolos/small": 30_684_768,
    "yolos/base": 127_798_368,
    "rf-detr/nano": 30_467_298 - 384,
    "rf-detr/small": 32_111_170 - 384,
    "rf-detr/medium": 33_687_458 - 384,
    "rf-detr/large": 33_933_218 - 384,
    "lw-detr/small": 14_831_234,  # as a folder of transformers' loads, at 640 pixels
}


def test_every_published_model_is_counted():
    models = {model.name: model for model in read_counts()}  # tests/models/test_fields.py compares with count_models
    assert models.keys() == {*variants(), *CATALOGUE}
    assert models["siglip/So400m_14-384"].image_size == (378, 378)  # 27 patches of 14 pixels
    assert models["deit/tiny"].files == ("safetensors", ".pth")
    assert models["augreg/B_16-i21k"].parameters == 86_567_656 + 769 * 20_843
    for name, published in PUBLISHED_DENSE.items():
        assert abs(models[name].parameters - published) < 1.3e6  # parts that files have and no code reads
    assert {name: models[name].parameters for name in PUBLISHED_DETECTORS} == PUBLISHED_DETECTORS
    assert models["yolos/tiny"].image_size == (800, 1328)
    table = models_table(list(models.values()))
    assert "5,717,416" in table and len(table.splitlines()) == len(models) + 1


def test_patterns_sizes_and_mistakes():
    assert [model.name for model in count_models("dino/*")] == ["dino/b16", "dino/b8", "dino/s16", "dino/s8"]
    [model] = count_models("B/16", (160, 320))
    assert model.image_size == (160, 320) and model.flops == forward_flops(make_spec("B/16"), (160, 320))
    with pytest.raises(ValueError, match='matches "resnet"'):
        count_models("resnet")
    with pytest.raises(ValueError, match="Nearest: deit/tiny"):
        rows_of("deit/tny")
    with pytest.raises(ValueError, match='Unknown variant "B-16"'):
        rows_of("B-16")


# Operations of the decoders at 64x96 pixels, 16 to a patch and 24 wide, by hand: 2 x places x inputs x outputs.
DENSE = {
    "linear": 2 * 24 * 24 * 3,
    "setr_naive": 2 * 24 * (24 * 32 + 32 * 3),
    "setr_pup": 2 * 24 * 9 * (24 * 32 + (4 + 16 + 64) * 32 * 32) + 2 * 24 * 64 * 32 * 3,
}


@pytest.mark.parametrize("head", DENSE)
def test_a_segmentation_model_is_counted_with_its_head(head):
    sizes = {"depth": 1, "width": 24, "heads": 2, "mlp_dim": 24}
    options = {} if head == "linear" else {"width": 32}
    model = keras_vit.SegmentationModel("Ti/16", head, 3, image_size=(64, 96), head_options=options, **sizes)
    rows = {row.name: row for row in count(model)}
    assert rows["head"].flops == DENSE[head]
    assert counting.parameters(rows.values()) == model.count_params()


@pytest.mark.extended
def test_the_parts_of_dpt_and_upernet_are_counted_at_their_own_sizes():
    sizes = {"depth": 1, "width": 24, "heads": 2, "mlp_dim": 24}
    options = {"dpt": {"width": 8, "widths": (2, 3, 4, 6)}, "upernet": {"width": 8}}
    rows = {}
    for head in options:
        model = keras_vit.SegmentationModel("Ti/16", head, 3, image_size=(64, 96), head_options=options[head], **sizes)
        rows[head] = {row.name: row for row in count(model)}
        assert counting.parameters(rows[head].values()) == model.count_params()
    # Readout, projection, resizing, 3x3 convolution; units of 2 convolutions and a 1x1, at 2x3, 4x6, 8x12 and 16x24.
    places = (384, 96, 24, 6)
    readouts = 4 * (24 + 1) * 24 * 24
    projections = sum(24 * 24 * c for c in (2, 3, 4, 6))
    resizings = 24 * 16 * 2 * 2 + 24 * 4 * 3 * 3 + 6 * 9 * 6 * 6
    convolutions = sum(n * 9 * c * 8 for n, c in zip(places, (2, 3, 4, 6)))
    units = sum(n * (4 if n > 6 else 2) * 9 * 8 * 8 + n * 8 * 8 for n in places)
    assert rows["dpt"]["neck"].flops == 2 * (readouts + projections + resizings + convolutions + units)
    assert rows["dpt"]["head"].flops == 2 * 1536 * (9 * 8 * 8 + 8 * 3)
    assert rows["upernet"]["neck"].flops == 2 * (24 * 4 * 24 * 24 + 96 * 4 * 24 * 24 + 24 * 4 * 24 * 24)


@pytest.mark.extended
def test_queries_are_counted_in_the_last_blocks_their_masks_and_at_pixels():
    """Of 64x96 pixels, 16 to a patch, 24 wide, with 4 queries in the last of 2 blocks; TensorFlow's profiler counts the
    same, and a GELU's multiplications.
    """
    sizes = {"depth": 2, "width": 24, "heads": 2, "mlp_dim": 24, "head_options": {"queries": 4, "blocks": 1}}
    training, model = (
        keras_vit.SegmentationModel("Ti/16", "eomt", 3, image_size=(64, 96), auxiliary=weight, **sizes)
        for weight in (1.0, 0.0)
    )
    trained, rows = ({row.name: row.flops for row in count(each)} for each in (training, model))
    joined, alone = (transformer_block("", n, 24, {"heads": 2, "mlp_dim": 24}).flops for n in (1 + 24 + 4, 1 + 24))
    assert (rows["block_00"], rows["block_01"]) == (alone, joined)
    scales = sum(n * (24 * 24 * 4 + 4 * 24 * 9) for n in (24, 96))  # transposed and depthwise convolutions
    assert rows["head"] == 2 * (4 * 24 * (3 + 1) + 3 * 4 * 24 * 24 + scales + 4 * 16 * 24 * 24)
    assert rows["logits"] == 2 * 4 * 64 * 96 * 3
    assert trained["head"] == 2 * rows["head"]  # masks before the block, too
