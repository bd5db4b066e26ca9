"""BiT and the hybrids' stems: published counts, grids, formulas in numpy, training."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import StdConv2D
from keras_vit.models import BiT, ViT, build
from keras_vit.training import SoftmaxCrossEntropy

# With 1000 classes; timm 1.0.31's counts of resnetv2_*_bit, which are those of the published files.
PARAMETERS = {
    "R50x1": 25_549_352,
    "R50x3": 217_319_080,
    "R101x1": 44_541_480,
    "R101x3": 387_934_888,
    "R152x2": 236_335_208,
    "R152x4": 936_533_224,
}
TINY = {"units": (1, 2), "width_factor": 0.5}


def tiny_bit(**arguments):
    """A BiT of three units with random weights."""
    keras.utils.set_random_seed(0)
    model = BiT("R50x1", **{"image_size": 32, "classes": 5, **TINY, **arguments})
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.2 + ("gamma" in weight.path))
    return model


@pytest.mark.parametrize(
    "variant",
    [name if name == "R50x1" else pytest.param(name, marks=pytest.mark.extended) for name in PARAMETERS],
)
def test_bit_parameter_counts_are_the_published_ones(variant, without_values):
    with without_values():
        model = build(variant)
    assert isinstance(model, BiT) and model.count_params() == PARAMETERS[variant]


@pytest.mark.parametrize(
    ("variant", "weights", "tokens", "count"),
    [  # counts of timm 1.0.31
        ("R+Ti/16", 203, 50, 6_337_704),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in (
                ("R50+B/16", 356, 197, 97_890_112 + 769_000),  # vit_base_r50_s16_224, which has no head there
                ("R26+S/32", 287, 50, 36_431_912),
                ("R50+L/32", 551, 50, 328_994_856),
            )
        ),
    ],
)
def test_hybrids_have_the_published_number_of_arrays_tokens_and_parameters(
    variant, weights, tokens, count, without_values
):
    with without_values():
        model = build(variant)
    assert isinstance(model, ViT) and len(model.weights) == weights and model.count_params() == count
    assert model.get_layer("block_00").output.shape[1] == tokens


@pytest.mark.parametrize("form", ["std", "variance"])
def test_kernels_are_standardised_as_the_formula_says(form):
    layer = StdConv2D(4, 3, form=form)
    layer.build((None, 8, 8, 5))
    w = np.asarray(layer.kernel).astype("float64")
    mean, variance = w.mean((0, 1, 2)), w.var((0, 1, 2))
    expected = (w - mean) / (np.sqrt(variance) + 1e-5 if form == "std" else np.sqrt(variance + 1e-10))
    np.testing.assert_allclose(layer.standardized(), expected, atol=1e-5)


def test_fixed_padding_is_symmetric_and_same_padding_is_not():
    """On 8 pixels with stride 2, a 3x3 kernel of "same" starts at pixel 0, a "fixed" one at pixel -1."""
    x = np.zeros((1, 8, 8, 1), "float32")
    x[0, 0, 0] = 1.0
    first = {}
    for padding in ("same", "fixed"):
        layer = StdConv2D(1, 3, 2, padding)
        layer.build(x.shape)
        y, w = np.asarray(layer(x)), np.asarray(layer.standardized())
        first[padding] = [tuple(i) for i in np.argwhere(np.isclose(w[..., 0, 0], y[0, 0, 0, 0]))]
    assert first == {"same": [(0, 0)], "fixed": [(1, 1)]}


@pytest.mark.extended
def test_bit_round_trips(tmp_path):
    model = tiny_bit(class_names=list("abcde"))
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype="uint8")
    model.save(tmp_path / "m.keras")
    for copy in (model.clone(), keras.saving.load_model(tmp_path / "m.keras"), keras_vit.load(tmp_path / "m.keras")):
        assert type(copy) is BiT and copy.get_config() == model.get_config()
        np.testing.assert_array_equal(copy(x), model(x))


@pytest.mark.extended
@pytest.mark.parametrize("variant", ["bit", "hybrid"])
def test_rematerialised_units_train_to_the_same_weights(variant, eagerly):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype="uint8")
    weights = []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        if variant == "bit":
            model = tiny_bit(remat=remat)
        else:
            size = {"stem": (1, 1), "stem_width": 32, "depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
            model = ViT("R50+Ti/16", image_size=32, classes=5, patch_size=2, remat=remat, **size)
        model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
        model.fit(images, np.arange(4), verbose=0)
        weights.append(model.get_weights())
    for kept, recomputed in zip(*weights):
        np.testing.assert_allclose(kept, recomputed, atol=1e-5)


def test_mixed_precision_standardises_in_float32():
    """In the call, too: in bfloat16 these kernels would be ones alone, without variance."""
    random = np.random.default_rng(0)
    x, w = random.normal(size=(2, 4, 4, 5)), 1 + 1e-3 * random.normal(size=(3, 3, 5, 4))
    outputs = []
    for policy in ("float32", "mixed_bfloat16"):
        layer = StdConv2D(4, 3, dtype=policy)
        layer.build(x.shape)
        layer.kernel.assign(w)
        outputs.append(np.asarray(keras.ops.cast(layer(x), "float32")))
    assert layer.standardized().dtype == "float32"
    np.testing.assert_allclose(*outputs, atol=0.1)
