"""Few-shot evaluation: what is drawn, the accuracies against scikit-learn's, and which images are embedded."""

import keras
import numpy as np
import pytest

from keras_vit.data import evaluation_batches, from_arrays, open_source
from keras_vit.data.sources.selection import read_labels, subset
from keras_vit.evaluation import Embedder, few_shot
from keras_vit.evaluation.shots import draw


@pytest.fixture(scope="module")
def digits():
    """Pixels of the digits as features: (training features, labels, test features, labels)."""
    arrays = []
    for split in ("train", "test"):
        examples = list(open_source("digits", split).ordered().as_numpy_iterator())
        images = np.stack([example["image"] for example in examples])
        arrays += [
            images.reshape(len(images), -1).astype("float32"),
            np.array([example["label"] for example in examples]),
        ]
    return arrays


def test_draws_are_balanced_seeded_and_nested():
    labels = np.random.default_rng(0).integers(0, 4, 200)
    ten = draw(labels, list("abcd"), 10, seed=3)
    assert ten.shape == (4, 10) and (labels[ten] == np.arange(4)[:, None]).all() and len(np.unique(ten)) == 40
    np.testing.assert_array_equal(ten, draw(labels, list("abcd"), 10, seed=3))
    np.testing.assert_array_equal(ten[:, :5], draw(labels, list("abcd"), 5, seed=3))
    assert (ten != draw(labels, list("abcd"), 10, seed=4)).any()


def test_a_class_with_too_few_examples_is_named():
    with pytest.raises(
        ValueError, match=r"shots=3 needs 3 examples of every class. 2 of 4 classes have fewer: bird \(2\), fish \(0\)"
    ):
        draw(np.array([0] * 5 + [1] * 2 + [2] * 3), ["cat", "bird", "dog", "fish"], 3, 0)


@pytest.mark.extended
def test_accuracies_are_those_of_scikit_learns_ridge(digits):
    linear_model = pytest.importorskip("sklearn.linear_model")
    found = few_shot(*digits, shots=(1, 10), seeds=(0, 1))
    train, labels, test, truth = digits
    for shots in (1, 10):
        runs = []
        for seed in (0, 1):
            chosen = draw(labels, range(10), shots, seed).reshape(-1)
            x = train[chosen].astype("float64")
            mean, std = x.mean(0), x.std(0) + 1e-5
            whiten = lambda a: np.concatenate([(a - mean) / std, np.full((len(a), 1), 100.0)], axis=1)  # noqa: B023, E731
            targets = np.where(labels[chosen][:, None] == np.arange(10), 1.0, -1.0)
            ridge = linear_model.Ridge(alpha=2.0**10, fit_intercept=False, solver="svd").fit(whiten(x), targets)
            runs.append((ridge.predict(whiten(test)).argmax(-1) == truth).mean())
        assert found[shots]["runs"] == pytest.approx(runs, abs=1e-12)
        assert found[shots]["mean"] == pytest.approx(np.mean(runs)) and found[shots]["std"] == pytest.approx(
            np.std(runs)
        )
    assert 0.3 < found[1]["mean"] < found[10]["mean"] < 0.95


@pytest.mark.extended
def test_of_several_penalties_the_one_best_on_the_validation_part_is_taken(digits):
    train, labels, test, truth = digits
    part, validation = (train[:900], labels[:900]), (train[900:], labels[900:])
    penalties = [1.0, 1e3, 1e9]
    results = few_shot(*part, test, truth, shots=(5,), l2=penalties, validation=validation)
    single = {l2: few_shot(*part, test, truth, shots=(5,), l2=l2)[5] for l2 in penalties}
    judged = {l2: few_shot(*part, *validation, shots=(5,), l2=l2)[5]["mean"] for l2 in penalties}
    best = max(judged, key=judged.get)
    assert judged[best] > min(judged.values()) and results[5] == {**single[best], "l2": best}
    with pytest.raises(ValueError, match="pass validation="):
        few_shot(*part, test, truth, l2=penalties)


