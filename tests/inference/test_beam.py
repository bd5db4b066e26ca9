"""Pipelines of Apache Beam, by its DirectRunner: the rows of inference.predict, and TFRecord files with every example
once.
"""

import hashlib
import shutil

import numpy as np
import pyarrow.parquet
import pytest
from small_models import every_weight, for_files, write_pngs

import keras_vit
from keras_vit.data import from_arrays, open_source
from keras_vit.data.beam import piece, pieces, place, write_by_beam
from keras_vit.data.records.write import write_records
from keras_vit.data.sources.selection import example_names
from keras_vit.inference import predict
from keras_vit.inference.beam import predict_by_beam, read_export
from keras_vit.inference.fingerprint import fingerprint_of_export
from keras_vit.inference.neighbours import read_index
from keras_vit.io.beam_options import pipeline_options
from trainers import predict as predict_verb
from trainers import prepare as prepare_verb

ALL = ("classes", "logits", "features")
SIZES = {"batch_size": 2, "rows_per_file": 4}


@pytest.fixture(scope="module")
def model():
    return for_files()


@pytest.fixture(scope="module")
def export(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    keras_vit.export(model, folder, verbose=False)
    return str(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten PNGs of two classes, and one that is cut short."""
    return write_pngs(tmp_path_factory.mktemp("photos"), 10)


def rows(out):
    return pyarrow.parquet.read_table(out).to_pylist()


@pytest.mark.extended
def test_the_rows_are_those_of_predict(model, export, photos, tmp_path):
    data = f"folder:{photos}"
    report = predict_by_beam(export, data, str(tmp_path / "beam"), ALL, **SIZES)
    own = predict(model, open_source(data, "train"), tmp_path / "own", ALL, **SIZES)
    assert (report.rows, report.files, report.broken) == (own.rows, own.files, own.broken)
    for one, other in zip(rows(tmp_path / "own"), rows(tmp_path / "beam"), strict=True):
        for name in ("split", "row", "name", "label", "classes", "error"):
            assert one[name] == other[name]
        for name in ("probabilities", "logits", "features"):
            assert (one[name] is None) == (other[name] is None) == bool(one["error"])
            if one[name]:
                np.testing.assert_allclose(other[name], one[name], atol=1e-5)


@pytest.mark.extended
def test_files_that_are_there_are_not_written_again(export, photos, tmp_path):
    data = f"folder:{photos}"
    predict_by_beam(export, data, str(tmp_path), **SIZES)
    before = rows(tmp_path)
    first = tmp_path / "train-00000-of-00003.parquet"
    (tmp_path / "train-00001-of-00003.parquet").unlink()
    time = first.stat().st_mtime_ns
    report = predict_by_beam(export, data, str(tmp_path), **SIZES)
    assert report.rows == 4 and report.files == (1, 2, 3)
    # A pipeline makes its batches as images come, and the last bits depend on them.
    without = lambda found: [{name: row[name] for name in ("row", "name", "classes", "error")} for row in found]  # noqa: E731
    assert without(rows(tmp_path)) == without(before) and first.stat().st_mtime_ns == time
    with pytest.raises(ValueError, match="holds rows of another job: columns"):
        predict_by_beam(export, data, str(tmp_path), ("features",), **SIZES)


@pytest.mark.extended
def test_exports_of_the_same_weights_are_told_apart(export, tmp_path):
    def fingerprint(folder, **changes):
        return fingerprint_of_export(str(folder), read_export(str(folder)) | changes, ALL)

    own, other = fingerprint(export), tmp_path / "[*]"
    shutil.copytree(export, other)
    assert fingerprint(other) == own
    assert fingerprint(export, class_names=["x", "y", "z"]) != own != fingerprint(export, activation="sigmoid")
    with open(other / "saved_model.pb", "ab") as file:
        file.write(b"more")
    assert fingerprint(other)["weights"] == own["weights"] and fingerprint(other)["architecture"] != own["architecture"]
    shutil.rmtree(other / "variables")
    with pytest.raises(ValueError, match="is not a whole SavedModel: it has no variables/variables.data"):
        fingerprint(other)


@pytest.mark.extended
def test_an_export_of_features_has_features_alone(photos, tmp_path):
    headless = every_weight(classes=None)
    headless.preprocessing = "decode|resize(16, 24)"
    keras_vit.export(headless, tmp_path / "export", verbose=False)
    with pytest.raises(ValueError, match='does not give "classes": its signatures are'):
        predict_by_beam(str(tmp_path / "export"), f"images:{photos}", str(tmp_path / "out"))
    predict_by_beam(str(tmp_path / "export"), f"images:{photos}", str(tmp_path / "out"), ("features",), **SIZES)
    [row] = [row for row in rows(tmp_path / "out") if row["name"].endswith("3.png")]
    image = headless.preprocess(row["name"])[None]
    np.testing.assert_allclose(row["features"], headless.predict(image, verbose=0)[0], atol=1e-5)
    with pytest.raises(ValueError, match="are of the export"):
        read_index(tmp_path / "out").check_written_by_model()


@pytest.mark.extended
def test_what_is_no_export_is_refused(export, photos, tmp_path):
    with pytest.raises(ValueError, match="is not a SavedModel of this package.*keras-vit export"):
        predict_by_beam(str(photos), f"images:{photos}", str(tmp_path))
    with pytest.raises(ValueError, match=r"gives images of \(8, 8, 3\), the model takes \(16, 24, 3\)"):
        predict_by_beam(export, f"images:{photos}", str(tmp_path), preprocess="decode|resize(8, 8)")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--runer=DataflowRunner"], 'no option --runer for a pipeline on this machine. Did you mean "runner"'),
        (
            ["--direct_num_workers=many"],
            "Beam cannot read its options: argument --direct_num_workers: invalid int value: 'many'",
        ),
        (["DirectRunner"], '"DirectRunner" is no option of Beam'),
        (["-runner=DirectRunner"], '"-runner=DirectRunner" is no option of Beam'),
    ],
)
def test_options_that_beam_would_leave_out_are_refused(options, says, photos, tmp_path):
    with pytest.raises(ValueError, match=says):
        pipeline_options(options)
    with pytest.raises(ValueError, match=says):
        write_by_beam(f"folder:{photos}", "train", None, str(tmp_path), "x", "train", 2, options=options)
    assert not list(tmp_path.iterdir())


def test_options_of_another_runner_are_its_own():
    made = pipeline_options(["--runner=FlinkRunner", "--flink_master=HOST:8081", "--its_own=3"])
    assert made.get_all_options(retain_unknown_options=True)["its_own"] == "3"


def contents(source):
    return sorted((example["image"], int(example["label"])) for example in source.ordered().as_numpy_iterator())


@pytest.mark.parametrize("kind", ["folder", pytest.param("tfrecord", marks=pytest.mark.extended)])
def test_records_hold_every_example_once(kind, photos, tmp_path):
    data = f"folder:{photos}"
    if kind == "tfrecord":
        write_records(open_source(data, "train"), str(tmp_path / "records"), "x", "train", 3)
        data = f"tfrecord:{tmp_path}/records"
    told = write_by_beam(data, "train", None, str(tmp_path / "beam"), "y", "train", 2)
    write_records(open_source(data, "train"), str(tmp_path / "own"), "y", "train", 2)
    beam, own = (open_source(f"tfrecord:{tmp_path}/{name}", "train") for name in ("beam", "own"))
    assert (
        contents(beam) == contents(own)
        and beam.class_names == own.class_names
        and sum(beam.counts) == told["examples"] == 10
    )
    assert [path.rpartition("/")[2] for path in told["skipped"]] == (["broken.png"] if kind == "folder" else [])
    assert sorted(path.name for path in (tmp_path / "beam").iterdir()) == [
        "dataset.json",
        *(f"y-train-0000{i}-of-00002.tfrecord" for i in (0, 1)),
    ]


@pytest.mark.extended
def test_the_order_is_by_the_seed(photos, tmp_path):
    def order(name, seed):
        write_by_beam(f"folder:{photos}", "train", None, str(tmp_path / name), "x", "train", 1, seed=seed)
        source = open_source(f"tfrecord:{tmp_path}/{name}", "train")
        return [example["image"] for example in source.ordered().as_numpy_iterator()]

    first, other = order("a", 0), order("c", 1)
    assert first == order("b", 0) and first != other and sorted(first) == sorted(other)


def test_a_place_is_a_hash_of_the_name_and_the_seed():
    expected = int(hashlib.blake2b(b"3 cat.jpg", digest_size=8).hexdigest(), 16)
    assert place("cat.jpg", 3) == expected != place("cat.jpg", 4)
    counts = np.bincount([place(f"{i}.jpg", 0) % 8 for i in range(8000)])
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_pieces_are_the_whole(photos, tmp_path):
    arrays = from_arrays(np.zeros((2345, 2, 2, 3), "uint8"), np.arange(2345) % 2)
    write_records(open_source(f"folder:{photos}", "train"), str(tmp_path), "x", "train", 3)
    for source, count in ((arrays, 3), (open_source(f"tfrecord:{tmp_path}", "train"), 3)):
        names = [name for i in range(pieces(source)) for name in example_names(piece(source, i))]
        assert pieces(source) == count and names == example_names(source)


def test_what_is_there_is_not_replaced_by_mistake(photos, tmp_path):
    arguments = (f"folder:{photos}", "train", None, str(tmp_path), "x", "train")
    write_by_beam(*arguments, 2)
    with pytest.raises(ValueError, match='already has the split "train", 10 examples'):
        write_by_beam(*arguments, 2)
    before = sorted(path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match="expected 1 to 11"):
        write_by_beam(*arguments, 12, overwrite=True)
    with pytest.raises(ValueError, match="files would be empty"):
        write_by_beam(*arguments, 11, overwrite=True)
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == before


@pytest.mark.extended
def test_the_verbs_run_pipelines(export, photos, tmp_path, binary):
    data, beam = f"folder:{photos}", "--runner=DirectRunner"
    given = {"model": export, "data": data, "output": str(tmp_path / "out"), "answers": "classes", "top_k": 2}
    printed = binary(predict_verb, **given, split="train", beam=beam, **SIZES)
    assert printed.startswith(f"train: wrote 11 rows in 3 files of 3 to {tmp_path}/out; 1 image cannot be read: ")
    output = str(tmp_path / "records")
    said = binary(prepare_verb, source=data, split="train", shards=2, output=output, beam=beam).splitlines()
    assert said[0].startswith("Left out ") and said[1].startswith("10 examples, ")
    assert "1 left out: see prepare-train.json" in said[1]
    assert open_source(f"tfrecord:{tmp_path}/records", "train").size == 10
