"""Copies of a model, and several models in one graph."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import BiTSpec


def head(model):
    return model.with_head(keras.layers.Dense(3, name="mine"), class_names=list("abc"))


def test_clone_model_is_refused_with_what_to_write(tiny):
    fields = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    models = [
        tiny(depth=1),
        keras_vit.MaskedPatchPredictor("Ti/4", 8, **fields),
        keras_vit.ImageGPT("Ti/1", 4, palette=4, **fields),
        keras_vit.DINO(keras_vit.ViT("Ti/4", 8, None, **fields), outputs=4, hidden=4, bottleneck=2, local_crops=0),
        keras_vit.Distilled(*(keras_vit.ViT("Ti/4", 8, 3, **fields) for _ in range(2))),
    ]
    for model in models:
        with pytest.raises(ValueError, match=r"Write model.clone\(\)"):
            keras.models.clone_model(model)
    for options in ({"clone_function": lambda layer: layer}, {"input_tensors": keras.Input((8, 12, 3))}):
        with pytest.raises(ValueError, match=r"Write model.clone\(\)"):
            keras.models.clone_model(models[0], recursive=True, **options)


def test_clone_model_of_a_model_built_on_a_vit_knows_as_much(tiny, pixels):
    model = head(tiny(preprocessing="decode|resize(8, 12)"))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(pixels), model(pixels))
    for name in ("spec", "preprocessing", "classes", "class_names", "image_size"):
        assert getattr(clone, name) == getattr(model, name)
    other = keras_vit.Model(model.input, keras.layers.Dense(3)(model.layers[-2].output))
    assert other.class_names is None


def test_clone_model_of_a_users_model_keeps_the_vit_in_it(tiny, pixels):
    image = keras.Input((8, 12, 3))
    model = keras.Model(image, tiny(class_names=list("abcde"))(image))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert type(clone.layers[-1]) is keras_vit.ViT and clone.layers[-1].class_names == tuple("abcde")
    np.testing.assert_array_equal(clone(pixels), model(pixels))


@pytest.mark.extended
@pytest.mark.parametrize("make", [lambda model: model, head], ids=["vit", "with_head"])
def test_python_copies_are_whole_and_independent(tiny, pixels, make):
    model = make(tiny(depth=1, preprocessing="decode|resize(8, 12)", dropout=0.1))
    before = np.asarray(model(pixels))
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model) and other.spec == model.spec
        assert json.dumps(other.get_config()) == json.dumps(model.get_config())
        assert other.class_names == model.class_names and other.preprocessing == model.preprocessing
        np.testing.assert_array_equal(other(pixels), before)
        other.set_weights([0 * w for w in other.get_weights()])
        np.testing.assert_array_equal(model(pixels), before)


def test_a_clone_takes_another_name(tiny, pixels):
    model = tiny(class_names=list("abcde"))
    other = model.clone(name="left")
    assert (other.name, other.input.name, model.input.name) == ("left", "left_image", "image")
    np.testing.assert_array_equal(other(pixels), model(pixels))


def test_the_input_is_named_after_the_model():
    size = {"image_size": 8, "classes": 2, "depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    assert keras_vit.ViT("Ti/4", **size).input.name == "image"
    assert keras_vit.ViT("Ti/4", name="left", **size).input.name == "left_image"
    new = [keras_vit.ViT("Ti/4", name=None, **size) for _ in range(2)]
    assert new[0].name != new[1].name and all(model.input.name == f"{model.name}_image" for model in new)
    assert keras_vit.BiT(BiTSpec((1,), 0.5), image_size=32, name="right").input.name == "right_image"


def towers(a, b):
    return keras_vit.Model([a.input, b.input], keras.layers.Average()([a(a.input), b(b.input)])), 2


def named_towers(a, b):
    inputs = {"left": keras.Input((8, 12, 3), name="left"), "right": keras.Input((8, 12, 3), name="right")}
    return keras_vit.Model(inputs, keras.layers.Average()([a(inputs["left"]), b(inputs["right"])])), "left right"


def shared(a, b):
    images = [keras.Input((8, 12, 3)) for _ in range(2)]
    return keras_vit.Model(images, keras.layers.Subtract()([a(images[0]), a(images[1])])), 2


@pytest.mark.parametrize(
    "make", [towers, *(pytest.param(make, marks=pytest.mark.extended) for make in (named_towers, shared))]
)
def test_two_models_in_one_graph(tiny, pixels, tmp_path, make, eagerly):
    """Built, trained, evaluated, saved, loaded, cloned; traced once, with two inputs of names."""
    eagerly(make is not named_towers)
    model, inputs = make(tiny(name="a", depth=1), tiny(name="b", depth=1, pool="gap"))
    x = [pixels, pixels[::-1]] if inputs == 2 else {"left": pixels, "right": pixels[::-1]}
    before = model.get_weights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(x, np.array([0, 1, 2, 3]), verbose=0)
    assert any((a != b).any() for a, b in zip(before, model.get_weights()))
    assert np.isfinite(model.evaluate(x, np.array([0, 1, 2, 3]), verbose=0))
    y = np.asarray(model(x))
    model.save(tmp_path / "m.keras")
    for other in (keras_vit.load(tmp_path / "m.keras"), keras.saving.load_model(tmp_path / "m.keras"), model.clone()):
        np.testing.assert_allclose(other(x), y, atol=1e-5)


@pytest.mark.extended
def test_loaded_models_get_names_of_their_own(tiny, pixels, tmp_path):
    keras_vit.save(tiny(depth=1), tmp_path / "m.keras")
    a, b = (keras_vit.load(tmp_path / "m.keras", name=name) for name in "ab")
    model, _ = towers(a, b)
    np.testing.assert_allclose(model([pixels, pixels]), a(pixels), atol=1e-6)


def test_names_that_collide_are_explained(tiny):
    with pytest.raises(ValueError, match=r"give each a different name, ViT\(..., name=.left.\)"):
        towers(tiny(depth=1), tiny(depth=1))
    a, b = (tiny(name=name, depth=1) for name in "ab")
    with pytest.raises(ValueError, match="and call it: left.left.input.*Their blocks have the same names"):
        keras_vit.Model([a.input, b.input], keras.layers.Average()([a.output, b.output]))
