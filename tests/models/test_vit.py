"""The ViT: published parameter counts, configs and files that give the same model back, errors."""

import pathlib

import keras
import numpy as np
import pytest
from interpreters import Interpreter

import keras_vit
from keras_vit.models import ROWS, ViTSpec, make_spec

# With a 1000-class head, class token, no pre_logits, 224 px (arXiv 2010.11929 and 2106.04560).
PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "g/14": 1_012_611_432,
    "G/14": 1_844_440_680,
}


@pytest.mark.parametrize(
    "variant",
    [name if name in ("Ti/16", "B/32") else pytest.param(name, marks=pytest.mark.extended) for name in PARAMETERS],
)
def test_parameter_counts_are_the_published_ones(variant, without_values):
    with without_values():
        assert keras_vit.ViT(variant).count_params() == PARAMETERS[variant]


@pytest.mark.parametrize(
    ("variant", "options", "count"),
    [  # as timm 1.0.31 counts its own; hybrids are in test_resnet.py
        ("B/16", {"distillation_token": True}, 87_338_192),  # deit_base_distilled_patch16_224
        # ..._reg4_dinov2; a row for the token here
        ("B/14", {"registers": 4, "layer_scale": 1.0, "classes": None}, 85_727_232 + 768),
        pytest.param(  # vit_so400m_patch14_siglip_224
            "So400m/14", {"pool": "map", "classes": None}, 427_680_704, marks=pytest.mark.extended
        ),
        pytest.param(  # vit_giant_..._dinov2
            ViTSpec(14, 40, 1536, 4096, 24, layer_scale=1.0, mlp_form="swiglu"),
            {"classes": None},
            1_134_769_664,
            marks=pytest.mark.extended,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameter_counts_of_the_families(variant, options, count, without_values):
    with without_values():
        assert keras_vit.ViT(variant, **options).count_params() == count


def test_every_row_is_counted():
    assert {variant.split("/")[0] for variant in PARAMETERS} | {"So400m"} == set(ROWS)


def test_output_is_logits_and_starts_at_zero():
    model = keras_vit.ViT("Ti/16", image_size=(32, 48), classes=7, depth=1, head_bias=-6.9)
    y = np.asarray(model(np.zeros((2, 32, 48, 3), "uint8")))
    np.testing.assert_allclose(y, np.full((2, 7), -6.9), rtol=1e-6)


@pytest.mark.extended
def test_uint8_and_float_pixels_agree(tiny, pixels):
    model = tiny()
    np.testing.assert_array_equal(model(pixels), model(pixels.astype("float32")))
    np.testing.assert_allclose(model.predict(pixels, verbose=0), model(pixels), atol=1e-5)


def test_float_pixels_are_not_rounded_under_mixed_precision(tiny, pixels):
    model = tiny(dtype="mixed_bfloat16")
    normalised = keras.Model(model.input, model.get_layer("normalization").output)
    y = float(normalised(np.full((1, 8, 12, 3), 127.8, "float32"))[0, 0, 0, 0])
    assert abs(y - 0.3 / 127.5) < 1e-4  # rounded to bfloat16 first, 127.8 would be 128


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_under_mixed_precision(tiny, pixels, policy):
    y = tiny(dtype=policy)(pixels)
    assert y.dtype == "float32"
    np.testing.assert_allclose(y, tiny()(pixels), atol=0.2)


@pytest.mark.extended
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "map", "mlp_activation": "gelu_tanh", "channels": 1, "mean": 33.0, "std": 78.0},
        {"registers": 3, "layer_scale": 1e-3, "qk_norm": True, "distillation_token": True},
        {"positions": "sincos2d", "pool": "gap", "patch_form": "dense", "channels": 2, "mean": (1.0, 2.0), "std": 3.0},
        {
            "pre_logits": 8,
            "head_dim": 5,
            "qkv_bias": False,
            "drop_path": 0.2,
            "dropout": 0.1,
            "dtype": "mixed_bfloat16",
        },
        {"classes": None, "pool": "token_gap", "mlp_form": "swiglu", "layer_scale": 1.0},
        {
            "class_token": True,
            "pool": "gap",
            "fc_norm": True,
            "patch_norm": True,
            "remat": (0,),
            "class_names": [*"abcde"],
        },
        {"variant": "R50+Ti/16", "image_size": 32, "stem": (1, 1, 1), "stem_width": 32, "remat": True},
        {"attention": "window(2)", "norm_first": False, "mlp_activation": "relu", "final_norm": False},
        {"attention": "axial", "positions": "learned2d", "positions_at": "every", "image_size": (12, 20)},
        {"variant": "Ti/2", "token_merging": 2, "patch_dropout": 0.5, "patch_dropout_block": 0},
        {"variant": "Ti/1", "conv_stem": (4, 8), "conv_form": "residual", "positions": "relative2d", "pool": "gap"},
    ],
    ids=lambda options: "-".join(options),
)
def test_files_and_configs_rebuild_the_same_model(tiny, tmp_path, options):
    model = tiny(depth=1, preprocessing="decode|resize(8, 12)", **options)
    keras_vit.save(model, tmp_path / "m.keras")
    x = np.random.default_rng(0).integers(0, 256, (2, *model.image_size, model.channels), dtype="uint8")
    for copy in (model.clone(), keras_vit.load(tmp_path / "m.keras")):
        assert type(copy) is keras_vit.ViT and copy.get_config() == model.get_config()
        np.testing.assert_array_equal(copy(x), model(x))


