"""Models built on a ViT: another head, a functional model on its features, a classifier nested in one."""

import io
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import signatures_of

import keras_vit
from keras_vit.inspection import attention_maps, attention_weights
from keras_vit.models import features

PREPROCESSING = "decode(3)|resize(8, 12)"


@keras.saving.register_keras_serializable(package="tests")
class Projection(keras.layers.Layer):
    """A head of the user's own: a matrix, and dropout inside."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = keras.layers.Dropout(0.5)

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")

    def call(self, x, training=False):
        return keras.ops.matmul(self.dropout(x, training=training), self.kernel)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def small_vit(**options):
    keras.utils.set_random_seed(0)
    size = {"image_size": (8, 12), "depth": 2, "width": 16, "heads": 2, "mlp_dim": 32, "classes": 5, **options}
    model = keras_vit.ViT("Ti/4", preprocessing=PREPROCESSING, class_names=list("abcde"), **size)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 5)))
    return model


def nested(vit):
    image = keras.Input((8, 12, 3))
    return keras_vit.Model(image, keras.layers.Dense(2)(vit(image)))


def shifted(vit):
    """Nested, on an input of another size, and with an operation of keras.ops; its outputs are the classifier's own."""
    image = keras.Input((10, 14, 3))
    return keras_vit.Model(image, vit(255.0 - keras.layers.Cropping2D(1)(image)))


MAKERS = {
    "dense": lambda vit: vit.with_head(keras.layers.Dense(3, name="mine"), class_names=["x", "y", "z"]),
    "sequential": lambda vit: vit.with_head(
        keras.Sequential([keras.layers.Dense(4, activation="gelu"), Projection(2), keras.layers.Softmax()])
    ),
    "tokens": lambda vit: vit.with_head(keras.layers.GRU(2), on="tokens"),
    "feature_map": lambda vit: vit.with_head(keras.layers.Conv2DTranspose(3, 4, 4), on="feature_map"),
    "functional": lambda vit: keras_vit.Model(vit.input, Projection(2)(vit.features)),
    "nested": nested,
    "shifted": shifted,
}


@pytest.fixture(scope="module")
def vit():
    return small_vit()


QUICK = ("dense", "nested", "feature_map")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.extended)
        for name in MAKERS
        if name != "functional"
    ],
)
def model(request, vit):
    return MAKERS[request.param](vit)


def images(model, count=3):
    shape = (count, *model.image_size, model.channels)
    return np.random.default_rng(1).integers(0, 256, shape).astype("float32")


@pytest.mark.extended
def test_a_file_comes_back_as_the_same_model(model, vit, tmp_path):
    x = images(model)
    model.save(tmp_path / "model.keras")
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), keras_vit.load(tmp_path / "model.keras")):
        assert type(copy) is keras_vit.Model and copy.get_config().keys() == model.get_config().keys()
        np.testing.assert_array_equal(copy(x), model(x))
        assert copy.spec == model.spec == vit.spec
        for name in ("image_size", "channels", "preprocessing", "classes", "class_names"):
            assert getattr(copy, name) == getattr(model, name), name
    np.testing.assert_array_equal(attention_weights(copy, x)[1], attention_weights(model, x)[1])
    assert keras_vit.Model(copy.input, keras.layers.Flatten()(copy.output)).spec == vit.spec


@pytest.mark.extended
def test_a_clone_is_equal_and_independent(model):
    x = images(model)
    expected = np.asarray(model(x))
    clone = model.clone()
    assert clone.spec == model.spec and clone.class_names == model.class_names
    for copy in (clone, keras.models.clone_model(model)):
        assert type(copy) is keras_vit.Model
        copy.set_weights(model.get_weights())
        np.testing.assert_array_equal(copy(x), expected)
        copy.set_weights([np.zeros_like(w) for w in copy.get_weights()])
        np.testing.assert_array_equal(model(x), expected)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["dense", "nested"])
def test_the_policy_is_that_of_the_vit_so_that_the_loss_is_scaled(name, tmp_path):
    model = MAKERS[name](small_vit(depth=1, dtype="mixed_float16"))
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load(tmp_path / "model.keras")
    on_top = keras_vit.Model(loaded.input, keras.layers.Dense(2, name="further")(loaded.output))
    for copy in (model, model.clone(), keras.models.clone_model(model), loaded, on_top):
        copy.compile(keras_vit.training.AdamW(), "mse")
        assert isinstance(copy.optimizer, keras.optimizers.LossScaleOptimizer)
    dropped = keras_vit.load(tmp_path / "model.keras", head="drop")
    assert dropped.dtype_policy.name == "mixed_float16"