@pytest.mark.extended
def test_features_are_the_models_and_padding_is_left_out(tiny, pixels):
    model, labels = tiny(), np.array([3, 0, 2, 1])
    source = from_arrays(pixels, labels)
    features, truth = Embedder(model, "decode", 3)(source)
    np.testing.assert_array_equal(truth, labels)
    # The head is linear: the logits are the features' product with its kernel.
    head = model.get_layer("head")
    np.testing.assert_allclose(features @ head.kernel.numpy() + head.bias.numpy(), model(pixels), atol=1e-4)
    half, _ = Embedder(model, "decode", 3, "float16")(source)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, features.astype("float16"))
    batches = [len(batch) for batch, _ in Embedder(model, "decode", 3).batches(source)]
    assert batches == [3, 1]
    with pytest.raises(ValueError, match='Unknown dtype of features "int8". Valid: float32, float16'):
        Embedder(model, "decode", 3, "int8")


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_features_that_are_not_finite_are_refused(tiny, pixels):
    """Every class would get the same score, and the first one would win."""
    model, source = tiny(), from_arrays(pixels, [3, 0, 2, 1], name="photos")
    norm = model.get_layer("encoder_norm")
    norm.gamma.assign(1e6 * norm.gamma)
    Embedder(model, "decode", 4)(source)
    with pytest.raises(ValueError, match='features are not finite for some images of photos.*write dtype="float32"'):
        Embedder(model, "decode", 4, "float16")(source)
    norm.gamma.assign(np.nan * norm.gamma)
    with pytest.raises(ValueError, match=r"the weights are damaged. Use an earlier checkpoint\.$"):
        Embedder(model, "decode", 4)(source)


@pytest.mark.extended
def test_an_embedder_takes_a_model_without_a_preprocessing_text(tiny, pixels):
    embedder = Embedder(tiny(), None, 4)  # model.preprocessing
    assert embedder.preprocess == "decode(3)|resize(9, 14)|central_crop(8, 12)"
    assert embedder(from_arrays(pixels, [3, 0, 2, 1]))[0].shape == (4, 16)


@pytest.mark.extended
def test_models_built_on_a_vit_have_its_features(tiny, pixels):
    vit, source = tiny(), from_arrays(pixels, [3, 0, 2, 1])
    expected, _ = Embedder(vit, "decode", 4)(source)
    image = keras.Input((8, 12, 3))
    for model in (vit.with_head(keras.layers.Dense(2)), keras.Model(image, keras.layers.Dense(2)(vit(image)))):
        np.testing.assert_allclose(Embedder(model, "decode", 4)(source)[0], expected, atol=1e-5)
    with pytest.raises(ValueError, match="does not pool its tokens to features"):
        Embedder(vit.with_head(keras.layers.GRU(2), on="tokens"), "decode", 4)


def folder_of(path, count=12):
    """Grey 4x4 PNGs of three classes: example i of a class is of the one value 20 * i."""
    import tensorflow as tf

    for name in "abc":
        (path / name).mkdir()
        for i in range(count):
            (path / name / f"{i:02d}.png").write_bytes(tf.io.encode_png(np.full((4, 4, 1), 20 * i, "uint8")).numpy())
    return open_source(f"folder:{path}", "train")


def values_of(source):
    """The images' values, in order, through evaluation batches."""
    batches = evaluation_batches(source, "decode(1)|resize(4, 4)", 4).as_numpy_iterator()
    return np.concatenate([images[weights > 0, 0, 0, 0] for images, _, weights in batches])


@pytest.mark.extended
def test_only_the_images_of_a_subset_are_read(tmp_path):
    source = folder_of(tmp_path)
    numbers = np.array([0, 5, 17, 30])
    values, labels = values_of(source)[numbers], read_labels(source)[numbers]
    read = subset(source, numbers)
    kept = {read.names(i).numpy().decode() for i in range(4)}
    for path in tmp_path.rglob("*.png"):
        if str(path) not in kept:
            path.unlink()
    np.testing.assert_array_equal(values_of(read), values)
    np.testing.assert_array_equal(read_labels(read), labels)
