"""Which files a text names, and what is read of them."""

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.inspection import photographs


@pytest.fixture
def folder(tmp_path):
    """Images in a folder and one below it, and other files."""
    for name in ("b.png", "a, b.jpg", "more/c.webp", "more/猫.png", "[x].bmp", "t.tif"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((20, 30, 3), 90, "uint8")).save(path)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "more" / "broken.jpg").write_bytes(b"\xff\xd8\xff no")
    return tmp_path


def names(text, folder):
    return [path.removeprefix(f"{folder}/") for path in photographs.find_images(text.replace("@", str(folder)))]


def test_files_folders_and_patterns(folder):
    everything = ["[x].bmp", "a, b.jpg", "b.png", "t.tif", "more/broken.jpg", "more/c.webp", "more/猫.png"]
    assert sorted(names("@", folder)) == sorted(everything)
    assert names("@/b.png", folder) == ["b.png"]
    assert names("@/*.png", folder) == ["b.png"] and names("@/**/*.png", folder) == ["b.png", "more/猫.png"]
    assert names("@/more/猫.png, @/b.png,@/b.png", folder) == ["more/猫.png", "b.png"]
    assert names("@/*", folder) == [
        "[x].bmp",
        "a, b.jpg",
        "b.png",
        "more/broken.jpg",
        "more/c.webp",
        "more/猫.png",
        "t.tif",
    ]
    assert names("@/a, b.jpg", folder) == ["a, b.jpg"] and names("@/[x].bmp", folder) == ["[x].bmp"]
    # Named outright: what is wrong with it is said when it is read.
    assert names("@/notes.txt", folder) == ["notes.txt"]


def test_what_is_not_there_is_said(folder):
    (folder / "empty").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"a\.pmg\" is neither a file nor a folder, nor a pattern that matches an image"
    ):
        names("@/a.pmg", folder)
    with pytest.raises(FileNotFoundError, match='Did you mean "b.png"'):
        names("@/b.pn", folder)
    with pytest.raises(FileNotFoundError, match=r"empty\" is a folder without images"):
        names("@/b.png,@/empty", folder)
    with pytest.raises(FileNotFoundError, match="No images given"):
        names(" , ", folder)


def test_pixels_are_the_models_own_and_broken_files_are_left_out(folder, tiny):
    model, done = tiny(), []
    paths = [str(folder / name) for name in ("b.png", "notes.txt", "more/broken.jpg", "t.tif", "gone.png")]
    pixels, read, failed = photographs.read_images(model, paths, lambda: done.append(1))
    assert read == [paths[0], paths[3]] and list(failed) == [paths[1], paths[2], paths[4]] and len(done) == 5
    np.testing.assert_array_equal(pixels[0], model.preprocess(paths[0]))
    assert pixels.dtype == "uint8" and (pixels == 90).all()
    assert failed[paths[1]].startswith("cannot be decoded as an image: It is not an image of a known format.")
    assert "\n" not in failed[paths[1]]
    assert "No such file" in failed[paths[4]]
    assert photographs.read_images(model, [])[0].shape == (0, 8, 12, 3)


def test_a_model_that_takes_crops_names_its_encoder(folder, tiny):
    heads = {"outputs": 4, "hidden": 4, "bottleneck": 4, "local_size": (8, 12), "local_crops": 1}
    model = keras_vit.DINO(tiny(classes=None), **heads)
    with pytest.raises(ValueError, match="does not take one image .*Use its encoder: .*--load.head=drop"):
        photographs.read_images(model, [str(folder / "b.png")])


def test_names_are_short_but_differ():
    assert photographs.short_names(["/x/a.png", "/x/y/b.png"]) == ["a.png", "b.png"]
    assert photographs.short_names(["/x/cat/1.png", "/x/car/1.png"]) == ["cat/1.png", "car/1.png"]
    assert photographs.short_names(["cat/1.png", "car/1.png"]) == ["cat/1.png", "car/1.png"]


def test_evenly_spread_numbers_begin_at_the_first():
    assert photographs.evenly(3, 5).tolist() == [0, 1, 2] and photographs.evenly(0, 5).tolist() == []
    assert photographs.evenly(9, 3).tolist() == [0, 4, 8] and photographs.evenly(9, 1).tolist() == [0]
    assert len(photographs.evenly(1000, 128)) == 128