def test_a_model_on_two_vits_has_its_loss_scaled_if_one_of_them_needs_it():
    image = keras.Input((8, 12, 3))
    halves = [
        small_vit(depth=1, name=name, dtype=dtype)(image) for name, dtype in (("a", "float32"), ("b", "mixed_float16"))
    ]
    assert keras_vit.Model(image, keras.layers.Concatenate()(halves)).dtype_policy.name == "mixed_float16"
    assert keras_vit.Model(image, halves[0]).dtype_policy.name == "float32"


def test_attention_is_that_of_the_vit(model, vit):
    x = images(model)
    seen = x if model.image_size == vit.image_size else 255.0 - x[:, 1:-1, 1:-1]
    theirs, ours = attention_weights(vit, seen), attention_weights(model, x)
    for block in (0, 1):
        np.testing.assert_array_equal(ours[block], theirs[block])
    if any(layer.name == "pool" for layer in model.layers) or model.get_layer(index=-1) is vit:
        np.testing.assert_array_equal(attention_maps(model, x), attention_maps(vit, seen))
    assert attention_maps(model, x).shape == (3, 2, 3)


def test_an_export_has_the_models_outputs(model, eagerly):
    signatures, x = signatures_of(model), tf.constant(images(model))
    expected = np.asarray(model(x))
    np.testing.assert_allclose(signatures["pixels"](x)["outputs"], expected, atol=1e-5)
    if model.classes is not None:
        np.testing.assert_allclose(signatures["pixels"](x)["logits"], expected, atol=1e-5)
    pools = len(model.output_shape) == 2 and not any(isinstance(layer, keras.layers.GRU) for layer in model.layers)
    assert ("features" in signatures) == ("features_training" in signatures) == pools
    if pools:
        expected = keras.Model(model.input, features(model))(x)
        np.testing.assert_allclose(signatures["features"](x)["features"], expected, atol=1e-5)


@pytest.mark.extended
def test_an_export_takes_encoded_images_and_names_classes(vit):
    model = MAKERS["dense"](vit)
    x = images(model)
    # The exported preprocessing leaves such images as they are.
    encoded = tf.constant([tf.io.encode_png(image.astype("uint8")).numpy() for image in x])
    found = signatures_of(model)["serving_default"](encoded)
    best = np.array(model.class_names)[np.asarray(model(x)).argmax(-1)]
    np.testing.assert_array_equal(found["classes"].numpy().astype(str)[:, 0], best)


def test_fit_and_evaluate_check_the_images(vit, eagerly):
    model = nested(vit)
    labels = np.zeros((3, *model.output_shape[1:]), "float32")
    copy = model.clone()
    copy.compile("sgd", "mse", jit_compile=False)
    for method in (copy.fit, copy.evaluate):
        with pytest.raises(ValueError, match="look normalised"):
            method(images(model) / 127.5 - 1, labels, verbose=0)
    before = copy.get_weights()
    copy.fit(images(model), labels, verbose=0)
    assert any((a != b).any() for a, b in zip(before, copy.get_weights()))


def test_what_a_model_knows_of_the_one_it_was_built_on(vit):
    dense, inner, outer = (MAKERS[name](vit) for name in ("dense", "nested", "shifted"))
    assert dense.class_names == ("x", "y", "z") and dense.classes == 3 and dense.name == vit.name
    assert dense.preprocessing == inner.preprocessing == PREPROCESSING
    assert outer.preprocessing is None and outer.image_size == (10, 14)
    assert outer.class_names == vit.class_names and inner.class_names is None
    second = small_vit(name="second")
    image = keras.Input((8, 12, 3))
    ensemble = keras_vit.Model(image, keras.layers.Average()([vit(image), second(image)]))
    assert ensemble.spec is None and ensemble.classes is None
    with pytest.raises(ValueError, match="contains 2 such calls"):
        attention_weights(ensemble, images(ensemble))
    both = keras_vit.Model([image, keras.Input((4,))], vit(image))
    assert both.image_size is None
    with pytest.raises(ValueError, match="one input of images"):
        keras_vit.export(both, "unused")


