"""What fit, evaluate and predict refuse: pixels on another scale, labels outside the classes, data without labels."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data, dense_on_images

import keras_vit
from keras_vit.fit.checks.inputs import InputChecks
from keras_vit.fit.checks.marked import plain_errors
from keras_vit.training import Mixup, SigmoidCrossEntropy, SoftmaxCrossEntropy

X, Y = data(8)
ONE_BASED = Y % 5 + 1


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


class Sequence(keras.utils.PyDataset):
    """Batches of four."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.read = x, y, []

    def __len__(self):
        return len(self.x) // 4

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[4 * i : 4 * i + 4], self.y[4 * i : 4 * i + 4]


def generator(x, y):
    return (batch for batch in [(x[:4], y[:4]), (x[4:], y[4:])])


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


FORMS = (None, dataset, generator, Sequence)


def classifier():
    model = dense_on_images()
    model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    return model


def given(form, x, y):
    """The arguments of fit for data in some form."""
    return (x, y) if form is None else (form(x, y),)


def check(model, form, x, y):
    """Reads data in some form to its end, as fit does."""
    with plain_errors():
        checked = InputChecks.of(model).any(*given(form, x, y))
        if form is not None:
            list(checked[i] for i in range(checked.num_batches)) if form is Sequence else list(checked)


REFUSED = [
    (
        ONE_BASED,
        r"whole numbers from 0 to 4, for 5 classes, and are from 1 to 5\. They seem to count from 1: subtract 1",
    ),
    (np.where(np.arange(8) == 6, -1, Y), r"are from -1 to"),
    (np.where(np.arange(8) == 6, 255, Y)[:, None], "to 255"),
    (Y + 0.5, "whole numbers from 0 to 4"),
    (np.where(np.arange(8) == 6, np.nan, Y), "whole numbers"),
    (2 * np.eye(5)[Y], "numbers from 0 to 1, and are from 0 to 2"),
    (np.zeros((8, 5), "float32"), "should sum to 1.*SigmoidCrossEntropy"),
    (np.ones((8, 5), "float32"), "should sum to 1.*SigmoidCrossEntropy"),
    (np.eye(5)[Y % 5] + 0.5 * np.eye(5)[(Y + 1) % 5], "should sum to 1.*SigmoidCrossEntropy"),
]


@pytest.mark.parametrize("form", FORMS)
def test_labels_outside_the_classes_are_refused_and_others_pass(form):
    model = classifier()
    for labels, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            check(model, form, X, labels)
    for labels in (Y, Y[:, None], Y.astype("uint8"), Y.astype("float32"), np.eye(5)[Y]):
        check(model, form, X, labels)
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="subtract 1"):
            call(*given(form, X, ONE_BASED), verbose=0)


@pytest.mark.parametrize("form", FORMS)
def test_keras_own_loss_on_class_numbers_refuses_them_too(form):
    """Eagerly, TensorFlow's InvalidArgumentError would come first."""
    model = dense_on_images()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    check(model, form, X, Y)
    with pytest.raises(ValueError, match="from 1 to 5. They seem to count from 1: subtract 1"):
        model.fit(*given(form, X, ONE_BASED), verbose=0)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=5))
    check(model, form, X, ONE_BASED)


def test_single_batches_and_validation_data_are_checked():
    model = classifier()
    for call in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match="subtract 1"):
            call(X, ONE_BASED)
    for form in (None, dataset):
        held_out = given(form, X, ONE_BASED)
        with pytest.raises(ValueError, match="subtract 1"):
            model.fit(X, Y, validation_data=held_out[0] if form else held_out, verbose=0)


def test_labels_that_are_no_numbers_are_refused():
    model = classifier()
    with pytest.raises(ValueError, match="should be numbers, got <U3 such as .*cat.*Number the classes from 0"):
        model.fit(X, np.array(["cat"] * 8), verbose=0)
    for labels, name in ((np.array(["a", "b"] * 4), "string"), (Y.astype("complex64"), "complex64")):
        with pytest.raises(ValueError, match=f"should be numbers, got {name}"):
            model.fit(dataset(X, labels), verbose=0)
    numbers = np.asarray(list(map(int, Y % 5)), object)  # as a column of a table
    with pytest.raises(ValueError, match="should be numbers, got object such as"):
        model.fit(X, np.array([*numbers[1:], "cat"], object), verbose=0)
    keras_vit.fit.losses.check_labels(numbers, 5)


