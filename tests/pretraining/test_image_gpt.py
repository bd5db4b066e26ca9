"""ImageGPT: its equations, no look at later pixels, samples from kept keys and values, files, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import signatures_of

import keras_vit
from keras_vit.inspection import attention_weights
from keras_vit.layers.embedding.palette_encoder import grid_palette
from keras_vit.pretraining import pixel_sampling

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

SMALL = {"image_size": (3, 4), "depth": 1, "width": 16, "heads": 2, "mlp_dim": 24}
COLORS, PIXELS = 9, 12


def made(**options):
    """A small ImageGPT whose weights are all random, with a palette of random colours."""
    rng = np.random.default_rng(3)
    model = keras_vit.ImageGPT("Ti/1", **{"palette": rng.integers(0, 256, (COLORS, 3)), **SMALL, **options})
    for weight in model.trainable_variables:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 3, 4, 3), dtype="uint8")


def loss_fn():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _norm(x, weights, name):
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    scaled = centred / tf.sqrt(tf.reduce_mean(centred**2, -1, keepdims=True) + 1e-6)
    return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def _dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def written_out(weights, images):
    """Logits (b, n, colors) and mean cross-entropy of the next colour by the paper's equations, from {path: tensor}."""
    b = len(images)
    far = ((images.reshape(b, PIXELS, 1, 3).astype("float64") - np.asarray(weights["patch_encoder/palette"])) ** 2).sum(
        -1
    )
    colors = far.argmin(-1)  # (b, n)
    embedded = tf.gather(weights["patch_encoder/embedding"], colors[:, :-1])
    start = tf.repeat(weights["class_token/tokens"], b, axis=0)
    x = tf.concat([start, embedded], axis=1) + weights["position_embedding/embedding"][:, :PIXELS]
    y = _norm(x, weights, "block_00/attention_norm")
    q, k, v = (
        tf.reshape(_dense(y, weights, f"block_00/attention/{name}"), (b, PIXELS, 2, 8))
        for name in ("query", "key", "value")
    )
    scores = tf.einsum("bikc,bjkc->bkij", q, k) / 8**0.5
    later = np.triu(np.full((PIXELS, PIXELS), -np.inf), 1).astype("float32")
    mixed = tf.einsum("bkij,bjkc->bikc", tf.nn.softmax(scores + later), v)
    x = x + _dense(tf.reshape(mixed, (b, PIXELS, 16)), weights, "block_00/attention/out")
    hidden = _dense(_norm(x, weights, "block_00/mlp_norm"), weights, "block_00/mlp/hidden")
    x = x + _dense(0.5 * hidden * (1.0 + tf.math.erf(hidden / 2**0.5)), weights, "block_00/mlp/out")
    logits = _norm(x, weights, "encoder_norm") @ weights["next_color/kernel"]
    true = tf.gather(tf.nn.log_softmax(logits), colors, batch_dims=2)
    return logits, -tf.reduce_mean(true)


def test_loss_and_gradient_are_those_of_the_equations_written_out(model, images):
    weights = {v.path.removeprefix(f"{model.name}/"): v for v in model.variables}
    ours = {path: v for path, v in weights.items() if v.trainable}
    with tf.GradientTape() as tape:
        logits, expected = written_out({path: tf.convert_to_tensor(v) for path, v in weights.items()}, images)
    theirs = tape.gradient(expected, [v.value for v in ours.values()])
    with tf.GradientTape() as tape:
        output = model(images, training=True)
        loss = loss_fn()(model.colors(images), output)
    gradients = tape.gradient(loss, [v.value for v in ours.values()])
    np.testing.assert_allclose(output, logits, atol=1e-5)
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    for path, a, b in zip(ours, gradients, theirs):
        np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(b), atol=1e-5, err_msg=path)


def test_a_pixel_changes_no_logits_up_to_its_own(model, images):
    before = model.predict(images, verbose=0)
    for pixel in (0, 5):
        changed = images.copy().reshape(3, PIXELS, 3)
        changed[:, pixel] = 255 - changed[:, pixel]
        after = model.predict(changed.reshape(images.shape), verbose=0)
        moved = (before != after).any(axis=(0, 2))
        assert not moved[: pixel + 1].any() and moved[pixel + 1 :].all()