def test_with_head_shares_the_weights_and_trains_them(vit):
    model = vit.with_head(keras.layers.Dense(2))
    assert model.get_layer("block_00") is vit.get_layer("block_00")
    assert not [layer for layer in model.layers if layer.name == "head"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda x: x,), "expected a Keras layer other than Lambda"),
        ((keras.layers.Lambda(lambda x: x),), "expected a Keras layer other than Lambda"),
        ((keras.Sequential([keras.Sequential([keras.layers.Lambda(lambda x: x)])]),), "and without one inside"),
        ((keras.layers.TimeDistributed(keras.layers.Lambda(lambda x: x)), "tokens"), "and without one inside"),
        ((keras.layers.Dense(2, name="features"),), 'cannot have the name "features"'),
        ((keras.layers.Dense(2, name="block_head"),), 'cannot have the name "block_head"'),
        ((keras.layers.Dense(2, name="patch_encoder"),), 'cannot have the name "patch_encoder"'),
        ((keras.layers.Dense(2), "logits"), 'unknown on="logits". Valid: features, tokens, feature_map'),
        ((keras.layers.Dense(2), "features", ["a"]), r"1 names for outputs of shape \(None, 2\)"),
    ],
)
def test_mistakes_are_clear_errors(vit, arguments, message):
    with pytest.raises(ValueError, match=message):
        vit.with_head(*arguments)


def functional_softmax():
    x = keras.Input((16,))
    return keras.Model(x, keras.ops.softmax(keras.layers.Dense(2)(x)))


@pytest.mark.parametrize(
    "head",
    [
        lambda: keras.layers.Dense(2, activation="softmax"),
        lambda: keras.Sequential([keras.Sequential([keras.layers.Dense(2), keras.layers.Activation("softmax")])]),
        functional_softmax,
    ],
)
def test_probabilities_are_not_taken_for_logits(vit, head, tmp_path):
    with pytest.raises(ValueError, match="class_names are for a head that returns logits"):
        vit.with_head(head(), class_names=["a", "b"])
    model = vit.with_head(head())
    model.classes = 2
    with pytest.raises(ValueError, match="would apply one twice"):
        keras_vit.export(model, tmp_path / "x")


def test_other_formats_and_changes_are_refused(vit, tmp_path):
    model = MAKERS["dense"](vit)
    with pytest.raises(ValueError, match="cannot express this Model"):
        keras_vit.save(model, tmp_path / "m.npz")
    keras_vit.save(model, tmp_path / "m.keras")
    with pytest.raises(ValueError, match="loading with changes cannot keep its head"):
        keras_vit.load(tmp_path / "m.keras", image_size=16)


@pytest.mark.extended
@pytest.mark.parametrize("nested", [False, True])
def test_the_vit_inside_is_adapted_without_the_own_head(vit, tmp_path, nested):
    image = keras.Input((*vit.image_size, 3))
    model = keras_vit.Model(image, keras.layers.Dense(2)(vit(image))) if nested else MAKERS["dense"](vit)
    keras_vit.save(model, tmp_path / "m.keras")
    new = keras_vit.load(tmp_path / "m.keras", classes=7, head="reset", image_size=16)
    assert type(new) is keras_vit.ViT and new.classes == 7 and new.image_size == (16, 16)
    bare = keras_vit.checkpoints.transfer(model, head="drop")
    x = np.random.default_rng(0).uniform(0, 255, (2, *vit.image_size, 3)).astype("float32")
    expected = keras.Model(vit.input, vit.features)(x)
    np.testing.assert_allclose(bare(x), expected, atol=1e-6)


def test_a_class_of_the_users_own_is_loaded_too(vit, tmp_path):
    @keras.saving.register_keras_serializable(package="tests")
    class Mine(keras_vit.Model):
        """A subclass with the functional constructor."""

    model = Mine(vit.input, keras.layers.Dense(2)(vit.features))
    model.save(tmp_path / "m.keras")
    copy = keras_vit.load(tmp_path / "m.keras")
    assert type(copy) is Mine and copy.spec == vit.spec
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))


