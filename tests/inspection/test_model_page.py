"""The page about a model: its sections for every kind of model, what it says where something does not apply, its files
and folder.
"""

import json
import os

import keras
import numpy as np
import pytest
from pages import Page
from small_models import NAMED, detecting, segmenting

import keras_vit
from keras_vit.inspection import attention_maps, head_statistics
from keras_vit.inspection.model_page import check_place, class_number, inspect_model, write_page

pytest.importorskip("matplotlib")
NAMES = ["猫 <b>&.png", "שלום.jpg", "c.png", "d.png"]
PICTURES = {"filters.png", "positions.png", "attention_distance.png", "attention_entropy.png", "images.png", "cka.png"}


def bit(classes=4):
    model = keras_vit.BiT("R50x1", image_size=32, classes=classes, units=(1, 1), width_factor=0.5)
    if classes:
        model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(256, classes)))
    return model


def images_for(model, count=4):
    return np.random.default_rng(0).integers(0, 256, (count, *model.image_size, model.channels), dtype="uint8")


@pytest.fixture
def page(tmp_path):
    """Writes a model's page, and reads it: (Page, the numbers, the names of the files)."""

    def write(model, count=4, **options):
        folder = tmp_path / "look"
        write_page(folder, "Inside <it>", inspect_model(model, images_for(model, count), NAMES[:count], **options))
        found = Page((folder / "index.html").read_text("utf-8"))
        assert found.links() == [] and len(found.ids()) == len(set(found.ids()))
        return found, json.loads((folder / "inspection.json").read_text()), set(os.listdir(folder))

    return write


@pytest.mark.extended
def test_a_segmentation_models_page_shows_the_classes_of_pixels(page):
    model = segmenting()
    found, _, files = page(model, show=2)
    assert found.headings[0] == "Images" and files >= PICTURES
    assert found.count("img") == 2 * (5 + 1) + 2  # an image, classes, rollout, two of colours, and one block's heads
    logits = model.predict(images_for(model), verbose=0)
    for ids in logits[[0, 3]].argmax(-1):  # evenly spread: the first and the last
        assert all(f"{NAMED[i]} {np.mean(ids == i):.0%}" in found.text for i in np.unique(ids))
    assert "segmentation, 15,139 parameters" in found.text and "3, of pixels" in found.text
    with pytest.raises(ValueError, match="has no class maps"):
        page(model, chosen_class="dog")


@pytest.mark.extended
def test_a_detectors_page_shows_its_objects(page):
    model = detecting(score_threshold=0.05)
    found, _, _ = page(model, show=1, count=2)
    [name, *_] = names = model.detect(images_for(model)[0]).names
    count = names.count(name)
    assert f"{count} {name}" in found.text and "3, of objects" in found.text and "finds objects" in found.text
    with pytest.raises(ValueError, match="has no class maps"):
        page(model, chosen_class="dog")


@pytest.mark.extended
def test_a_vits_page_has_every_section_and_its_files(tiny, page):
    model = tiny(class_names=["猫", "<i>dog</i>", "c", "d", "e"])
    found, numbers, files = page(model, show=2)
    assert found.headings == [
        "Images",
        "Filters of the patch embedding",
        "Position embeddings",
        "How far and how widely heads look",
        "How similar the layers are",
    ]
    assert files == {"index.html", "inspection.json", "heads_00.png", "heads_01.png"} | PICTURES
    assert found.count("article") == 2 and found.count("details") == 2
    assert found.count("img") == 2 * (5 + 2) + 2  # an image's five pictures and two blocks; filters, positions
    assert "猫 <b>&.png" in found.text and "d.png" in found.text and "c.png" not in found.text
    assert "Inside <it>" in found.text and found.text.count("predicted: ") == 2
    for row in (
        ["blocks", "2 of 2 heads, width 16"],
        ["patches", "2 rows of 3, one for each 4x4 pixels"],
        ["measured on", "4 images, 2 of them shown"],
    ):
        assert row in found.rows
    np.testing.assert_allclose(numbers["distance"], head_statistics(model, images_for(model)).distance, rtol=1e-5)
    assert numbers["images"] == NAMES and np.shape(numbers["cka"]) == (2, 2)
    assert 0 < sum(numbers["filter_shares"]) <= 1.0001


