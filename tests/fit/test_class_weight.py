"""fit's class_weight against the same training with NumPy's weights of examples, for every kind of data."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.utils.class_weight import compute_sample_weight
from small_models import dense_on_images, dense_on_rows, eager, rows

import keras_vit
from keras_vit.training import Mixup, SigmoidCrossEntropy, SoftmaxCrossEntropy

X, Y = rows(16)
ROWS = np.eye(5, dtype="float32")[Y]
FACTORS = (0.5, 2.0, 1.0, 0.0, 3.0)
NAMES = ("ant", "bee", "cat", "dog", "emu")


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


def classifier(loss=None, names=None, units=5):
    model = dense_on_rows("sgd")
    if units != 5:
        model = keras_vit.Model(model.input, keras.layers.Dense(units, name="logits")(model.layers[-2].output))
        model.layers[-1].set_weights([np.linspace(-1, 1, 4 * units).reshape(4, units), np.zeros(units)])
    model.class_names = names
    model.compile(keras.optimizers.SGD(0.1), loss or SoftmaxCrossEntropy(), jit_compile=False)
    return model


def trained(model, *data, **options):
    if data[1:]:
        options["batch_size"] = 4
    model.fit(*data, shuffle=False, verbose=0, **options)
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.fixture(scope="module")
def expected():
    """The weights after training with NumPy's weights of examples in Keras' own fit."""
    model = classifier()
    plain = keras.Model(model.input, model.output)
    plain.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with eager():
        return trained(plain, X, Y, sample_weight=np.array(FACTORS)[Y])


class Batches(keras.utils.PyDataset):
    def __init__(self, y):
        super().__init__()
        self.y = y

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return X[4 * i : 4 * i + 4], self.y[4 * i : 4 * i + 4]


def arrays(y):
    return X, y


def dataset(y):
    return (tf.data.Dataset.from_tensor_slices((X, y)).batch(4),)


def generator(y):
    return ((batch for batch in [Batches(y)[i] for i in range(4)]),)


def sequence(y):
    return (Batches(y),)


FORMS = (arrays, dataset, generator, sequence)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("form", "y"), [*((form, Y) for form in FORMS), (arrays, Y[:, None].astype("uint8")), (dataset, ROWS)]
)
def test_every_kind_of_data_is_weighed(form, y, expected):
    found = trained(classifier(), *form(y), class_weight=dict(enumerate(FACTORS)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"ant": 0.5, "bee": 2, "dog": 0, "emu": 3.0},
        {"ant": 0.5, 1: 2.0, np.int64(3): np.float32(0), 4.0: 3},
        list(FACTORS),
        np.array(FACTORS, "float32"),
    ],
)
def test_names_numbers_and_lists_mean_the_same(given, expected):
    np.testing.assert_allclose(trained(classifier(names=NAMES), X, Y, class_weight=given), expected, atol=1e-6)


def test_balanced_is_scikit_learns():
    weights = compute_sample_weight("balanced", Y).astype("float32")
    expected = trained(classifier(), X, Y, sample_weight=weights)
    np.testing.assert_allclose(trained(classifier(), X, Y, class_weight="balanced"), expected, atol=1e-6)
    half = {c: 8 / (5 * n) for c, n in enumerate(np.bincount(np.tile(np.arange(5), 4)[:8]))}
    a, b = (
        classifier().fit(
            X, np.tile(np.arange(5), 4)[:16], class_weight=w, validation_split=0.5, shuffle=False, verbose=0
        )
        for w in ("balanced", half)
    )
    assert a.history["loss"] == pytest.approx(b.history["loss"], rel=1e-6)  # the counts are those of the training half


def test_validation_examples_are_not_weighed():
    model = classifier()
    history = model.fit(X, Y, class_weight=FACTORS, validation_split=0.5, verbose=0).history
    assert history["val_loss"][0] == pytest.approx(model.evaluate(X[8:], Y[8:], verbose=0), rel=1e-5)


def test_train_on_batch(expected):
    model = classifier()
    for i in range(4):
        model.train_on_batch(*Batches(Y)[i], class_weight=dict(enumerate(FACTORS)))
    found = np.concatenate([w.ravel() for w in model.get_weights()])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="cannot be combined"):
        model.train_on_batch(X, Y, sample_weight=np.ones(16), class_weight=FACTORS)


def test_one_logit_has_two_classes():
    y = (Y > 1).astype("float32")
    weights = np.where(y, 3.0, 0.5).astype("float32")
    expected = trained(classifier(SigmoidCrossEntropy(), units=1), X, y, sample_weight=weights)
    for labels in (y, y[:, None]):
        found = trained(classifier(SigmoidCrossEntropy(), units=1), X, labels, class_weight={0: 0.5, 1: 3.0})
        np.testing.assert_allclose(found, expected, atol=1e-6)


SEVERAL = [
    ROWS + np.eye(5, dtype="float32")[(Y + 1) % 5],  # two labels
    np.where(np.arange(16)[:, None] == 9, 0, ROWS),  # one row without any
    0.9 * ROWS + 0.02,  # smoothed
]


@pytest.mark.parametrize(("form", "y"), [*((arrays, y) for y in SEVERAL), *((form, SEVERAL[0]) for form in FORMS[1:])])
def test_rows_of_several_labels_are_refused_for_the_losss_own_weights(form, y):
    model = classifier(SigmoidCrossEntropy())
    with pytest.raises(ValueError, match=r"one class per image.*SigmoidCrossEntropy\(class_weights"):
        trained(model, *form(y), class_weight=dict(enumerate(FACTORS)))


@pytest.mark.parametrize(
    "given, text",
    [
        ({5: 1.0}, "unknown class 5. Expected 0 to 4 or one of the names ant, bee"),
        ({0.5: 1.0}, "unknown class 0.5"),
        ({float("nan"): 1.0}, "unknown class nan"),
        ({"cot": 1.0}, "unknown class .cot.*cat"),
        ({2: 1.0, "cat": 2.0}, "class 2 twice"),
        ({0: -1.0}, r"class_weight\[0\] should be a finite number of at least 0, got -1.0"),
        ({0: float("inf")}, "finite number"),
        ({0: "2"}, "finite number"),
        ([1.0, 2.0], "5 numbers, one per class"),
        ([1.0, 2.0, 3.0, 4.0, -5.0], r"class_weight\[4\]"),
        (2.0, "should be a dict"),
        ("inverse", '"balanced"; got .inverse'),
        (dict.fromkeys(range(5), 0), "0 for every class"),
    ],
)
def test_mistakes_are_refused(given, text):
    model = classifier(names=NAMES)
    for call in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=text):
            call(X, Y, class_weight=given)


@pytest.mark.parametrize("form", FORMS[1:])
def test_balanced_needs_all_labels_of_every_class(form):
    model = classifier()
    with pytest.raises(ValueError, match="needs all labels as an array"):
        model.fit(*form(Y), class_weight="balanced")
    with pytest.raises(ValueError, match="needs all labels as an array"):
        model.train_on_batch(X, Y, class_weight="balanced")
    with pytest.raises(ValueError, match="at least one example of every class"):
        model.fit(X, np.zeros(16, int), class_weight="balanced")


@pytest.mark.parametrize("form", FORMS)
def test_labels_outside_the_classes_are_refused_under_any_loss(form):
    model = classifier(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="whole numbers from 0 to 4"):
        trained(model, *form(np.where(np.arange(16) == 9, 7, Y)), class_weight=FACTORS)


def test_two_weights_at_once_are_refused():
    with pytest.raises(ValueError, match="cannot be combined"):
        classifier().fit(X, Y, sample_weight=np.ones(16), class_weight=FACTORS)
    weighted = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(16))).batch(4)
    with pytest.raises(ValueError, match="cannot be combined"):
        classifier().fit(weighted, class_weight=FACTORS)
    with pytest.raises(ValueError, match="loss has class_weights already"):
        classifier(SoftmaxCrossEntropy(class_weights=FACTORS)).fit(X, Y, class_weight=FACTORS)
    model = dense_on_images()
    model.compile("sgd", SoftmaxCrossEntropy(), jit_compile=False)
    model.mixing = Mixup(0.2, 5)
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 12, 3), dtype="uint8")
    weighted = tf.data.Dataset.from_tensor_slices((images, Y, np.ones(16))).batch(4)
    for data, options in (
        ((images, Y), {"class_weight": FACTORS}),
        ((images, Y), {"sample_weight": np.ones(16)}),
        ((weighted,), {}),
    ):
        with pytest.raises(ValueError, match=r"mixes pairs of examples.*SoftmaxCrossEntropy\(class_weights="):
            model.fit(*data, **options, verbose=0)
    assert model.train_function is None  # refused before tracing


def test_labels_of_pixels_and_several_outputs_are_refused():
    inputs = keras.Input((4, 4, 3))
    dense = keras_vit.Model(inputs, keras.layers.Dense(5, name="logits")(inputs))
    dense.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="one output, logits"):
        dense.fit(np.zeros((8, 4, 4, 3)), np.zeros((8, 4, 4), int), class_weight=FACTORS)
    model = classifier()
    both = keras_vit.Model(model.input, {"a": model.output, "b": 2 * model.output})
    both.compile("sgd", {"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()})
    with pytest.raises(ValueError, match="one output, logits"):
        both.fit(X, {"a": Y, "b": Y}, class_weight=FACTORS)
    with pytest.raises(ValueError, match=r"one-hot rows \(b, 5\); got the shape \(16, 3\)"):
        classifier("mse").fit(X, np.zeros((16, 3)), class_weight=FACTORS)
