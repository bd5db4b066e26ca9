"""keras-vit classify: by a model and by an export; images of all kinds of names; output for people and programs."""

import csv
import io
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from trainers import classify


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")).numpy())
    return str(path)


@pytest.fixture
def file(tiny, tmp_path):
    keras_vit.save(tiny(class_names=list("abcde"), preprocessing="decode|resize(8, 12)"), tmp_path / "m.keras")
    return tmp_path / "m.keras"


@pytest.fixture
def run(binary, capsys):
    """run(words, flag=value...): (stdout, stderr, exit code)."""

    def ran(*words, **given):
        try:
            out = binary(classify, *words, **given)
        except SystemExit as error:
            printed = capsys.readouterr()
            return printed.out, printed.err, error.code
        return out, "", 0

    return ran


@pytest.mark.extended
def test_an_export_and_its_model_say_the_same(file, image, tmp_path, run, eagerly):
    eagerly(False)
    keras_vit.export(keras_vit.load(file), tmp_path / "export")
    texts = [run(path, image, image, top_k=3)[0] for path in (file, tmp_path / "export")]
    assert texts[0] == texts[1] and texts[0].count("%") == 6
    Image.open(image).save(tmp_path / "a.tiff")
    out, err, code = run(tmp_path / "export", image, tmp_path / "a.tiff")
    assert code == 1 and image in out and f"{tmp_path}/a.tiff: TIFF is not read here" in err


@pytest.mark.extended
def test_one_image_is_a_list_and_several_are_columns(file, image, tmp_path, run):
    lines = run(file, image)[0].splitlines()
    assert lines[0] == image and len(lines) == 4 and all("%" in line for line in lines[1:])
    Image.open(image).save(tmp_path / "longer name.tiff")
    lines = run(file, str(tmp_path / "*"), top_k=1)[0].splitlines()
    assert [line.split("  ")[0] for line in lines] == [image, str(tmp_path / "longer name.tiff")]
    assert lines[0].index("%") == lines[1].index("%")


@pytest.mark.extended
def test_what_cannot_be_read_is_named_and_the_others_classified(file, image, tmp_path, run):
    (tmp_path / "text.jpg").write_text("no image")
    out, err, code = run(file, image, tmp_path / "missing.jpg", tmp_path / "text.jpg", csv=True, top_k=2)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 1 and [row["image"].rpartition("/")[2] for row in rows] == ["a.png", "missing.jpg", "text.jpg"]
    assert rows[0]["class_1"] in "abcde" and not rows[0]["error"] and "neither a file nor a folder" in rows[1]["error"]
    assert f"{tmp_path}/text.jpg: cannot be decoded" in err and "2 of 3 images cannot be read." in err


@pytest.mark.extended
def test_an_image_from_standard_input_as_json(file, image, run, monkeypatch):
    with open(image, "rb") as stdin:
        monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=stdin))
        [row] = json.loads(run("-", model=str(file), json=True, top_k=2)[0])
    direct = keras_vit.load(file).classify(image, top_k=2)
    assert row["image"] == "-" and row["error"] is None
    assert [(c["name"], round(c["probability"], 5)) for c in row["classes"]] == [
        (guess.name, round(guess.probability, 5)) for guess in direct
    ]


@pytest.mark.extended
def test_names_of_a_model_without_them(tiny, image, tmp_path, run):
    keras_vit.save(tiny(), tmp_path / "m.keras")
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\ndog\nemu\n")
    names = {
        line.split()[1]
        for line in run(tmp_path / "m.keras", image, class_names=str(tmp_path / "names.txt"))[0].splitlines()[1:]
    }
    assert names < {"ant", "bee", "cow", "dog", "emu"}


@pytest.mark.extended
def test_labels_are_classified_by_their_texts(image, tmp_path, run, monkeypatch):
    size = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    vit = keras_vit.ViT("Ti/8", image_size=16, classes=None, preprocessing="decode(3)|resize(16, 16)", **size)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=40, length=4, outputs=8, **size)
    model = keras_vit.DualEncoder(vit, text)
    model.tokenizer = lambda texts: np.array([[len(text), 1, 1, 1] for text in texts], "int32")
    monkeypatch.setattr(classify.loading, "load", lambda name, text, tokenizer: model)
    (tmp_path / "labels.txt").write_text("a cat\na bicycle\n")
    expected = [guess.name for guess in model.zero_shot(image, ["a cat", "a bicycle"])]
    for labels in ("a cat,a bicycle", str(tmp_path / "labels.txt")):
        lines = run("siglip", image, labels=labels, templates="photo")[0].splitlines()
        assert [line.split("%  ")[1] for line in lines[1:]] == expected
