"""What a .keras file, a clone and a model around keep of how a model is trained."""

import functools
import json

import keras
import numpy as np
import pytest
import safetensors.numpy
from small_models import data

import keras_vit
from keras_vit.fit.state import restore
from keras_vit.models import freeze, freeze_all_but_head
from keras_vit.training import (
    AdamW,
    Cutmix,
    Mixup,
    MixupOrCutmix,
    Mosaic,
    SceneMixup,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
)

X, Y = data(8)


@pytest.fixture
def tiny(tiny):
    """One block is enough here."""
    return functools.partial(tiny, depth=1)


def trainable(model):
    return sorted(v.path.split("/", 1)[1] for v in model.trainable_variables)


def reloaded(model, path):
    """The model after each way of loading, {name: model}."""
    model.save(path)
    return {"load_model": keras.saving.load_model(path), "load": keras_vit.load(path), "clone": model.clone()}


@pytest.mark.extended
def test_files_and_clones_know_which_probabilities_the_loss_was_of(tiny, tmp_path):
    model = tiny()
    for loss, activation in (
        ("mse", None),
        (keras.losses.BinaryCrossentropy(from_logits=True), "sigmoid"),
        (SoftmaxCrossEntropy(), "softmax"),
        (SigmoidCrossEntropy(), "sigmoid"),
    ):
        model.compile("sgd", loss)
        assert model.clone().activation == activation
    for way, copy in reloaded(model, tmp_path / "m.keras").items():
        assert copy.activation == "sigmoid", way
    keras_vit.save(model, tmp_path / "weights.keras")
    assert keras_vit.load(tmp_path / "weights.keras").activation == "sigmoid"


@pytest.mark.extended
def test_a_sigmoid_stays_with_its_head(tiny, tmp_path):
    """Another size, other names or another dtype leave the logits as they are, and so their probabilities."""
    model, gap = tiny(), tiny(pool="gap")
    kept = ({"class_names": list("abcde"), "dropout": 0.1}, {"image_size": (16, 12), "dtype": "mixed_bfloat16"})
    for place, changes in (("m.keras", kept), ("timm", kept[:1]), ("huggingface", ({},)), ("m.npz", ({},))):
        one = gap if place == "m.npz" else model
        one.compile("sgd", SigmoidCrossEntropy())
        keras_vit.save(one, tmp_path / place, format=place if "." not in place else None)
        for change in changes:
            assert keras_vit.load(tmp_path / place, **change).activation == "sigmoid", (place, change)
        assert keras_vit.load(tmp_path / place, head="drop").activation is None, place
    assert keras_vit.load(tmp_path / "m.keras", head="reset", classes=5).activation is None


def test_so_does_it_in_models_around_and_in_clones_by_keras(tiny):
    model = tiny()
    model.activation = "sigmoid"
    image = keras.Input((8, 12, 3))
    assert keras_vit.Model(image, model(image)).activation == "sigmoid"
    headed = tiny().with_head(keras.layers.Dense(2, name="mine"), class_names=["a", "b"])
    headed.activation = "sigmoid"
    assert keras.models.clone_model(headed).activation == "sigmoid"


def test_transformers_are_told_of_several_labels(tiny, tmp_path):
    """Their pipeline takes the sigmoid then; without our metadata it is read from there."""
    model = tiny()
    for activation, stated in (("sigmoid", "multi_label_classification"), ("softmax", None), (None, None)):
        model.activation = activation
        keras_vit.save(model, tmp_path / "hf", format="huggingface")
        assert json.loads((tmp_path / "hf" / "config.json").read_text()).get("problem_type") == stated
        if stated:
            arrays = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
            safetensors.numpy.save_file(arrays, tmp_path / "hf" / "model.safetensors")
            assert keras_vit.load(tmp_path / "hf").activation == "sigmoid"


@pytest.mark.extended
def test_files_leave_the_optimizer_out_and_the_model_keeps_it(tiny, tmp_path, eagerly):
    model = tiny()
    keras_vit.save(model, tmp_path / "new.keras")
    model.compile(AdamW(1e-3), SoftmaxCrossEntropy(), jit_compile=False)
    model.fit(X, Y, batch_size=8, verbose=0)
    keras_vit.save(model, tmp_path / "trained.keras")
    new, trained = ((tmp_path / name).stat().st_size for name in ("new.keras", "trained.keras"))
    assert trained < 1.1 * new
    assert model.compiled and model.optimizer.iterations == 1
    model.fit(X, Y, batch_size=8, verbose=0)
    assert model.optimizer.iterations == 2


