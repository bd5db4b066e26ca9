"""What each format can express: every field of the specs is classified, and whatever a format has no words for is
refused.
"""

import dataclasses
import logging as std_logging
import types

import pytest

import keras_vit
from keras_vit.checkpoints.formats import bit_files, google, huggingface, timm
from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.models import BiTSpec, ViTSpec, make_spec
from keras_vit.models.fields import NOTHING, named

VIT = {"google": google.CAPABILITIES, "timm": timm.CAPABILITIES, "huggingface": huggingface.CAPABILITIES}
SIZE = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 32}
# The fields that each format has no words for.
FEWER_TOKENS = " token_merging patch_dropout patch_dropout_block"
NOT_EXPRESSED = {
    "google": (
        "distillation_token registers layer_scale qk_norm qkv_bias patch_norm fc_norm mlp_form conv_stem conv_strides"
        " conv_form pre_norm"
    ),
    "timm": "head_dim pre_logits patch_norm pre_norm conv_stem conv_strides conv_form",
    "huggingface": "head_dim pre_logits qk_norm patch_norm fc_norm stem stem_width conv_stem conv_strides conv_form",
}

# Of no other library's ViT.
OWN = " positions_at causal palette norm_first final_norm pre_logits_activation attention windows global_blocks"
# DINOv3's, EVA-02's and Perception Encoder's; their tables are in timm_eva and huggingface_dinov3.
OWN += " key_bias rope rope_grid hidden_norm pool_heads"


@dataclasses.dataclass(frozen=True)
class NewViTSpec(ViTSpec):
    """A ViTSpec with a field that no format knows."""

    rotary: bool = False
    regions: tuple = dataclasses.field(default_factory=tuple)


@dataclasses.dataclass(frozen=True)
class NewBiTSpec(BiTSpec):
    squeeze: float | None = None


def model_of(spec, classes=5, image_size=(8, 8)):
    """What the rules look at, without building a model."""
    return types.SimpleNamespace(spec=spec, classes=classes, image_size=image_size, channels=3)


def vit(form=ViTSpec, **fields):
    return model_of(form(**{"patch_size": 4, **SIZE, **fields}))


@pytest.mark.parametrize("format", VIT)
def test_every_field_is_classified(format):
    fields = {field.name for field in dataclasses.fields(ViTSpec)}
    expressed, free = VIT[format].fields.keys(), {*named(ViTSpec, NOTHING)}
    assert not expressed & free and expressed <= fields
    assert fields - expressed - free == set((NOT_EXPRESSED[format] + FEWER_TOKENS + OWN).split())


def test_every_field_of_bit_is_expressed():
    fields = {field.name for field in dataclasses.fields(BiTSpec)}
    for capabilities in bit_files.CAPABILITIES.values():
        assert capabilities.fields.keys() == fields - {"head_bias"}


@pytest.mark.parametrize("format", VIT)
@pytest.mark.parametrize(("field", "value", "default"), [("rotary", True, "False"), ("regions", (7,), r"\(\)")])
def test_a_new_field_is_refused_unless_at_its_default(format, field, value, default):
    VIT[format].check(vit(NewViTSpec))
    with pytest.raises(
        ValueError,
        match=rf'format "{format}" cannot express.*{field}={value!r} \(must be {default}\)'.replace("(7,)", r"\(7,\)"),
    ):
        VIT[format].check(vit(NewViTSpec, **{field: value}))


@pytest.mark.parametrize("format", ["google", "timm"])
def test_a_new_field_of_bit_is_refused_unless_at_its_default(format):
    sizes = {"units": (3, 4, 6, 3)}
    bit_files.CAPABILITIES[format].check(model_of(NewBiTSpec(**sizes)))
    with pytest.raises(ValueError, match=rf'format "{format}" cannot express.*squeeze=0.5 \(must be None\)'):
        bit_files.CAPABILITIES[format].check(model_of(NewBiTSpec(**sizes, squeeze=0.5)))


def test_save_refuses_a_new_field_before_anything_is_written(tiny, tmp_path):
    model = tiny(image_size=8)
    fields = {field.name: getattr(model.spec, field.name) for field in dataclasses.fields(model.spec)}
    model.spec = NewViTSpec(**fields, rotary=True)
    with pytest.raises(ValueError, match='rotary=True .must be False.*format="keras" saves every model'):
        keras_vit.save(model, tmp_path / "m", "timm")
    assert not list(tmp_path.iterdir())


