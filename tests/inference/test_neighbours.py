"""inference.neighbours and keras-vit search: the nearest by cosine, as NumPy finds them, in words and in a picture."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from small_models import every_weight, for_files

import keras_vit
from keras_vit.data import open_source
from keras_vit.inference import predict
from keras_vit.inference.neighbours import Index, Neighbour, features_of, pixels_of, read_index
from keras_vit.inspection import figures
from trainers import search


@pytest.fixture(scope="module")
def model():
    return for_files()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Nine images, and one that is cut short."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(9):
        pixels = rng.normal(rng.uniform(30, 220, 3), 40, (20, 30, 3)).clip(0, 255)
        (root / f"{i}.png").write_bytes(tf.io.encode_png(pixels.astype("uint8")).numpy())
    (root / "broken.png").write_bytes((root / "0.png").read_bytes()[:60])
    return root


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return str(path)


def features(n, d=6):
    return np.random.default_rng(0).normal(size=(n, d)).astype("float32")


def test_the_nearest_are_those_of_numpy():
    rows, queries = features(50), features(53)[50:]
    index = Index(rows, [f"{i}.png" for i in range(50)], ["train"] * 50, range(50))

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    cosines = unit(queries) @ unit(rows).T
    for found, expected in zip(index.nearest(queries, 4), cosines):
        best = np.argsort(-expected)[:4]
        assert [neighbour.row for neighbour in found] == best.tolist()
        np.testing.assert_allclose([neighbour.similarity for neighbour in found], expected[best], atol=1e-6)
    assert len(index.nearest(queries, 99)[0]) == 50


def test_an_image_far_from_all_others_is_marked():
    """What is usual are the similarities to the nearest other image, as NumPy finds them."""
    rows = features(30)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(30)
    index = Index(rows, [f"{i}.png" for i in range(30)], ["train"] * 30, range(30))
    usual = index.usual_similarities()
    np.testing.assert_allclose(usual, cosines.max(1), atol=1e-6)
    near, far = ([Neighbour(similarity, "1.png", "train", 1)] for similarity in (usual.max(), usual.min() - 0.1))
    lines = list(search._lines(["near.png", "far.png"], [near, far], usual))
    assert f"half have another one at {np.median(cosines.max(1)):.3f} or more" in lines[1]
    assert lines[2::2] == ["near.png:", "far.png: nothing in the index is near"]


def test_features_of_length_zero_are_like_nothing():
    index = Index(np.concatenate([np.zeros((1, 6), "float32"), features(3)]), list("abcd"), ["train"] * 4, range(4))
    [found] = index.nearest(features(1), 4)
    assert found[0].similarity == pytest.approx(1) and [n.similarity for n in found if n.row == 0] == [0]


@pytest.fixture(scope="module")
def indices(model, photos, tmp_path_factory):
    """Folders of features: parquet, of several files, and tfrecord."""
    folder = tmp_path_factory.mktemp("indices")
    source = open_source(f"images:{photos}", "train")
    for kind, rows in (("parquet", 4), ("tfrecord", 100)):
        options = {"batch_size": 2, "rows_per_file": rows, "format": kind, "about": {"data": source.name}}
        predict(model, source, folder / kind, ("features",), **options)
    return folder


@pytest.fixture
def index(indices, tmp_path):
    """A copy of the Parquet files, whose folder has one of the records beside it."""
    shutil.copytree(indices, tmp_path / "indices")
    return tmp_path / "indices" / "parquet"


@pytest.mark.extended
def test_an_index_is_what_predict_wrote(model, photos, indices):
    index = read_index(indices / "parquet")
    assert index.features.shape == (9, 32) and len(index.names) == 9  # without the one that cannot be read
    path = str(photos / "3.png")
    pixels = model.preprocess(path)
    [found] = index.nearest(features_of(model, pixels[None]), 3)
    assert found[0].name == path and found[0].similarity == pytest.approx(1, abs=1e-6)
    shown = pixels_of(index, found)
    np.testing.assert_array_equal(shown[0], pixels)
    np.testing.assert_array_equal(shown[2], model.preprocess(found[2].name))
    records = read_index(indices / "tfrecord")
    assert (records.names, records.rows) == (index.names, index.rows)
    np.testing.assert_array_equal(records.features, index.features)


@pytest.mark.extended
def test_an_index_that_is_missing_incomplete_or_of_two_preparations_is_refused(index, tmp_path):
    with pytest.raises(FileNotFoundError, match="keras-vit predict --answers=features"):
        read_index(tmp_path / "none")
    next(index.glob("train-00001*")).unlink()
    with pytest.raises(ValueError, match="1 of the 3 files .* are missing, such as train-00001-of-00003"):
        read_index(index)
    (index / "train-00001-of-00003.parquet").touch()
    change(index, columns=["split", "row", "name", "classes"])
    with pytest.raises(ValueError, match="has no features, only split, row, name, classes"):
        read_index(index)
    other = json.loads((index / "_train.json").read_text()) | {"split": "other", "preprocess": "decode"}
    (index / "_other.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="contains features of differently preprocessed images"):
        read_index(index)


@pytest.mark.extended
def test_an_index_of_another_model_is_refused(model, index):
    other = every_weight()
    other.get_layer("head").bias.assign([3, 2, 1])
    variant = dataclasses.asdict(model.spec) | {"token_merging": 1}
    merging = type(model).from_config(model.get_config() | {"variant": variant})
    merging.set_weights(model.get_weights())
    for another in (other, merging):
        with pytest.raises(ValueError, match="were computed by another model"):
            read_index(index).check_model(another)


@pytest.mark.extended
def test_a_damaged_file_is_named(index):
    for kind in ("parquet", "tfrecord"):
        path = next(index.parent.glob(f"{kind}/*.{kind}"))
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=f"{path.name}. is damaged: .* Delete it"):
            read_index(path.parent)


def test_a_file_that_describes_no_job_is_named(tmp_path):
    for text, says in (("{", "not valid JSON"), ("[1]", "contains a list"), ("{}", "has no split")):
        (tmp_path / "_train.json").write_text(text)
        with pytest.raises(ValueError, match=f"_train.json.* {says}"):
            read_index(tmp_path)


@pytest.mark.extended
def test_data_that_has_changed_is_not_shown(photos, index):
    change(index, data=f"images:{photos.parent}")
    found = read_index(index)
    (photos.parent / "more.png").write_bytes((photos / "1.png").read_bytes())
    with pytest.raises(ValueError, match="has changed since"):
        pixels_of(found, found.nearest(features(1, 32), 1)[0])


def change(index, **about):
    """Changes what the description of a job says."""
    path = index / "_train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | about))


@pytest.fixture
def searched(binary):
    """searched(index, images, flag=value...): the lines that the verb prints."""
    return lambda index, images, **given: binary(
        search, *images, index=str(index), **{"neighbours": 3, "batch_size": 4, **given}
    ).splitlines()


@pytest.mark.extended
@pytest.mark.usefixtures("openvino")
def test_the_verb_writes_the_index_with_any_engine_and_prints_what_is_near(saved, photos, tmp_path, searched):
    given = {"model": saved, "data": f"images:{photos}"}
    lines = searched(tmp_path / "index", [photos / "3.png", photos / "broken.png"], **given)
    assert lines[0].startswith(f"Left out {photos / 'broken.png'}") and lines[1].startswith("Cosine similarity")
    assert lines[2] == f"{photos / '3.png'}:"
    assert len(lines) == 6 and str(photos / "3.png") not in "".join(lines[3:])  # an image is not its own neighbour
    assert searched(tmp_path / "openvino", [photos / "3.png"], **given, engine="openvino") == lines[1:]
    assert read_index(tmp_path / "openvino").descriptions["train"]["engine"] == "openvino"
    assert searched(tmp_path / "openvino", [photos / "3.png"]) == lines[1:]  # its features are the same model's


@pytest.mark.extended
def test_what_is_searched_for_is_prepared_as_the_index_was_and_copies_take_no_neighbours_place(
    model, saved, photos, tmp_path, searched, monkeypatch
):
    paths = [f"{photos}/{i}.png" for i in (3, 3, 3, 3, 0, 1, 2)]
    (tmp_path / "images.csv").write_text("image,label\n" + "".join(f"{path},a\n" for path in paths))
    about = {"model": saved, "data": f"csv:{tmp_path}/images.csv"}
    text = "decode|resize(60)|central_crop(16, 24)"
    source = open_source(about["data"], "train")
    predict(model, source, tmp_path / "index", ("features",), preprocess=text, about=about)
    copy = tmp_path / "copy.png"
    copy.write_bytes((photos / "3.png").read_bytes())
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    lines = searched(tmp_path / "index", [photos / "3.png", copy], output="~/similar.png")
    assert sorted(line.rpartition("/")[2] for line in lines[2:5]) == ["0.png", "1.png", "2.png"]
    assert lines[5:9] == [f"{copy}:"] + 3 * [f"  1.000  {photos}/3.png"]
    picture = tmp_path / "home" / "similar.png"
    assert tf.io.decode_png(picture.read_bytes()).shape[2] == 4 and not (tmp_path / "~").exists()


@pytest.mark.extended
def test_features_of_an_export_are_refused(model, index):
    change(index, weights="export 1", model="exported")
    with pytest.raises(ValueError, match="were computed by the export exported"):
        read_index(index).check_model(model)


def test_the_picture_shows_queries_and_neighbours():
    image = np.zeros((8, 12, 3), "uint8")
    one, two = (figures.neighbours([(image, [(0.5, image)] * 3)] * n) for n in (1, 2))
    heights, widths = zip(*(tf.io.decode_png(png).shape[:2] for png in (one, two)))
    assert heights[1] == pytest.approx(2 * heights[0], abs=2) and widths[0] == widths[1]


@pytest.mark.extended
def test_texts_find_images_by_the_same_index(photos, tmp_path, searched, monkeypatch):
    size = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    image = keras_vit.ViT("Ti/8", image_size=16, classes=None, preprocessing="decode(3)|resize(16, 16)", **size)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=40, length=4, outputs=8, **size)
    model = keras_vit.DualEncoder(image, text)
    model.tokenizer = lambda texts: np.array([[len(text), 1, 1, 1] for text in texts], "int32")
    monkeypatch.setattr(search.loading, "load", lambda name, **options: model if options else image)
    given = {"model": "siglip", "data": f"images:{photos}", "index": tmp_path / "index", "neighbours": 2}
    lines = searched(given.pop("index"), [], text=["a cat", "a bicycle"], **given)
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles[-2:] == ['"a cat":', '"a bicycle":']
    index = read_index(tmp_path / "index")
    [expected] = index.nearest(model.encode_text(["a bicycle"]), 2)
    assert lines[-2:] == [f"  {neighbour.similarity:.3f}  {neighbour.name}" for neighbour in expected]
    assert any("3.png:" in line for line in searched(tmp_path / "index", [photos / "3.png"], model="siglip"))