@pytest.mark.extended
def test_kept_keys_and_values_give_the_same_logits(images):
    model = made(positions="learned2d", qk_norm=True, layer_scale=0.5)
    expected, colors, cache = (
        model.predict(images, verbose=0),
        model.colors(images),
        pixel_sampling.empty_cache(model, 3),
    )
    for place in range(PIXELS):
        logits, cache = pixel_sampling.next_logits(model, place, colors[:, max(place - 1, 0)], cache)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-5)


@pytest.mark.extended
def test_samples_depend_on_the_seed_alone_and_not_on_the_batches(model):
    three = model.sample(3, seed=4, batch_size=2)
    assert three.shape == (3, 3, 4, 3) and three.dtype == np.uint8
    np.testing.assert_array_equal(model.sample(3, seed=4), three)
    assert (model.sample(3, seed=5) != three).any()
    colors = {tuple(color) for color in three.reshape(-1, 3)}
    assert colors <= {tuple(color) for color in model.palette.astype("uint8")}


def test_sampled_colours_have_the_distribution_of_the_logits():
    logits = np.array([[0.0, 2.0, -1.0, 1.0]], "float32").repeat(40_000, axis=0)
    uniform = np.random.default_rng(0).random(40_000, "float32")
    for temperature, top_k in ((1.0, None), (2.0, None), (1.0, 2)):
        expected = np.exp(logits[0] / temperature) * ((logits[0] >= 1.0) if top_k else 1.0)
        drawn = np.asarray(pixel_sampling.draw(logits, uniform, np.float32([temperature]), top_k))
        np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 40_000, expected / expected.sum(), atol=0.01)
    last = pixel_sampling.draw(np.zeros((1, 512), "float32"), np.float32([1 - 2**-24]), np.float32([1.0]), None)
    assert int(last[0]) == 511


@pytest.mark.extended
def test_the_likeliest_completion_is_what_the_logits_say(model, images):
    """top_k=1 writes the largest logit of the pixels so far, of which the first two rows are given."""
    made = model.sample(prompt=images, rows=2, top_k=1)
    colors = model.colors(images)
    for place in range(8, PIXELS):
        logits = model.predict(model.pixels(colors), verbose=0)
        colors[:, place] = logits[:, place].argmax(-1)
    np.testing.assert_array_equal(made, model.pixels(colors))
    four = model.sample(4, prompt=images[:1])
    np.testing.assert_array_equal(four[:, :1], model.pixels(model.colors(images))[:1, :1].repeat(4, axis=0))
    assert len(np.unique(four, axis=0)) > 1


@pytest.mark.extended
def test_it_learns_by_fit_and_says_its_colours(images):
    model = made(remat=True)
    model.compile(keras.optimizers.Adam(2e-2), loss_fn(), jit_compile=False)
    before = model.evaluate(images, model.colors(images), verbose=0)
    model.fit(np.tile(images, (4, 1, 1, 1)), np.tile(model.colors(images), (4, 1)), batch_size=3, verbose=0)
    assert model.evaluate(images, model.colors(images), verbose=0) < 0.95 * before
    np.testing.assert_array_equal(model.colors(model.pixels(model.colors(images))), model.colors(images))


@pytest.mark.extended
def test_files_keep_palette_and_weights_and_give_a_classifier(model, images, tmp_path):
    model.save(tmp_path / "m.keras")
    again = keras_vit.load(tmp_path / "m.keras")
    assert type(again) is keras_vit.ImageGPT and again.get_config() == model.get_config()
    np.testing.assert_array_equal(again.palette, model.palette)
    np.testing.assert_array_equal(again.predict(images, verbose=0), model.predict(images, verbose=0))
    np.testing.assert_array_equal(again.clone().sample(2), model.sample(2))
    classifier = keras_vit.load(tmp_path / "m.keras", classes=5, head="reset")
    assert type(classifier) is keras_vit.ViT and classifier.spec.causal and classifier.output_shape == (None, 5)
    features = keras_vit.Model(classifier.input, classifier.features).predict(images, verbose=0)
    np.testing.assert_allclose(features, model.get_encoder().predict(images, verbose=0), atol=1e-6)
    with pytest.raises(ValueError, match="the weights fix causal=True, palette=9|the weights fix palette=9"):
        keras_vit.load(tmp_path / "m.keras", classes=5, head="reset", palette=8)
    with pytest.raises(ValueError, match="channels=1: the palette's colours have 3 values"):
        keras_vit.load(tmp_path / "m.keras", classes=5, head="reset", channels=1)


