"""Pipelines of Apache Beam, by its DirectRunner: the rows of inference.predict, and TFRecord files with every example
once.
"""

import hashlib
import shutil

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
from small_models import for_files, write_pngs

import keras_vit
from keras_vit.data import from_arrays, open_source
from keras_vit.data.beam_records import piece, pieces, place, write_by_beam
from keras_vit.data.records.write import write_records
from keras_vit.data.sources.selection import example_names
from keras_vit.inference import predict
from keras_vit.inference.beam import _signatures, predict_by_beam, read_export
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


def files(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.extended
def test_the_rows_are_those_of_predict_and_files_that_are_there_are_not_written_again(
    model, export, photos, tmp_path, binary
):
    out, data = tmp_path / "beam", f"folder:{photos}"
    given = {"model": export, "data": data, "output": str(out), "answers": ",".join(ALL), "split": "train"}
    printed = binary(predict_verb, **given, beam="--runner=DirectRunner", **SIZES)
    assert printed.startswith(f"train: wrote 11 rows in 3 files of 3 to {out}; 1 image cannot be read: ")
    predict(model, open_source(data, "train"), tmp_path / "own", ALL, **SIZES)
    for one, other in zip(rows(tmp_path / "own"), rows(out), strict=True):
        for name in ("split", "row", "name", "label", "classes", "error"):
            assert one[name] == other[name]
        for name in ("probabilities", "logits", "features"):
            assert (one[name] is None) == (other[name] is None) == bool(one["error"])
            if one[name]:
                np.testing.assert_allclose(other[name], one[name], atol=1e-5)
    (out / "train-00001-of-00003.parquet").unlink()
    before = files(out)
    report = predict_by_beam(export, data, str(out), ALL, **SIZES)
    assert report.rows == 4 and report.files == (1, 2, 3) and before.items() < files(out).items()
    with pytest.raises(ValueError, match="contains rows of another job: columns"):
        predict_by_beam(export, data, str(out), ("features",), **SIZES)
    with pytest.raises(ValueError, match="were computed by the export"):
        read_index(out).check_written_by_model()


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
    with pytest.raises(ValueError, match="is not a complete SavedModel: it has no variables/variables.data"):
        fingerprint(other)


@pytest.mark.extended
def test_an_export_that_cannot_answer_is_refused(export, photos, tmp_path):
    features = read_export(export) | {"classes": None}
    features["signatures"] = {"serving_default": features["signatures"]["features"]}
    assert _signatures(features, ("features",)) == {"serving_default": ["features"]}
    with pytest.raises(ValueError, match='has no signature for "classes"'):
        _signatures(features, ("classes",))
    with pytest.raises(ValueError, match="gives every pixel a class.*--part=INDEX/COUNT"):
        _signatures({"signatures": {"pixels": {}}, "classes": 3, "task": "segmentation"}, ("classes",))
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
        (["DirectRunner"], '"DirectRunner" is not an option of Beam'),
        (["-runner=DirectRunner"], '"-runner=DirectRunner" is not an option of Beam'),
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


def records(source):
    """[(image, label, name)] in the order of the files."""
    keys = {"image/encoded": "bytes_list", "image/class/label": "int64_list", "image/filename": "bytes_list"}
    found = tf.data.TFRecordDataset([file[0] for file in source.files]).as_numpy_iterator()
    features = [tf.train.Example.FromString(record).features.feature for record in found]
    return [tuple(getattr(one[key], kind).value[0] for key, kind in keys.items()) for one in features]


@pytest.mark.extended
def test_records_hold_every_example_once_in_the_order_of_the_seed_and_are_not_replaced_by_mistake(photos, tmp_path):
    arguments = (f"folder:{photos}", "train", None, str(tmp_path / "beam"), "y", "train")
    told = write_by_beam(*arguments, 2, seed=3)
    write_records(open_source(arguments[0], "train"), str(tmp_path / "own"), "y", "train", 2)
    beam, own = (open_source(f"tfrecord:{tmp_path}/{name}", "train") for name in ("beam", "own"))
    assert sorted(records(beam)) == sorted(records(own)) and beam.class_names == own.class_names
    assert sum(beam.counts) == told["examples"] == 10
    assert [path.rpartition("/")[2] for path in told["skipped"]] == ["broken.png"]
    names = [name.decode() for *_, name in records(beam)]
    assert names == sorted(names, key=lambda name: (place(name, 3) % 2, place(name, 3)))
    before = files(tmp_path / "beam")
    assert sorted(before) == ["dataset.json", *(f"y-train-0000{i}-of-00002.tfrecord" for i in (0, 1))]
    with pytest.raises(ValueError, match='already has the split "train", 10 examples'):
        write_by_beam(*arguments, 2)
    with pytest.raises(ValueError, match="expected 1 to 11"):
        write_by_beam(*arguments, 12, overwrite=True)
    with pytest.raises(ValueError, match="files would be empty"):
        write_by_beam(*arguments, 11, overwrite=True)
    assert files(tmp_path / "beam") == before


def test_a_place_is_a_hash_of_the_name_and_the_seed():
    expected = int(hashlib.blake2b(b"3 cat.jpg", digest_size=8).hexdigest(), 16)
    assert place("cat.jpg", 3) == expected != place("cat.jpg", 4)
    counts = np.bincount([place(f"{i}.jpg", 0) % 8 for i in range(8000)])
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)


@pytest.mark.extended
def test_pieces_are_the_whole(photos, tmp_path):
    arrays = from_arrays(np.zeros((2345, 2, 2, 3), "uint8"), np.arange(2345) % 2)
    write_records(open_source(f"folder:{photos}", "train"), str(tmp_path), "x", "train", 3)
    for source, count in ((arrays, 3), (open_source(f"tfrecord:{tmp_path}", "train"), 3)):
        names = [name for i in range(pieces(source)) for name in example_names(piece(source, i))]
        assert pieces(source) == count and names == example_names(source)


@pytest.mark.extended
def test_the_verb_writes_records_of_records(photos, tmp_path, binary):
    write_records(open_source(f"folder:{photos}", "train"), str(tmp_path / "records"), "x", "train", 3)
    given = {"source": f"tfrecord:{tmp_path}/records", "split": "train", "output": str(tmp_path / "beam")}
    assert binary(prepare_verb, **given, shards=2, beam="--runner=DirectRunner").startswith("10 examples, ")
    one, other = (open_source(f"tfrecord:{tmp_path}/{name}", "train") for name in ("records", "beam"))
    assert sorted(record[:2] for record in records(one)) == sorted(record[:2] for record in records(other))