def test_rows_of_weight_0_and_shares_of_16_bits_pass():
    rows = np.eye(5)[Y % 5] * 0.7 + np.eye(5)[(Y + 2) % 5] * 0.3
    classifier().fit(dataset(X, tf.cast(rows, "bfloat16")), verbose=0)
    weights = (np.arange(8) < 6).astype("float32")
    model = classifier()
    model.fit(X, rows * weights[:, None], sample_weight=weights, verbose=0)
    assert np.isfinite(model.evaluate(X, rows * weights[:, None], sample_weight=weights, verbose=0))


def test_examples_of_weight_0_may_have_any_label():
    weights = (np.arange(8) < 6).astype("float32")
    labels = np.where(weights > 0, Y, -1)
    model = classifier()
    expected = model.evaluate(X[:6], Y[:6], verbose=0)
    assert model.evaluate(X, labels, sample_weight=weights, verbose=0) == pytest.approx(expected, rel=1e-5)
    batches = tf.data.Dataset.from_tensor_slices((X, labels, weights)).batch(4)
    assert model.evaluate(batches, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_a_dict_of_losses_and_labels_goes_by_the_names_of_the_outputs():
    """Whose order here is not that of the alphabet."""
    inputs = keras.Input((8, 12, 3))
    x = keras.layers.Flatten()(inputs)
    model = keras_vit.Model(inputs, [keras.layers.Dense(5, name="b")(x), keras.layers.Dense(3, name="a")(x)])
    model.compile("sgd", {"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()}, jit_compile=False)
    model.fit(X, {"a": Y % 3, "b": Y % 5}, verbose=0)
    with pytest.raises(ValueError, match="for 3 classes, and are from 1 to 3"):
        model.fit(X, {"a": Y % 3 + 1, "b": Y % 5}, verbose=0)
    with pytest.raises(ValueError, match="SparseCategoricalCrossentropy takes them for probabilities"):
        model.compile("sgd", {"a": "sparse_categorical_crossentropy", "b": SoftmaxCrossEntropy()})


def test_pixels_in_a_dict_or_list_are_checked(tiny):
    model = tiny()
    model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    images = np.random.default_rng(0).uniform(0, 1, (4, *model.input_shape[1:]))
    for x in ({"image": images}, [images], tf.data.Dataset.from_tensors(({"image": images}, Y[:4]))):
        with pytest.raises(ValueError, match="look normalised"):
            model.fit(x, *(() if hasattr(x, "scan") else (Y[:4],)), verbose=0)
    with pytest.raises(ValueError, match="look normalised"):
        model.predict_on_batch(images)
    left, right = (keras.Input(model.input_shape[1:], name=name) for name in ("right", "left"))
    towers = keras_vit.Model([left, right], keras.layers.Dense(5)(model(left) + model.clone(name="other")(right)))
    towers.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    with pytest.raises(ValueError, match="look normalised"):
        towers.fit({"left": images, "right": images * 255}, Y[:4] % 5, verbose=0)


def test_no_examples_and_images_of_another_shape_are_refused(vit):
    shape = r"have the shape \(8, 12, 1\), and the model takes \(8, 12, 3\)"
    for x, message in ((X[:0], "is empty"), (X[..., :1], shape)):
        for form in (None, dataset):
            labelled = given(form, x, Y[: len(x)])
            for call, arguments in ((vit.fit, labelled), (vit.evaluate, labelled), (vit.predict, labelled[:1])):
                with pytest.raises(ValueError, match=message):
                    call(*arguments, verbose=0)


def test_images_in_another_form_are_refused_with_what_to_write(vit):
    for x, message in (
        (X[0], r"batches of images \(8, 12, 3\), and got one .* axis: x\[None\]"),
        (tf.data.Dataset.from_tensor_slices(X), r"got one image of .*: dataset.batch\(32\)"),
        (list(X), "np.stack"),
        (np.moveaxis(X, -1, 1), r"channels last: transpose them, np.moveaxis\(x, -3, -1\)"),
        (X > 100, "contain only 0 and 1.*Multiply them by 255"),
        ((X > 100).astype("uint8"), "contain only 0 and 1.*Multiply them by 255"),
    ):
        with pytest.raises(ValueError, match=message):
            vit.predict(x, verbose=0)
    with pytest.raises(ValueError, match="a list of 8, and the model has 1 input"):
        vit.fit(list(X), list(Y), verbose=0)


def test_in_a_compiled_function_the_loss_is_not_a_number(eagerly):
    """Where nothing on the host sees the labels, such as the batches of a distributed dataset."""
    eagerly(False)
    loss = tf.function(lambda labels: SoftmaxCrossEntropy()(labels, tf.zeros((2, 3))))
    assert np.isnan(loss(tf.constant([0, 3]))) and np.isfinite(loss(tf.constant([0, 2])))
    assert np.isnan(Mixup(1.0, 3)(tf.zeros((2, 4, 4, 3)), tf.constant([0, 3]), 0)[1]).any()


def test_data_without_labels_is_refused():
    model = classifier()
    for call in (model.fit, model.evaluate):
        for x in (X, tf.data.Dataset.from_tensor_slices(X).batch(3), tf.data.Dataset.from_tensor_slices((X,)).batch(3)):
            with pytest.raises(ValueError, match="no labels, which the loss needs.*use predict"):
                call(x, verbose=0)


def test_an_iterator_that_is_no_generator_is_named(tiny, pixels):
    model = tiny()
    model.compile("sgd", keras_vit.training.SoftmaxCrossEntropy())
    with pytest.raises(ValueError, match=r"no other iterators, got a repeat. Make it one: \(batch for batch in data\)"):
        model.fit(itertools.repeat((pixels, np.zeros(4, "int32"))), steps_per_epoch=1)


def test_a_model_whose_loss_needs_no_labels_is_evaluated_without():
    inputs = keras.Input((8, 12, 3))
    model = keras_vit.Model(
        inputs, keras.layers.ActivityRegularization(l1=1.0)(keras.layers.Rescaling(1 / 255)(inputs))
    )
    model.compile("sgd")
    images = tf.data.Dataset.from_tensor_slices(X[:6]).batch(3)  # a batch of three images is not (x, y, weights)
    assert model.evaluate(images, verbose=0) == pytest.approx(X[:6].sum() / 255 / 3 / 2, rel=1e-4)


@pytest.fixture(scope="module")
def vit():
    """Its normalisation is for pixels 0..255."""
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=16, classes=5)
    model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    return model


@pytest.mark.parametrize("form", FORMS)
def test_pixels_on_other_scales_are_refused_and_others_pass(vit, form):
    x = X.astype("float32")
    for images, message in (
        (x / 255, r"look normalised.*are in \[.*expects pixels 0..255.*model.check_pixels = False"),
        (x / 127.5 - 1, "look normalised"),
        (X.astype("uint16") * 256, "look like 16-bit images.*by 257"),
        (x - 128, "negative pixels"),
        (x * np.float32(np.nan), "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            check(vit, form, images, Y)
    for images in (X, X // 100, x, np.zeros((8, 8, 12, 3), "float32")):
        check(vit, form, images, Y)
    for call in (vit.fit, vit.evaluate):
        with pytest.raises(ValueError, match="look normalised"):
            call(*given(form, X / 255.0, Y), verbose=0)


def test_predict_checks_pixels_too_unless_the_check_is_switched_off(vit):
    for images in (X / 255.0, tf.data.Dataset.from_tensor_slices(X / 255.0).batch(4)):
        with pytest.raises(ValueError, match="look normalised"):
            vit.predict(images, verbose=0)
    vit.check_pixels = False
    try:
        vit.evaluate(X / 255.0, Y, verbose=0)
    finally:
        vit.check_pixels = True


def test_the_scale_is_that_of_the_models_own_mean_and_std(tiny):
    for mean, std in ((0.5, 0.5), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))):
        model = tiny(depth=1, mean=mean, std=std)
        model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
        check(model, None, X / 255.0, Y)
        for form in (None, dataset):
            with pytest.raises(ValueError, match="look like pixels 0..255.*divide the images by 255"):
                check(model, form, X.astype("float32"), Y)


def test_a_model_that_scales_its_input_itself_is_left_alone(vit):
    inputs = keras.Input((8, 12, 3))
    for outputs in (vit(keras.layers.Rescaling(255.0)(inputs)), keras.layers.Flatten()(inputs)):
        keras_vit.Model(inputs, outputs).predict(X / 255.0, verbose=0)


def test_nothing_is_read_twice_and_a_generator_keeps_its_first_batch(vit):
    read = []

    def images():
        for i in range(8):
            read.append(i)
            yield X[i].astype("float32"), Y[i]

    spec = (tf.TensorSpec((8, 12, 3), tf.float32), tf.TensorSpec((), tf.int64))
    vit.evaluate(tf.data.Dataset.from_generator(images, output_signature=spec).batch(4), steps=2, verbose=0)
    assert read == list(range(8))
    one_pass = generator(X.astype("float32"), Y)
    logits = vit.predict(one_pass, verbose=0)
    np.testing.assert_allclose(logits, vit.predict(X, verbose=0), rtol=1e-5)


def test_the_number_of_batches_stays_known():
    model = classifier()
    history = model.fit(dataset(X, Y).repeat(), steps_per_epoch=3, verbose=0)
    assert history.params["steps"] == 3
    assert int(InputChecks.of(model).dataset(dataset(X, Y)).cardinality()) == 2


def test_weights_by_the_name_of_the_only_output_count():
    model, weights = classifier(), np.arange(8.0)
    expected = model.evaluate(X, Y, sample_weight=weights, verbose=0)
    assert model.evaluate(X, Y, sample_weight={"head": weights}, verbose=0) == pytest.approx(expected)


@pytest.mark.extended
def test_what_changed_since_compile_needs_compile_again(tiny):
    model = tiny(depth=1)
    model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    model.fit(X, Y, verbose=0)
    model.get_layer("block_00").trainable = False
    with pytest.raises(ValueError, match="block_00.* were frozen or unfrozen after compile: call compile again"):
        model.fit(X, Y, verbose=0)
    model.get_layer("block_00").trainable = True
    model.enable_lora(2)
    with pytest.raises(ValueError, match="new since compile: call compile again"):
        model.fit(X, Y, verbose=0)


@pytest.mark.extended
def test_weights_of_16_bits_train_with_a_warning(tiny):
    model = tiny(classes=5, dtype="bfloat16")
    model.compile("adam", SoftmaxCrossEntropy(), jit_compile=False)
    with pytest.warns(UserWarning, match="too coarse for small updates.*mixed_bfloat16"):
        model.fit(np.zeros((4, *model.input_shape[1:]), "uint8"), Y[:4] % 5, verbose=0)


def test_micro_batches_that_are_not_a_number_of_parts_are_refused():
    model = classifier()
    for micro_batches in (0, -1, 2.0, "2", True):
        model.micro_batches = micro_batches
        with pytest.raises(ValueError, match="micro_batches should be a whole number of at least 1"):
            model.fit(X, Y, verbose=0)


def test_a_loss_called_by_itself_refuses_them_too():
    logits = np.zeros((2, 3), "float32")
    for loss in (SoftmaxCrossEntropy(), SigmoidCrossEntropy()):
        for labels in ([0, 3], [-1, 0], [0.5, 1]):
            with pytest.raises(ValueError, match="whole numbers from 0 to 2"):
                loss(np.array(labels), logits)
        with pytest.raises(ValueError, match=r"rows \(b, 3\) for 3 classes; got the shape \(2, 4\)"):
            loss(np.zeros((2, 4)), logits)


def test_mixing_that_cannot_be_is_refused(eagerly):
    eagerly(False)
    model = classifier()
    for mixing, message in (("mixup", "model.mixing should be"), (Mixup(0.2, 3), r"rows \(b, 5\) for 5 classes")):
        model.mixing = mixing
        with pytest.raises(ValueError, match=message):
            model.fit(X, Y, verbose=0)


def test_a_loader_of_another_library_is_named():
    class DataLoader:
        def __iter__(self):
            return iter([])

    model = dense_on_images()
    model.compile("sgd", SoftmaxCrossEntropy())
    for read in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"got a DataLoader\. Make it a generator"):
            read(DataLoader(), verbose=0)