def reloaded_here(folder, number):
    """Outputs of the model in a .keras file, which is written again under the next number."""
    model = keras.saving.load_model(f"{folder}/{number}.keras")
    assert type(model) is keras_vit.ViT and model.class_names == tuple("abcde"), model.class_names
    model.save(f"{folder}/{number + 1}.keras")
    return model.predict(np.load(f"{folder}/x.npy"), verbose=0).tolist()


@pytest.mark.processes
def test_keras_files_reload_in_fresh_processes_of_both_backends(tiny, pixels, tmp_path):
    """Save, load, save, load: each load in another process, the second one on JAX."""
    model = tiny(dropout=0.1, registers=2, pool="map", class_names=list("abcde"), preprocessing="decode|resize(8, 12)")
    model.compile("sgd", "mse")
    model.save(tmp_path / "0.keras")
    np.save(tmp_path / "x.npy", pixels)
    for i, backend in enumerate(("tensorflow", "jax")):
        with Interpreter(backend) as other:
            np.testing.assert_allclose(other.run(reloaded_here, str(tmp_path), i), model(pixels), rtol=0, atol=1e-5)


def test_features_are_what_the_head_sees(tiny, pixels):
    model = tiny(pre_logits=8)
    features = keras.Model(model.input, model.features)(pixels)
    assert features.shape == (4, 8)
    np.testing.assert_allclose(model.get_layer("head")(features), model(pixels), atol=1e-5)


@pytest.mark.extended
def test_remat_trains_to_the_same_weights(tiny, pixels, eagerly):
    weights = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        model = tiny(remat=remat, dropout=0.2, drop_path=0.1)
        model.compile(
            keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
        )
        model.fit(pixels, np.array([0, 1, 2, 3]), epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    for a, b in zip(*weights):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_spec_is_a_variant_too():
    spec = ViTSpec(patch_size=4, depth=1, width=8, mlp_dim=8, heads=2)
    assert keras_vit.ViT(spec, image_size=8, classes=2).spec == spec
    assert make_spec(spec, pool="gap").class_token is False


def test_the_page_of_models_has_every_layer_and_size():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
    assert not [name for name in keras_vit.layers.__all__ if name not in page]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines()}
    for name, row in ROWS.items():
        assert rows[name].startswith(
            f"| {name} | {row['depth']} | {row['width']} | {row['mlp_dim']} | {row['heads']} |"
        )