def test_a_field_without_a_default_has_no_place_unless_listed():
    with pytest.raises(ValueError, match=r"patch_size=\(4, 4\) \(has no place in this format\)"):
        Capabilities("new", {"depth": ANY, "width": ANY, "heads": ANY, "mlp_dim": ANY, "class_token": ANY}).check(vit())


@pytest.mark.parametrize("format", VIT)
def test_fields_that_do_not_change_the_function_take_any_value(format):
    options = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1, "position_std": 1.0, "head_bias": -6.9}
    options["rope_rescale"] = 2.0
    assert options.keys() | {"patch_form"} == {*named(ViTSpec, NOTHING)}
    VIT[format].check(vit(**options, patch_form="dense"))


@pytest.mark.parametrize(
    ("format", "fields", "message"),
    [
        ("google", {"pool": "token_gap"}, r"pool='token_gap' \(must be 'token' or 'gap' or 'map'\)"),
        ("google", {"pool": "gap", "class_token": True}, "class_token=True with pool='gap'"),
        ("timm", {"head_dim": 5}, r"head_dim=5 \(must be None\)"),
        ("timm", {"positions": "sincos2d"}, r"positions='sincos2d' \(must be 'learned'\)"),
        ("timm", {"stem": (1, 1), "patch_size": 1}, r"stem=\(1, 1\) \(must be None or \(\) or \(2, 2, 2, 2\)"),
        ("timm", {"stem": (), "stem_width": 32, "patch_size": 8}, r"stem_width=32 \(must be 64\)"),
        ("timm", {"stem": (3, 4, 9), "patch_size": 2}, r"patch_size=\(2, 2\) with stem=\(3, 4, 9\) \(timm's has 1\)"),
        ("timm", {"stem": (), "patch_size": 8, "mlp_form": "swiglu"}, "separate architecture for each"),
        ("timm", {"distillation_token": True, "registers": 4}, "timm's distilled models ignore registers"),
        ("huggingface", {"patch_size": (4, 2)}, "patches that are not square"),
        ("huggingface", {"pool": "gap", "qkv_bias": False}, "not a SigLIP"),
        ("huggingface", {"pool": "map"}, 'head="drop"'),
        ("huggingface", {"pre_norm": True}, "not a CLIP"),
        ("huggingface", {"pool": "token_gap"}, 'a class token and pool="token_gap"'),
        (
            "huggingface",
            {"pool": "token_gap", "layer_scale": 1.0, "mlp_form": "swiglu", "mlp_dim": 33},
            "which no mlp_ratio gives",
        ),
    ],
)
def test_the_message_names_field_value_and_what_works(format, fields, message):
    with pytest.raises(
        ValueError, match=f'format "{format}" cannot express this model: .*{message}.*format="keras" saves'
    ):
        VIT[format].check(vit(**fields))


def test_rules_look_at_the_head_and_the_image_size_too():
    dinov2 = ViTSpec(patch_size=4, **SIZE, layer_scale=1.0, pool="token_gap")
    huggingface.CAPABILITIES.check(model_of(dinov2))
    with pytest.raises(ValueError, match="not a DINOv2"):
        huggingface.CAPABILITIES.check(model_of(dinov2, classes=None))
    with pytest.raises(ValueError, match=r"a dinov2 for images that are not square, image_size=\(8, 12\)"):
        huggingface.CAPABILITIES.check(model_of(dinov2, image_size=(8, 12)))


def test_published_variants_are_expressed():
    for variant in ("B/16", "R50+B/16", "R+Ti/16", "R26+S/32", "R50+L/32"):
        google.CAPABILITIES.check(model_of(make_spec(variant)))
        timm.CAPABILITIES.check(model_of(make_spec(variant)))


def test_conventions_that_differ_are_warned_of(caplog):
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        google.CAPABILITIES.check(vit(mlp_activation="gelu_tanh"))
        timm.CAPABILITIES.check(vit())
        assert not caplog.text
        google.CAPABILITIES.check(vit(epsilon=1e-5, mean=0.0))
        timm.CAPABILITIES.check(vit(epsilon=1e-12))
    for text in (
        "mlp_activation is 'gelu', they assume 'gelu_tanh'",
        "epsilon is 1e-05",
        "mean is 0.0, they assume 127.5",
        "epsilon is 1e-12",
    ):
        assert text in caplog.text