@pytest.mark.parametrize(
    "options",
    [
        {"registers": 2, "channels": 1, "positions": "sincos2d", "image_size": (16, 16), "conv_stem": (8,)},
        *(
            pytest.param(options, marks=pytest.mark.extended)
            for options in (
                {"pool": "map", "channels": 4, "patch_size": (8, 2)},
                {"variant": "R50+B/16", "image_size": (32, 32), "stem": (1,), "stem_width": 32, "patch_size": 1},
            )
        ),
    ],
    ids=lambda options: "-".join(options),
)
def test_every_kind_of_vit_has_all_of_it(tiny, page, options):
    model = tiny(**options)
    for head in model.heads():
        head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    found, _, files = page(model, show=1)
    assert (
        files > PICTURES
        and "There are no maps" not in found.text
        and "No class maps" not in found.text
        and len(found.headings) == 5
    )
    assert ("Filters of the first convolution" in found.headings) == ("stem" in options or "conv_stem" in options)
    assert ("fixed sines and cosines" in found.text) == ("positions" in options)


@pytest.mark.extended
def test_the_page_of_a_model_of_pre_training_is_its_encoders(page):
    sizes = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    sizes |= {"decoder_depth": 1, "decoder_width": 16, "decoder_heads": 2}
    found, _, files = page(keras_vit.MaskedAutoencoder("Ti/8", image_size=16, **sizes))
    assert "Images" in found.headings and "heads_00.png" in files
    assert ["blocks", "1 of 2 heads, width 16"] in found.rows


@pytest.mark.extended
def test_a_palettes_page_has_its_colours_in_place_of_filters(tiny, page):
    model = tiny("Ti/1", image_size=(4, 6), palette=8, causal=True, class_token=True, pool="gap")
    found, numbers, files = page(model, show=1)
    assert files > PICTURES and "Palette" in found.headings and "The 8 colours of the palette" in found.text
    assert numbers["palette"] == model.get_layer("patch_encoder").palette.numpy().tolist()


@pytest.mark.extended
def test_a_bits_page_says_what_it_has_none_of(page):
    found, numbers, files = page(bit(), show=1)
    assert files == {"index.html", "inspection.json", "filters.png", "cka.png", "images.png"}
    for sentence in ("A BiT has no attention, and so no rollout", "A BiT has none.", "A BiT has no attention."):
        assert sentence in found.text
    assert "on the last feature map" in found.text and found.count("details") == 0 and "distance" not in numbers


@pytest.mark.extended
def test_what_does_not_apply_is_a_sentence(tiny, page):
    features = tiny(classes=None)
    assert "no head, or its outputs are not known to be classes" in page(features, count=3)[0].text
    found, _, files = page(features, count=3)
    assert "It needs 4 or more, and this page has 3" in found.text and "cka.png" not in files
    maps = features.with_head(keras.layers.Conv2D(2, 1), on="feature_map")
    assert "(None, 2, 3, 2) are not one number per class" in page(maps, show=1)[0].text
    untrained = keras_vit.ViT("Ti/4", image_size=(8, 12), classes=3, depth=1, width=16, heads=2, mlp_dim=16)
    assert "the head is all zeros" in page(untrained, show=1)[0].text
    image = keras.Input((8, 12, 3))
    beside = keras.layers.Concatenate()([features(image), keras.layers.Flatten()(image)])
    own = keras_vit.Model(image, keras.layers.Dense(2)(beside))
    assert "depends on more than the outputs" in page(own, show=1, chosen_class=1)[0].text