def test_an_exported_classifier_holds_its_palette(model, images, tmp_path):
    classifier = keras_vit.checkpoints.transfer(model, classes=5, head="reset", image_size=(6, 4))
    classifier.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 5)))
    larger = images.repeat(2, axis=1)
    served = signatures_of(classifier)["pixels"](tf.constant(larger, tf.float32))
    np.testing.assert_allclose(served["logits"], classifier.predict(larger, verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match="palette|colours"):
        keras_vit.save(classifier, tmp_path / "theirs", "timm")


def test_attention_is_shown_of_the_start_and_all_pixels(model, images):
    for weights in attention_weights(model, images).values():
        assert weights.shape == (3, 2, 1 + PIXELS, 1 + PIXELS)
        assert (weights[..., ~np.tri(1 + PIXELS, dtype=bool)] == 0).all()


def test_a_grid_spreads_its_colours():
    assert len(np.unique(grid_palette(512), axis=0)) == 512
    np.testing.assert_array_equal(np.unique(grid_palette(512)), np.rint(np.linspace(0, 255, 8)))
    np.testing.assert_array_equal(grid_palette(4, 1)[:, 0], [0, 85, 170, 255])
    assert len(np.unique(grid_palette(100), axis=0)) == 100
    assert keras_vit.ImageGPT("Ti/1", palette=4, **SMALL).palette.tolist() == grid_palette(4).tolist()


@pytest.mark.extended
def test_the_papers_sizes_have_its_parameters(without_values):
    """Section 3.3: 76 M, 455 M and 1.36 B parameters."""
    with without_values():
        for name, millions in (("iGPT-S", 76), ("iGPT-M", 455), ("iGPT-L", 1362)):
            assert keras_vit.ImageGPT(name).count_params() / 1e6 == pytest.approx(millions, rel=0.01), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_vit.ImageGPT("iGPT-XS"), 'Unknown ImageGPT "iGPT-XS". Did you mean "iGPT-S"'),
        (lambda: keras_vit.ImageGPT("Ti/4"), "makes a token of each pixel: set patch_size=1"),
        (lambda: made(pool="map"), "pool='map': an ImageGPT has pool='gap'"),
        (lambda: made(positions="rope2d"), 'positions="rope2d".*an ImageGPT adds positions to its tokens'),
        (lambda: made(registers=2), "registers=2: an ImageGPT has registers=0"),
        (lambda: made(palette=np.zeros((5, 4))), "The palette has colours of 4 values, the images 3 channels"),
        (lambda: made(palette=np.zeros(5)), "pixel values 0..255 .colors, c., got shape"),
        (lambda: made(mean=100.0), "mean=100.0 has no effect: a palette takes pixels 0..255 as they are"),
        (lambda: made().sample(rows=2), "rows=2 needs prompt"),
        (lambda: made().sample(0), "count must be a positive integer"),
        (lambda: made().sample(prompt=np.zeros((2, 4, 3, 3))), r"expected images \(b, 3, 4, 3\)"),
        (lambda: made().sample(3, prompt=np.zeros((2, 3, 4, 3))), "count=3 for 2 images to complete"),
        (lambda: made().sample(prompt=np.zeros((2, 3, 4, 3)), rows=4), "rows must be a whole number from 0 to 3"),
        (lambda: made().sample(temperature=0), "temperature must be above 0, got 0. For the likeliest"),
        (lambda: made().sample(top_k=10), "top_k=10: the palette has 9 colours"),
        (lambda: made().predict(np.random.default_rng(0).random((2, 3, 4, 3))), "look normalised"),
    ],
)
def test_mistakes_are_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