def freezers():
    def nested(model):
        model.get_layer("block_00").attention.trainable = False

    def everything(model):
        model.trainable = False

    return {
        "head only": freeze_all_but_head,
        "by name": lambda model: freeze(model, ["block_0*"]),
        "inside a block": nested,
        "everything": everything,
    }


@pytest.mark.extended
def test_frozen_layers_stay_frozen(tiny, tmp_path):
    for name, freeze_some in freezers().items():
        model = tiny()
        freeze_some(model)
        copies = reloaded(model, tmp_path / "m.keras") if name == "inside a block" else {"clone": model.clone()}
        for way, copy in copies.items():
            assert trainable(copy) == trainable(model), (name, way)
            np.testing.assert_array_equal(copy(X), model(X))


@pytest.mark.extended
@pytest.mark.parametrize("cls", [keras_vit.SegmentationModel, keras_vit.DetectionModel])
def test_a_frozen_encoder_of_a_model_with_a_dense_head_stays_frozen(tiny, cls, tmp_path):
    """Whatever its name: the input of a model called "vit" is "image", that of another is not."""
    for name in ("vit", "left"):
        model = cls(tiny(classes=None, name=name), classes=3)
        for layer in model.get_encoder().layers:  # with the input
            layer.trainable = False
        for way, copy in reloaded(model, tmp_path / "m.keras").items():
            assert trainable(copy) == trainable(model) != [], (name, way)


@pytest.mark.extended
def test_frozen_layers_of_a_bit_and_of_a_model_with_another_head_stay_frozen(tiny, tmp_path):
    bit = keras_vit.BiT(keras_vit.BiTSpec((1,), 0.5), image_size=32, classes=3)
    headed = tiny().with_head(keras.layers.Dense(2, name="mine"))
    for model in (bit, headed):
        freeze_all_but_head(model)
        assert len(model.trainable_variables) == 2 and trainable(model.clone()) == trainable(model)
    for way, copy in reloaded(headed, tmp_path / "m.keras").items():
        assert trainable(copy) == trainable(headed), way


@pytest.mark.parametrize("outer", [keras.Model, keras_vit.Model])
def test_a_frozen_vit_inside_another_model_stays_frozen(tiny, tmp_path, outer):
    vit = tiny(classes=None)
    vit.trainable = False
    inputs = keras.Input((8, 12, 3))
    model = outer(inputs, keras.layers.Dense(2, name="mine")(vit(inputs)))
    model.save(tmp_path / "m.keras")
    assert len(keras.saving.load_model(tmp_path / "m.keras").trainable_variables) == len(model.trainable_variables) == 2


@pytest.mark.extended
def test_micro_batches_and_mixing_are_kept(tiny, tmp_path):
    model = tiny()
    headed = model.with_head(keras.layers.Dense(5, name="mine"))
    scenes = [(model, Mosaic(0.5, 0.3, seed=2)), (model, SceneMixup(8.0, 0.3, seed=2))]
    others = [(model, Mixup(0.2, 5)), (model, MixupOrCutmix(0.8, 1.0, 5)), (headed, Cutmix(1.0, 5, seed=3))]
    for one, mixing in scenes + others:
        one.mixing, one.micro_batches = mixing, 4
        clone = one.clone()
        assert (clone.mixing, clone.micro_batches) == (mixing, 4)
    for way, copy in reloaded(headed, tmp_path / "m.keras").items():
        assert (copy.mixing, copy.micro_batches) == (mixing, 4), way


def test_another_mixing_is_not_saved_and_says_so(tiny, tmp_path):
    model = tiny()
    model.mixing = lambda images, labels, step: (images, labels)
    with pytest.warns(UserWarning, match="is not saved with the model"):
        model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").mixing is None


def test_a_new_model_from_a_frozen_one_trains_whole(tiny, tmp_path):
    """load with changes makes another model, for another task."""
    model = tiny()
    freeze_all_but_head(model)
    model.micro_batches = 2
    keras_vit.save(model, tmp_path / "m.keras")
    other = keras_vit.load(tmp_path / "m.keras", classes=3, head="reset")
    assert len(other.trainable_variables) == len(other.weights) and other.micro_batches == 1


def test_a_state_that_the_model_cannot_have_is_refused(tiny):
    config = tiny().get_config()
    for state in (3, {"frozen": ["block_77"]}, {"micro_batches": 0}, {"mixing": {"name": "os.system"}}):
        with pytest.raises(ValueError, match='config has a "training" that this model cannot have'):
            keras_vit.ViT.from_config({**config, "training": state})


def test_inputs_among_the_frozen_layers_of_older_files_are_left_out(tiny):
    model = tiny(name="left")
    restore(model, {"frozen": ["image", "head"]})
    assert not model.get_layer("head").trainable