def altered(path, change):
    """The .keras file at `path` with `change` applied to its config, as another file."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                config = json.loads(data)
                change(config)
                data = json.dumps(config).encode()
            new.writestr(name, data)
    return out.getvalue()


def layer_of(config, name):
    return next(layer for layer in config["config"]["layers"] if layer["name"] == name)


FUNCTION = {"module": "keras.utils", "class_name": "function", "config": "get_file", "registered_name": "get_file"}
CALLBACK = {"module": "keras.callbacks", "class_name": "BackupAndRestore", "config": {"backup_dir": "/tmp"}}
# What a file could run: (changes of the layer "mine", changes of its config).
CODE = [
    ({"module": "keras.layers", "class_name": "Lambda", "registered_name": None}, {}),
    ({"module": "os", "class_name": "system", "registered_name": "nobodys>Layer"}, {}),
    ({"class_name": "TFSMLayer", "config": {"filepath": "/tmp", "name": "mine"}}, {}),
    ({}, {"activation": {"class_name": "__lambda__", "config": {"value": "4wAA"}}}),
    ({}, {"activation": FUNCTION}),
    ({}, {"kernel_initializer": {**CALLBACK, "registered_name": None}}),
]


@pytest.fixture(scope="module")
def dense_file(vit, tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "m.keras"
    MAKERS["dense"](vit).save(path)
    return path


@pytest.mark.parametrize("name", ["functional", "nested"])
def test_files_of_version_0_3_load(vit, tmp_path, name):
    """They do not say what the model was built on: a nested ViT says it itself."""

    def older(config):
        for key in ("spec", "preprocessing", "classes", "class_names", "dtype"):
            del config["config"][key]

    model = MAKERS[name](vit)
    model.save(tmp_path / "new.keras")
    (tmp_path / "old.keras").write_bytes(altered(tmp_path / "new.keras", older))
    copy = (keras_vit.load if name == "nested" else keras.saving.load_model)(tmp_path / "old.keras")
    assert copy.spec == (vit.spec if name == "nested" else None)
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))
    np.testing.assert_array_equal(attention_maps(copy, images(model)), attention_maps(model, images(model)))


def test_a_file_cannot_name_code(dense_file, tmp_path):
    def refused(change):
        (tmp_path / "m.keras").write_bytes(altered(dense_file, change))
        with pytest.raises(ValueError, match="which is not built from a file"):
            keras_vit.load(tmp_path / "m.keras")

    for of_layer, of_config in CODE:

        def change(config, of_layer=of_layer, of_config=of_config):
            layer_of(config, "mine").update(of_layer)
            layer_of(config, "mine")["config"].update(of_config)

        refused(change)
    refused(lambda config: layer_of(config, "mine").pop("module"))


def test_altered_sizes_are_refused(dense_file, vit, tmp_path):
    path = tmp_path / "m.keras"
    path.write_bytes(altered(dense_file, lambda config: config["config"]["spec"]["config"].update(depth=-1)))
    with pytest.raises(ValueError, match="depth must be a positive integer"):
        keras_vit.load(path)
    path.write_bytes(altered(dense_file, lambda config: layer_of(config, "mine")["config"].update(units=4)))
    with pytest.raises(ValueError, match="are not those of the model in its config"):
        keras_vit.load(path)
    nested(vit).save(path)
    path.write_bytes(altered(path, lambda config: layer_of(config, "vit")["config"]["variant"].update(depth=10**6)))
    with pytest.raises(ValueError, match="describes a model of 1,000,000 blocks"):
        keras_vit.load(path)


@pytest.mark.extended
def test_a_compiled_model_loads_without_its_optimizer(vit, tmp_path):
    """Also where the nested classifier was compiled: its optimizer's arrays are in the file."""
    inner = small_vit()
    model = nested(inner)
    for compiled in (inner, model):
        compiled.compile("adam", "mse", jit_compile=False)
        compiled.optimizer.build(compiled.trainable_variables)
    model.save(tmp_path / "m.keras")
    copy = keras_vit.load(tmp_path / "m.keras")
    assert not copy.compiled
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))


@pytest.mark.extended
def test_two_nested_models_are_saved_and_loaded(tmp_path):
    """The paths of their weights are the same."""
    image = keras.Input((8, 12, 3))
    model = keras_vit.Model(image, keras.layers.Average()([small_vit(depth=1, name=name)(image) for name in "ab"]))
    model.set_weights([np.full_like(weight, i) for i, weight in enumerate(model.get_weights())])
    keras_vit.save(model, tmp_path / "m.keras")
    for found, expected in zip(keras_vit.load(tmp_path / "m.keras").get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    model.weights[-1].assign(np.full(model.weights[-1].shape, np.nan))
    keras_vit.save(model, tmp_path / "nan.keras")
    with pytest.raises(ValueError, match="head/bias .1. are not finite"):
        keras_vit.load(tmp_path / "nan.keras")
