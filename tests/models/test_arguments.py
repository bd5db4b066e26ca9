"""Arguments of models and layers: numpy's numbers are taken and kept as Python's own, other kinds refused, other
libraries' words explained.
"""

import json
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.models import ROWS, BiTSpec, build, embed, encode, make_bit_spec, make_spec
from keras_vit.models.families import nearest
from keras_vit.models.variants import SIZES

SMALL = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}
NUMPY = {name: np.int64(value) for name, value in SMALL.items()}


def vit(variant="Ti/4", **options):
    return keras_vit.ViT(variant, **{"image_size": 8, "classes": 2, **SMALL, **options})


@pytest.mark.extended
@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (
            {**NUMPY, "classes": np.int32(5), "image_size": np.int64(8), "channels": np.uint8(1)},
            {**SMALL, "classes": 5, "image_size": 8, "channels": 1},
        ),
        ({"image_size": np.array([8, 12])}, {"image_size": (8, 12)}),
        ({"remat": np.bool_(True)}, {"remat": True}),
        ({"remat": [0, np.int64(1)]}, {"remat": (0, 1)}),
        ({"remat": {1}}, {"remat": (1,)}),
        ({"class_names": np.array(["a", "b"])}, {"class_names": ("a", "b")}),
        ({"class_names": range(2)}, {"class_names": ("0", "1")}),
    ],
    ids=lambda options: "-".join(options),
)
def test_numpys_numbers_are_taken_and_kept_as_pythons(given, plain):
    config, expected = vit(**given).get_config(), vit(**plain).get_config()
    assert json.dumps(config) == json.dumps(expected)
    assert keras_vit.ViT.from_config(json.loads(json.dumps(config))).get_config() == config


