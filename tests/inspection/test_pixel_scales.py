"""Every public function that takes a model and pixels refuses those on another scale, as predict does."""

import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection, models
from keras_vit.inspection.model_page.page import inspect_model


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


CALLS = {
    "attention_maps": inspection.attention_maps,
    "attention_weights": inspection.attention_weights,
    "class_maps": lambda model, images: inspection.class_maps(model, images, 0),
    "each_attention": lambda model, images: list(inspection.each_attention(model, images)),
    "head_maps": inspection.head_maps,
    "head_statistics": inspection.head_statistics,
    "inspect_model": lambda model, images: inspect_model(model, images, [str(i) for i in range(len(images))]),
    "layer_similarity": inspection.layer_similarity,
    "predict": lambda model, images: model.predict(images, verbose=0),
    "whiten": models.whiten,
}


def test_no_function_of_inspection_is_missing():
    of_images = {
        name
        for name in inspection.__all__
        if {"model", "images"} <= inspect.signature(getattr(inspection, name)).parameters.keys()
    }
    assert of_images and of_images <= CALLS.keys()


@pytest.mark.extended
@pytest.mark.parametrize("name", CALLS)
def test_normalised_images_are_refused(tiny, pixels, name):
    model = tiny()
    for images in (pixels / 255, (pixels / 127.5 - 1).astype("float32")):
        with pytest.raises(ValueError, match="look normalised.*expects pixels 0..255"):
            CALLS[name](model, images)
    if name == "inspect_model":  # drawing takes seconds
        return
    CALLS[name](model, pixels)
    model.check_pixels = False
    CALLS[name](model, pixels / 255)


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"inspect_model", "whiten"}))
def test_layers_before_the_vit_count(tiny, pixels, name):
    inputs = keras.Input((8, 12, 3))
    model = keras_vit.Model(inputs, tiny()(keras.layers.Rescaling(255.0)(inputs)))
    CALLS[name](model, pixels / 255)
    with pytest.raises(ValueError, match="16-bit images behind the layer rescaling"):
        CALLS[name](model, pixels)


@pytest.mark.extended
def test_the_page_of_a_model_for_smaller_values_shows_photographs(tiny, pixels):
    vit = tiny(mean=0.5, std=0.5)
    sections = [inspect_model(vit, vit.preprocess(list(pixels)), list("abcd"))]
    sections.append(inspect_model(tiny(), pixels, list("abcd")))
    small, whole = ({part.title: part for part in each}["Images"] for each in sections)
    assert small.body.count("<img") == whole.body.count("<img")
    first = [part.body.split('src="')[1].split('"')[0] for part in (small, whole)]  # of the first image itself
    assert first[0] == first[1]


def test_an_image_gpt_refuses_them(pixels):
    model = keras_vit.ImageGPT("iGPT-S", image_size=(8, 12), palette=8, depth=1, width=16, heads=2)
    for call in (model.colors, lambda images: model.sample(prompt=images)):
        with pytest.raises(ValueError, match="look normalised"):
            call(pixels / 255)


@pytest.mark.extended
@pytest.mark.usefixtures("openvino")
def test_a_runner_refuses_them(tiny, pixels):
    model = tiny(depth=1)
    run = keras_vit.serving.runner(model, "openvino")
    with pytest.raises(ValueError, match="look normalised"):
        run(pixels / 255)
    np.testing.assert_allclose(run(pixels), model(pixels), atol=1e-4)
    model.check_pixels = False
    assert run(pixels / 255).shape == (4, 5)
