"""keras-vit segment and predict with a segmentation model: pictures, shares, masks, and what is refused."""

import csv
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import NAMED, every_weight, segmenting

import keras_vit
from trainers import classify, predict, segment


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "streets.keras"
    keras_vit.save(segmenting(), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two images of different sizes."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, shape in {"a": (300, 280, 3), "b": (20, 30, 3)}.items():
        (folder / f"{name}.png").write_bytes(tf.io.encode_png(rng.integers(0, 256, shape, "uint8")).numpy())
    return folder


@pytest.mark.extended
def test_pictures_and_shares(file, photos, tmp_path, binary):
    shares = list(csv.DictReader(io.StringIO(binary(segment, file, photos, output=tmp_path, alpha=1, csv=True))))
    found = keras_vit.load(file).segment(photos / "a.png")
    expected = {share.name: share.share for share in found.shares}
    given = {row["class"]: float(row["share"]) for row in shares if row["image"].endswith("a.png")}
    assert given == pytest.approx(expected, rel=1e-4)
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    np.testing.assert_array_equal(picture[:300, :280], np.array(found.colors, "uint8")[found.classes])


@pytest.mark.extended
def test_an_export_makes_the_same_pictures(file, photos, tmp_path, binary):
    keras_vit.export(keras_vit.load(file), tmp_path / "exported")
    for model, out in ((file, "one"), (tmp_path / "exported", "other")):
        binary(segment, model, photos / "b.png", output=tmp_path / out)
    assert (tmp_path / "one" / "b.png").read_bytes() == (tmp_path / "other" / "b.png").read_bytes()
    with pytest.raises(ValueError, match="an export, which sees images whole"):
        binary(segment, tmp_path / "exported", photos / "b.png", output=tmp_path, flips=True)
    with pytest.raises(ValueError, match="keras-vit segment .* IMAGES"):
        binary(classify, tmp_path / "exported", photos / "b.png")


@pytest.mark.extended
def test_an_image_that_cannot_be_read_is_named(file, photos, tmp_path, binary, capsys):
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(SystemExit) as ended:
        binary(segment, file, tmp_path / "broken.png", photos / "b.png", output=tmp_path / "look")
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert f"{tmp_path}/broken.png: It cannot be decoded" in printed.err
    assert "1 of 2 images cannot be read." in printed.err
    assert NAMED[0] in printed.out or NAMED[1] in printed.out or NAMED[2] in printed.out


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("{file}",), {}, "Give a model and at least one image"),
        (("{classifier}", "{photos}/b.png"), {}, "classifies whole images: keras-vit classify"),
        (("{file}", "{photos}/b.png"), {"output": "{photos}"}, "would be replaced"),
    ],
)
def test_what_segment_refuses(words, options, message, file, photos, tmp_path, binary):
    keras_vit.save(every_weight(), tmp_path / "classifier.keras")
    places = {"file": file, "photos": photos, "classifier": tmp_path / "classifier.keras"}
    options = {"output": str(tmp_path / "out"), **{name: text.format(**places) for name, text in options.items()}}
    with pytest.raises(ValueError, match=message):
        binary(segment, *(word.format(**places) for word in words), **options)


@pytest.mark.extended
def test_predict_writes_masks(file, photos, tmp_path, binary):
    out = binary(predict, model=str(file), data=f"images:{photos}", output=tmp_path, batch_size=2)
    assert "train: wrote 2 masks of 2 to" in out
    found = keras_vit.load(file).segment(photos / "b.png").classes
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "train" / "b.png")), found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answers": "logits"}, "Valid for this model: masks, features"),
        ({"answers": "masks,features"}, "--answers=masks stands alone"),
        ({"format": "tfrecord"}, "--format would be ignored"),
        ({"answers": "features", "flips": True}, "--flips would be ignored"),
    ],
)
def test_what_predict_refuses(options, message, file, photos, tmp_path, binary):
    with pytest.raises(ValueError, match=message):
        binary(predict, model=str(file), data=f"images:{photos}", output=tmp_path, **options)