def test_a_bit_takes_them_too():
    spec = BiTSpec(units=np.array([1, 1]), width_factor=np.float32(0.5), mean=np.array([1, 2, 3]), std=np.int64(4))
    model = keras_vit.BiT(spec, image_size=np.int64(32), classes=np.int64(2), remat=np.array([1]))
    assert json.loads(json.dumps(model.get_config()))["remat"] == [1]
    assert [model.get_layer(f"block_0{i}").remat for i in range(2)] == [False, True]
    assert spec == BiTSpec((1, 1), 0.5, mean=(1, 2, 3), std=4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("PatchEncoder", {"patch_size": np.array([4, 4]), "width": np.int64(16), "norm": np.bool_(False)}),
        ("PixelNormalization", {"mean": np.array([1.0, 2.0, 3.0]), "std": np.float32(2)}),
        ("TransformerBlock", {"heads": np.int64(2), "mlp_dim": np.int32(8), "dropout": np.float32(0.5)}),
        ("AddPositionEmbs", {"grid": np.array([2, 3]), "prefix": np.int64(0), "stddev": np.float32(0.5)}),
        ("Dropout", {"rate": np.float32(0.5), "seed": np.int64(3)}),
        ("StdConv2D", {"filters": np.int64(8), "kernel_size": np.int64(3)}),
    ],
)
def test_layers_keep_pythons_numbers(name, arguments):
    config = getattr(layers, name)(**arguments).get_config()
    assert getattr(layers, name).from_config(json.loads(json.dumps(config))).get_config() == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes must be a positive integer, or None for a model without a head, got 0"),
        ({"classes": 10.0}, "classes .*got 10.0"),
        ({"channels": 0}, "channels must be a positive integer, got 0"),
        ({"image_size": 224.0}, r"image_size must be a positive integer or a pair.*got 224.0"),
        ({"remat": "all"}, r"remat must be True, False or a tuple of block numbers, such as \(0, 1\), got 'all'"),
        ({"remat": [2]}, r"remat names blocks \[2\]; the model has blocks 0 to 1"),
        ({"class_names": "ab"}, 'class_names should be a list with one name per class, got "ab"'),
        ({"class_names": {"a", "b"}}, "class_names should be a list"),
        ({"class_names": [1.0, 0.0]}, "class_names must be text, got 1.0"),
        ({"class_names": ["a", "b", "c"]}, "class_names has 3 names for 2 classes: set classes=3"),
        ({"class_names": ["a"], "classes": None}, "class_names has 1 names for no classes: leave them out"),
        ({"preprocessing": 224}, "preprocessing must be text"),
        ({"name": "a/b"}, 'name must be text without "/"'),
        ({"dtype": "uint8"}, "dtype must be a policy of floating-point numbers.*got 'uint8'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_other_kinds_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        vit(**options)


# The field that another library's word means, or what to do instead.
WORDS = {
    'Did you mean "classes"': "num_classes Num_Classes",
    'Did you mean "image_size"': "imagesize img_size",
    'Did you mean "channels"': "in_chans",
    'Did you mean "patch_size"': "patch",
    'Did you mean "dropout"': "dropout_rate",
    'Did you mean "attention_dropout"': "attn_drop_rate",
    'Did you mean "drop_path"': "drop_path_rate",
    'Did you mean "width"': "embed_dim hidden_size",
    'Did you mean "depth"': "num_layers depht",
    'Did you mean "heads"': "num_heads",
    'Did you mean "norm_first"': "prenorm",
    'Did you mean "pool"': "global_pool",
    'Did you mean "remat"': "gradient_checkpointing",
    "epsilon sets": "norm_layer",
    "mlp_dim is the hidden width itself": "mlp_ratio",
    r"keras_vit.load\(name\)": "weights pretrained",
    "classes=None": "include_top",
    "image_size, a number or .height, width., and channels": "input_shape",
    "returns logits": "classifier_activation",
}


@pytest.mark.parametrize("hint", WORDS)
def test_other_libraries_words(hint):
    for word in WORDS[hint].split():
        with pytest.raises(ValueError, match=f'Unknown argument "{word}" of a ViT. .*{hint}'):
            vit(**{word: 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_vit.ViT("vit_b16"), 'Unknown variant "vit_b16". Did you mean "B/16"?'),
        (lambda: keras_vit.ViT("B/0"), "Unknown variant"),
        (lambda: keras_vit.ViT(16), 'Unknown variant "16".*such as "B/16"; sizes: Ti, S, B, L, So400m, H, g, G'),
        (lambda: keras_vit.ViT("R50x1"), r'Unknown variant "R50x1". It is a BiT: write keras_vit.BiT."R50x1".'),
        (lambda: keras_vit.BiT("B/16"), r'Unknown BiT "B/16". It is a ViT: write keras_vit.ViT."B/16".'),
        (lambda: keras_vit.BiT("R51x1"), 'Unknown BiT "R51x1".*R50x1'),
        (lambda: build("R50+Ti/8"), r'Unknown hybrid "R50\+Ti/8". Valid: R\+Ti/16'),
        (lambda: keras_vit.Swin("Swin-X"), 'Unknown Swin "Swin-X". Valid: Swin-T, .*SwinV2-L'),
        (lambda: encode(keras.Input((5, 192)), "tiny"), 'Unknown variant "tiny". Did you mean "Ti/16"'),
        (lambda: keras_vit.ViT(make_bit_spec("R50x1")), "a ViTSpec, got a BiTSpec"),
        (lambda: keras_vit.BiT(make_spec("B/16")), "a BiTSpec, got a ViTSpec"),
        (lambda: keras_vit.BiT("R50x1", num_classes=3), 'of a BiT. Did you mean "classes".*Valid: image_size, classes'),
        (lambda: keras_vit.BiT("R50x1", token_merging=8), 'Unknown argument "token_merging" of a BiT'),
        (lambda: keras_vit.BiT("R50x1", remat=[99]), r"remat names blocks \[99\]; the model has blocks 0 to 15"),
        (lambda: BiTSpec(()), "units must be the residual units per stage"),
        (lambda: BiTSpec((1,), width_factor=0.3), "not a multiple of 32"),
        (lambda: make_spec("B/16", classes=3), '"classes" is an argument of keras_vit.ViT, not a field of its spec'),
        (lambda: make_spec({"patch_size": 4, "dpeth": 2}), 'Unknown field "dpeth"'),
        (lambda: vit("Ti/16", image_size=225), "225x225.*not divisible by patches of 16x16.*224x224"),
        (lambda: build("R+Ti/16", image_size=48), "48x48 pixels is not divisible by patches of 32x32"),
        (lambda: vit()(np.ones((1, 8, 8, 3)), mask=np.ones((1, 4), bool)), "mask of an image has no effect.*encode"),
        (lambda: layers.PixelNormalization(autocast=True), "autocast must be False"),
        (lambda: layers.LayerScale(None), "LayerScale: initial must be a number, got None"),
    ],
)
def test_mistakes_name_what_is_meant(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Fields of a ViT that contradict each other, or would do nothing.
CONTRADICTIONS = [
    ({"positions": "sincos2d", "position_std": 1.0}, 'position_std=1.0 has no effect: positions="sincos2d"'),
    ({"positions": "rope2d", "position_std": 1.0}, "position_std=1.0 has no effect"),
    ({"positions": "none", "positions_at": "every"}, 'positions="none" has none. Leave positions_at at "stem"'),
    ({"positions": "relative", "positions_at": "shared"}, "needs a table that can be added at each block, learned"),
    ({"positions": "rope2d", "token_merging": 1}, "token_merging does not go with"),
    ({"positions_at": "every", "patch_dropout": 0.5}, "patch_dropout does not go with"),
    ({"rope_rescale": 2}, 'rope_rescale=2 has no effect: positions="learned"'),
    ({"mlp_form": "swiglu", "mlp_activation": "gelu_tanh"}, "mlp_activation='gelu_tanh' has no effect"),
    ({"mlp_activation": "tanh"}, "Valid: gelu, gelu_tanh, quick_gelu, relu, silu"),
    ({"pre_logits_activation": "relu"}, "pre_logits_activation='relu' has no effect: there is no pre_logits"),
    ({"fc_norm": True, "final_norm": False, "pool": "gap"}, "final_norm=False leaves out"),
    ({"class_token": False}, "pool=.token. reads the class token"),
    ({"stem_width": 32}, "stem_width=32 has no effect: there is no stem"),
    ({"conv_strides": (2,)}, "conv_stem has 0 convolutions, conv_strides 1 strides"),
    ({"conv_stem": (8, 8), "conv_strides": (2,)}, "2 convolutions, conv_strides 1 strides"),
    ({"conv_stem": (8,), "stem": (1,)}, "exclude each other"),
    ({"conv_form": "residual"}, "has no effect: there is no conv_stem"),
    ({"token_merging": (1, 2, 3)}, "token_merging has 3 numbers, the model 2 blocks: give one per block"),
    ({"norm_first": False, "token_merging": 1}, "norm_first=False does not go with token_merging"),
    ({"patch_dropout": 0.5, "patch_dropout_block": 2}, "patch_dropout_block=2: the model has blocks 0 to 1"),
    ({"patch_dropout_block": 1}, "patch_dropout_block=1 has no effect: there is no patch_dropout"),
    ({"attention": "window(2, global=2)"}, r"the model has blocks 0 to 1, not \[2\]"),
    ({"attention": "window(2)", "windows": 1, "global_blocks": (1,)}, "a pattern has global="),
    ({"attention": "window(2)", "windows": 5}, "does not go with windows=5"),
    ({"attention": "axial", "positions": "relative2d"}, 'use "rope2d" or positions that are added'),
    ({"attention": "axial", "token_merging": 2}, "does not go with token_merging"),
    ({"attention": "axial", "patch_dropout": 0.5}, "does not go with patch_dropout"),
    ({"attention": "axial", "causal": True, "pool": "gap"}, "does not go with causal=True"),
    ({"attention": "axial", "norm_first": False}, "does not go with norm_first=False"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        vit(**fields)


@pytest.mark.parametrize("fields", [CONTRADICTIONS[0][0], CONTRADICTIONS[7][0], {"stem_width": 32}])
def test_fields_without_effect_of_a_file_stay_as_they_are(fields):
    spec = {**make_spec("Ti/4", **SMALL).to_dict(), **fields}
    assert make_spec(spec).to_dict() == spec


def test_the_encoder_takes_a_variants_name():
    assert embed(keras.Input((8, 8, 3)), "Ti/4").shape == (None, 5, 192)


def test_names_of_two_classes_trigger_a_warning_where_the_model_is_made():
    with pytest.warns(UserWarning, match="Several classes have the same name: crane"):
        shared = vit(class_names=["crane", "crane"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type(shared).from_config(shared.get_config())
        vit(class_names=["crane", "bird"])


# Variants, and how other libraries and people write them.
SPELLINGS = {
    "B/16": "b/16 vit_b16 ViT-B/16 B16 B-16 vitb16 vit_b_16 base ViT_B_16 vit_base_patch16_224 deit_base_patch16_384"
    " google/vit-base-patch16-224 vit-b-16-384",
    "L/14": "ViT-L-14 ViT-L/14@336px l14 vit_large_patch14_dinov2 large/14",
    "Ti/16": "tiny vit_tiny_patch16_224",
    "Ti/8": "ti/8",
    "S/32": "S32",
    "S/8": "vit_small_p8",
    "H/14": "ViT-H-14 huge",
    "g/14": "giant ViT-g-14",
    "G/14": "ViT-G/14",
    "So400m/14": "so400m SO400M/14 vit_so400m_patch14_siglip_224",
    "R50+B/16": "r50+b/16 R50-B16 vit_base_r50_s16_224",
    "R26+S/32": "R26+vit_s32",
    "DINOv3-S/16": "dinov3-s/16 dinov3_vits16 facebook/dinov3-vits16-pretrain-lvd1689m vit_small_patch16_dinov3_qkvb",
    "DINOv3-S+/16": "dinov3-vits16plus-pretrain-lvd1689m vit_small_plus_patch16_dinov3.lvd1689m",
    "DINOv3-H+/16": "DINOv3-H/16 vit_huge_plus_patch16_dinov3",
    "DINOv3-7B/16": "dinov3_vit7b16",
    "EVA02-Ti/14": "eva02_tiny_patch14_224 eva02-ti/14",
    "EVA02-B/14": "eva02_base_patch14_448.mim_in22k_ft_in1k EVA-02-B",
    "PE-B/16": "pe-b/16 PE-Core-B16-224 vit_pe_core_base_patch16_224.fb",
    "PE-L/14": "vit_pe_spatial_large_patch14_448",
    "R50x1": "r50x1 bit_r50x1",
    "R101x3": "BiT-M-R101x3",
    "R152x4": "resnetv2_152x4_bitm",
    None: "convnext swin Q/16",
}


def test_other_spellings_of_variants():
    for near, texts in SPELLINGS.items():
        for text in texts.split():
            found = nearest(text)
            assert (found and found[1]) == near, text
    assert nearest("B/16 ")[1] == "B/16" and nearest("") is None


def test_spellings_lead_to_every_size():
    assert set(SIZES.values()) == set(ROWS)


HYBRID = {"variant": "R50+Ti/16", "image_size": 32, "stem": (1, 1, 1), "stem_width": 32, "classes": None}


@pytest.mark.extended
@pytest.mark.parametrize(
    "make",
    [
        lambda: vit(**HYBRID),
        lambda: vit("Ti/1", conv_stem=(4, 8), classes=None),
        lambda: keras_vit.BiT(BiTSpec((1, 1), 0.5), image_size=(32, 40), classes=None),
    ],
    ids=["hybrid", "stem", "bit"],
)
def test_a_default_of_channels_first_changes_nothing(make):
    keras.utils.set_random_seed(0)
    first = make()
    x = np.random.default_rng(0).integers(0, 256, (2, *first.image_size, 3), dtype="uint8")
    expected = np.asarray(first(x))
    keras.config.set_image_data_format("channels_first")
    try:
        keras.utils.set_random_seed(0)
        model = make()
        np.testing.assert_array_equal(model(x), expected)
        assert [tuple(w.shape) for w in model.weights] == [tuple(w.shape) for w in first.weights]
        np.testing.assert_array_equal(model.clone()(x), expected)
        np.testing.assert_array_equal(model(x, training=True), first(x, training=True))
    finally:
        keras.config.set_image_data_format("channels_last")