@pytest.mark.extended
def test_a_class_may_be_chosen_by_number_or_name(tiny, page):
    model = tiny(class_names=["猫", "3", "c", "d", "Egyptian cat"])
    assert class_number(model, "egyptian CAT") == 4 and class_number(model, "3") == 1 and class_number(model, "4") == 4
    with pytest.raises(ValueError, match='no class "Egyptian cta". Did you mean "Egyptian cat"'):
        class_number(model, "Egyptian cta")
    with pytest.raises(ValueError, match="Expected a number from 0 to 4; the model has no class names"):
        class_number(tiny(), "5")
    with pytest.raises(ValueError, match="Its outputs are not classes"):
        class_number(tiny(classes=None).with_head(keras.layers.Conv2D(2, 1), on="feature_map"), "0")
    with pytest.raises(ValueError, match='has no class "5". Its outputs are not classes'):
        class_number(tiny(classes=None), "5")
    assert page(model, show=1, chosen_class="猫")[0].text.count("class map: 猫") == 1
    unnamed = tiny(classes=None).with_head(keras.layers.Dense(3))
    assert "class map: class 2" in page(unnamed, show=1, chosen_class=2)[0].text


def test_images_without_names_or_none_at_all(tiny):
    with pytest.raises(ValueError, match="a name for each, got 4 images and 1 names"):
        inspect_model(tiny(), np.zeros((4, 8, 12, 3)), ["a"])
    with pytest.raises(ValueError, match="got 0 images"):
        inspect_model(tiny(), np.zeros((0, 8, 12, 3)), [])


@pytest.mark.extended
def test_only_an_earlier_page_is_replaced(tiny, tmp_path):
    model, look = tiny(depth=1), tmp_path / "look"
    parts = inspect_model(model, images_for(model), NAMES, show=3)
    write_page(look, "first", parts)
    assert (look / "heads_02.png").exists()
    write_page(look, "second", inspect_model(model, images_for(model), NAMES, show=1))
    assert not (look / "heads_02.png").exists() and "second" in (look / "index.html").read_text()
    (look / "mine.txt").write_text("kept")
    for place, message in (
        ("look", "contains files that are not from an earlier page and would be lost: mine.txt"),
        ("look/mine.txt", "is a file"),
    ):
        with pytest.raises(ValueError, match=message):
            write_page(tmp_path / place, "third", parts)
    with pytest.raises(ValueError, match="in a bucket"):
        check_place("gs://bucket/look")
    assert (look / "mine.txt").read_text() == "kept" and "second" in (look / "index.html").read_text()


@pytest.mark.parametrize("name", ["index.html", "images.png"])
def test_somebody_elses_page_is_not_replaced(name, tmp_path):
    (tmp_path / name).write_text("theirs")
    with pytest.raises(ValueError, match=f"and would be lost: {name}. Give a new"):
        check_place(tmp_path)


@pytest.mark.extended
def test_on_real_weights_cats_are_lit_and_positions_are_near_themselves(shared_data, of_deit):
    from keras_vit.inspection import first_filters, nearest_is_neighbour, patch_positions, position_similarity

    model = keras_vit.load(shared_data / "deit_tiny" / "model.safetensors", **of_deit)
    pixels = model.preprocess(shared_data / "deit_tiny" / "cats.png")[None]
    table, grid, _ = patch_positions(model)
    similarity = position_similarity(table, grid)
    assert nearest_is_neighbour(similarity) == 1
    assert (similarity.reshape(196, 196).argmax(1) == np.arange(196)).all()
    kernel = first_filters(model).kernel
    smooth, rough = (np.abs(np.diff(k, axis=0)).mean() for k in (kernel, np.random.default_rng(0).permutation(kernel)))
    assert smooth < 0.98 * rough  # neighbouring rows are more alike than rows at random
    [flow] = attention_maps(model, pixels)
    cats, blanket = flow[:6, :4].mean(), flow[8:, 4:8].mean()
    assert cats > 1.3 * blanket
    statistics = head_statistics(model, pixels)
    assert statistics.distance[:3].min() < 30 < 100 < statistics.distance[-1].min()
