"""Models that give every pixel a class: outputs, files, shared layers, auxiliary losses, valid masks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend

import keras_vit
from keras_vit.fit.losses import Loss
from keras_vit.segmentation.heads.segmentation_heads import HEADS

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

SIZES = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16}
NARROW = {
    "setr_naive": {"width": 8},
    "setr_pup": {"width": 8},
    "setr_mla": {"width": 8, "branch_width": 4},
    "dpt": {"widths": (4, 6, 8, 10), "width": 8},
    "upernet": {"width": 8},
}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype="uint8")
MASKS = np.random.default_rng(1).integers(0, 3, (2, 16, 24)).astype("uint8")


class MeanCrossEntropy(Loss):
    """Cross-entropy, the mean over pixels; void pixels add nothing: masks (b, h, w) -> (b,)."""

    def call(self, y_true, y_pred):
        y = keras.ops.cast(y_true, "int32")
        likelihood = keras.ops.log_softmax(y_pred, axis=-1) * keras.ops.one_hot(y, y_pred.shape[-1])
        return -keras.ops.mean(keras.ops.sum(likelihood, axis=-1), axis=(1, 2))


def made(head="linear", **changes):
    keras.utils.set_random_seed(0)
    return keras_vit.SegmentationModel(
        "Ti/8",
        **{"head": head, "classes": 3, "image_size": (16, 24), "head_options": NARROW.get(head), **SIZES, **changes},
    )


def test_logits_are_the_linear_map_resized_as_tensorflow_does():
    model = made()
    logits = model.predict(IMAGES, verbose=0)
    encoder = keras_vit.Model(model.get_encoder().input, model.get_encoder().feature_map())
    kernel, bias = (np.asarray(weight) for weight in model.head.classifier.linear.weights)
    coarse = encoder.predict(IMAGES, verbose=0) @ kernel + bias  # (b, 2, 3, 3)
    np.testing.assert_allclose(logits, tf.image.resize(coarse, (16, 24)), atol=1e-5)
    assert logits.dtype == np.float32 and model.output_shape == (None, 16, 24, 3)


@pytest.mark.extended
@pytest.mark.parametrize("head", ["linear", "dpt"])
def test_a_file_holds_the_whole_model(head, tmp_path):
    model = made(head, class_names=["sky", "road", "tree"], colors=[(0, 0, 0), (1, 2, 3), (255, 0, 9)], name="scenes")
    model.save(tmp_path / "model.keras")
    for copy in (keras_vit.load(tmp_path / "model.keras"), model.clone()):
        assert type(copy) is keras_vit.SegmentationModel and copy.arguments() == model.arguments()
        assert copy.colors == ((0, 0, 0), (1, 2, 3), (255, 0, 9)) and copy.class_names == ("sky", "road", "tree")
        np.testing.assert_array_equal(copy.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0))


@pytest.mark.parametrize("head", ["linear", "setr_pup"])
def test_logits_are_float32_under_mixed_precision(head):
    logits = made(head, dtype="mixed_bfloat16").predict(IMAGES, verbose=0)
    assert logits.dtype == np.float32 and logits.shape == (2, 16, 24, 3)
    np.testing.assert_allclose(logits, made(head).predict(IMAGES, verbose=0), atol=0.2)


def test_a_given_encoder_shares_its_weights():
    vit = keras_vit.ViT("Ti/8", (16, 24), 5, **SIZES)
    model = keras_vit.SegmentationModel(vit, "linear", 3)
    assert model.get_encoder() is vit and model.image_size == (16, 24) and model.spec == vit.spec
    assert {id(v) for v in model.variables} & {id(v) for v in vit.variables}
    before = model.predict(IMAGES, verbose=0)
    vit.get_layer("patch_encoder").kernel.assign(0 * vit.get_layer("patch_encoder").kernel)
    assert not np.array_equal(model.predict(IMAGES, verbose=0), before)


def test_a_given_encoder_cannot_be_changed():
    vit = keras_vit.ViT("Ti/8", (16, 24), None, **SIZES)
    with pytest.raises(ValueError, match=r'image_size=\(32, 32\), depth=3 would change the encoder "vit"'):
        keras_vit.SegmentationModel(vit, "linear", 3, image_size=32, depth=3)
    keras_vit.SegmentationModel(vit, "linear", 3, image_size=(16, 24))


@pytest.mark.extended
def test_a_file_loads_for_another_image_size(tmp_path):
    model = made("setr_naive", preprocessing="decode|resize(16, 24)", class_names=["a", "b", "c"])
    model.save(tmp_path / "model.keras")
    larger = keras_vit.load(tmp_path / "model.keras", image_size=(24, 32), resample="bilinear", dropout=0.1)
    assert larger.output_shape == (None, 24, 32, 3) and larger.class_names == ("a", "b", "c")
    assert larger.preprocessing is None and larger.spec.dropout == 0.1
    np.testing.assert_array_equal(larger.head.get_weights()[0], model.head.get_weights()[0])
    again = keras_vit.load(tmp_path / "model.keras", dropout=0.1)
    np.testing.assert_array_equal(again.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0))
    assert again.preprocessing == "decode|resize(16, 24)"


def test_wrong_arguments_are_refused_by_name():
    for arguments, text in (
        ({"head": "liner"}, 'Unknown head "liner". Did you mean "linear"?'),
        ({"head_options": {"tap": (0,)}}, 'The head "linear": unknown option "tap". Did you mean "taps"?'),
        (
            {"head_options": {"taps": (2,)}},
            r"taps should be numbers of blocks, from 0 to 1, such as",
        ),
        ({"auxiliary": 0.4}, 'The head "linear" has no auxiliary heads'),
        ({"classes": None}, "classes must be the number of classes that pixels can have"),
        ({"class_names": ["a"]}, "class_names has 1 names for 3 classes"),
        ({"colors": [(0, 0)] * 3}, r"colors should be one \(red, green, blue\)"),
        ({"colors": ["red"] * 3}, r"colors should be one \(red, green, blue\)"),
        ({"depht": 2}, 'Unknown argument "depht"'),
    ):
        with pytest.raises(ValueError, match=text.replace("?", r"\?")):
            made(**arguments)
    with pytest.raises(ValueError, match="gives every pixel a class, not the whole image"):
        made().classify(IMAGES)


@pytest.mark.extended
def test_auxiliary_losses_are_weighed_in_training_and_left_out_of_evaluation():
    model, loss = made("setr_naive", auxiliary=0.4), MeanCrossEntropy()
    model.compile("sgd", loss, weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True)])
    outputs = model(IMAGES)
    assert sorted(outputs) == ["auxiliary_0", "auxiliary_1", "auxiliary_2", "logits"]
    some = MASKS[:, 2::4, 2::4]
    each = {name: float(loss(MASKS if name == "logits" else some, x)) for name, x in outputs.items()}
    whole = each["logits"] + 0.4 * sum(each[f"auxiliary_{i}"] for i in range(3))
    assert float(model.compute_loss(IMAGES, MASKS, outputs)) == pytest.approx(whole, rel=1e-5)
    found = model.evaluate(IMAGES, MASKS, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(each["logits"], rel=1e-5)
    assert found["sparse_categorical_crossentropy"] == pytest.approx(each["logits"], rel=1e-5)


@pytest.mark.extended
def test_a_model_without_its_auxiliary_heads_shares_layers_and_is_saved_alone(tmp_path):
    model = made("setr_mla", auxiliary=0.4)
    plain = model.without_auxiliary()
    np.testing.assert_array_equal(plain.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0)["logits"])
    assert plain.head is model.head and plain.auxiliary == 0 and plain.without_auxiliary() is plain
    for one, name in ((plain, "plain.keras"), (model, "whole.keras")):
        one.save(tmp_path / name)
        copy = keras_vit.load(tmp_path / name)
        assert copy.count_params() == one.count_params() and copy.auxiliary == one.auxiliary
    assert plain.count_params() < model.count_params()


def test_heads_of_one_size_are_refused_on_a_bit_by_name():
    with pytest.raises(ValueError, match='The head "setr_pup" takes maps of one size, and blocks .* the strides 8, 16'):
        keras_vit.SegmentationModel("R26x1", "setr_pup", 2, image_size=32, width_factor=0.5)


def test_losses_that_take_probabilities_are_refused():
    with pytest.raises(ValueError, match="returns logits, and the loss SparseCategoricalCrossentropy takes them"):
        made().compile("sgd", keras.losses.SparseCategoricalCrossentropy())


@pytest.mark.parametrize(
    ("masks", "text"),
    [
        (MASKS[..., None], r"expected \(images, 16, 24\).*Write masks\[..., 0\]"),
        (np.eye(3, dtype="uint8")[MASKS], r"Write masks.argmax\(-1\)"),
        (MASKS[:, :8], r"shape \(2, 8, 24\), expected \(images, 16, 24\)"),
        (MASKS[:, 0, 0], r"shape \(2,\), expected"),
        (MASKS.astype("float32"), "contain float32, expected integers: class numbers from 0 to 2, and 255"),
        (
            MASKS + np.uint8(1),
            "0 to 2, for 3 classes, or 255 for pixels without a class, and contain others, from 3 to 3",
        ),
        (MASKS.astype("int32") - 1, "contain others, from -1 to -1"),
    ],
    ids=["channel", "one-hot", "size", "labels", "floats", "too large", "negative"],
)
def test_masks_that_would_be_learned_wrongly_are_refused(masks, text):
    model = made()
    model.compile("sgd", MeanCrossEntropy())
    with pytest.raises(ValueError, match=text):
        model.fit(IMAGES, masks, verbose=0)
    with pytest.raises(ValueError, match=text):
        model.evaluate(tf.data.Dataset.from_tensor_slices((IMAGES, masks)).batch(2, True), verbose=0)


@pytest.mark.extended
def test_void_pixels_and_examples_of_weight_0_pass():
    model = made()
    model.compile("sgd", MeanCrossEntropy())
    void = np.where(MASKS == 0, np.uint8(255), MASKS)
    wrong = np.stack([MASKS[0], MASKS[1] + 7])
    assert np.isfinite(model.evaluate(IMAGES, void, verbose=0))
    model.fit(IMAGES, wrong, sample_weight=np.array([1.0, 0.0]), verbose=0)
    data = tf.data.Dataset.from_tensor_slices((IMAGES, wrong, np.array([1.0, 0.0], "float32"))).batch(2)
    only = model.evaluate(IMAGES[:1], MASKS[:1], verbose=0)
    assert model.evaluate(data, verbose=0) == pytest.approx(only, rel=1e-5)


def test_a_bit_has_maps_of_several_strides_for_the_linear_head():
    model = keras_vit.SegmentationModel(
        "R50x1", "linear", 2, image_size=32, units=(1, 1), width_factor=0.5, head_options={"taps": (0, 1)}
    )
    assert model.output_shape == (None, 32, 32, 2) and model.head.output.shape == (None, 8, 8, 2)


def test_upernet_takes_a_bits_stages_as_they_are():
    model = keras_vit.SegmentationModel(
        "R50x1", "upernet", 2, image_size=32, auxiliary=0.4, units=(2, 1), width_factor=0.5, head_options={"width": 8}
    )
    assert model.decoder.taps == (1, 2) and model.head.output.shape == (None, 8, 8, 2)
    shapes = {name: x.shape for name, x in model.output.items()}
    assert shapes == {"logits": (None, 32, 32, 2), "auxiliary_0": (None, 8, 8, 2)}


@pytest.mark.extended
@pytest.mark.parametrize("head", HEADS)
def test_heads_stand_on_a_convolutional_stem_registers_and_no_class_token(head):
    model = made(
        head, conv_stem=(8, 8, 16), patch_size=1, registers=2, pool="gap", class_token=False, dtype="mixed_bfloat16"
    )
    assert model.spec.class_token is False and model.output_shape == (None, 16, 24, 3)
    assert model.output.dtype == "float32"
    if head != "eomt":
        check_declared(model.decoder, [keras.KerasTensor((None, 2, 3, 16), "bfloat16") for _ in model.decoder.taps])


def check_declared(decoder, maps):
    """The neck and the head declare the shapes and dtypes that their calls give."""
    for layer in filter(None, (decoder.neck, decoder.head)):
        declared, traced = layer.compute_output_spec(maps), backend.compute_output_spec(layer.call, maps)
        for ours, found in zip(keras.tree.flatten(declared), keras.tree.flatten(traced), strict=True):
            assert (ours.shape, ours.dtype) == (found.shape, found.dtype), layer.name
        maps = declared


def test_masks_with_void_are_refused_for_a_loss_that_takes_it_for_a_class():
    model, masks = made(), np.where(MASKS == 2, 255, MASKS)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"from 255 to 255.*ignore_class=255\), or .*SegmentationLoss"):
        model.evaluate(IMAGES, masks, verbose=0)
    with pytest.raises(ValueError, match="from 255 to 255.*ignore_class=255"):
        model.evaluate(tf.data.Dataset.from_tensors((IMAGES, masks)), verbose=0)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255))
    assert np.isfinite(model.evaluate(IMAGES, masks, verbose=0))


def test_a_loss_with_another_void_than_the_masks_is_refused():
    with pytest.raises(ValueError, match=r"void=11, .* have 255 where .* Write .*SegmentationLoss\(void=255\)"):
        made().compile("sgd", keras_vit.training.SegmentationLoss(void=11))


def test_masks_without_any_class_are_refused():
    model = made()
    model.compile("sgd", keras_vit.training.SegmentationLoss())
    with pytest.raises(ValueError, match="No pixel of the masks has a class: all are 255"):
        model.fit(IMAGES, np.full_like(MASKS, 255), verbose=0)


@pytest.mark.parametrize("head", ["dpt", "upernet"])
@pytest.mark.extended
def test_an_int8_model_segments_and_loads_as_it_was_saved(head, tmp_path):
    options = {"width": 8, **({"widths": (4, 4, 4, 4)} if head == "dpt" else {})}
    model = made(head, head_options=options)
    before = np.asarray(model(IMAGES))
    model.quantize("int8")
    model.save(tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.segment(IMAGES[0]).classes, model.segment(IMAGES[0]).classes)
    after = np.asarray(loaded(IMAGES))
    np.testing.assert_allclose(after, np.asarray(model(IMAGES)), atol=1e-5)
    assert 0 < np.abs(after - before).max() < 0.2 * np.abs(before).max()
