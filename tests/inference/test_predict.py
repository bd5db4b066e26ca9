"""inference.predict: a row for every image, as the model itself answers; and what was stopped ends as what was not."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil

import keras
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
from small_models import every_weight, for_files, write_pngs

import keras_vit
from keras_vit.data import from_arrays, open_source
from keras_vit.data.records.write import write_records
from keras_vit.data.sources.selection import digest, example_names, names_at, without
from keras_vit.inference import predict, shards
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import Job
from keras_vit.inference.shards import Shards, file_stem, read_descriptions
from keras_vit.inference.tables import FORMATS, Column

BROKEN = "broken.png"


@pytest.fixture(scope="module")
def model():
    return for_files()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eleven PNGs of two classes, and one that is cut short."""
    return write_pngs(tmp_path_factory.mktemp("photos"), 11)


@pytest.fixture(scope="module")
def source(folder):
    return open_source(f"folder:{folder}", "train")


ALL = ("classes", "logits", "features")
SIZES = {"batch_size": 2, "rows_per_file": 3}  # so that a file has 4 rows


@pytest.fixture(scope="module")
def whole(model, source, tmp_path_factory):
    """(the folder of all rows, the report)."""
    out = tmp_path_factory.mktemp("whole")
    return out, predict(model, source, out, ALL, **SIZES)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of the folder of all rows."""
    shutil.copytree(whole[0], tmp_path / "copied")
    return tmp_path / "copied"


def rows(out):
    """The rows in a folder of Parquet files, as any reader of tables sees them."""
    return pyarrow.parquet.read_table(out).to_pylist()


def files(out):
    return {path.name: path.read_bytes() for path in pathlib.Path(out).iterdir() if path.name[0] != "_"}


@pytest.mark.extended
def test_every_image_has_a_row_in_the_order_of_the_source(whole, source):
    out, report = whole
    found = rows(out)
    assert [row["name"] for row in found] == example_names(source)
    assert [row["row"] for row in found] == list(range(12)) and {row["split"] for row in found} == {"train"}
    assert report.rows == 12 and report.files == (3, 0, 3)
    assert sorted(files(out)) == [f"train-0000{i}-of-00003.parquet" for i in range(3)]


@pytest.mark.extended
def test_the_answers_are_those_of_the_model(whole, model, source):
    found = [row for row in rows(whole[0]) if row["error"] is None]
    names = [row["name"] for row in found]
    images = np.stack([model.preprocess(name) for name in names])
    pooled = keras_vit.Model(model.input, model.features).predict(images, verbose=0)
    answers, logits = model.classify(names, verbose=0), model.predict(images, verbose=0)
    for row, answer, numbers, features in zip(found, answers, logits, pooled, strict=True):
        assert row["classes"] == [guess.name for guess in answer]
        np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in answer], atol=1e-6)
        np.testing.assert_allclose(row["logits"], numbers, atol=1e-5)
        np.testing.assert_allclose(row["features"], features, atol=1e-5)
        assert source.class_names[row["label"]] == pathlib.Path(row["name"]).parent.name


@pytest.mark.extended
def test_an_image_that_cannot_be_read_has_a_row_that_says_why(whole):
    [row] = [row for row in rows(whole[0]) if row["error"]]
    assert row["name"].endswith(BROKEN) and "PNG" in row["error"]
    assert all(row[name] is None for name in (*ALL, "probabilities", "label"))
    assert list(whole[1].broken) == [row["name"]]


@pytest.mark.extended
def test_both_formats_hold_the_same(whole, model, source, tmp_path):
    predict(model, source, tmp_path, ALL, format="tfrecord", **SIZES)
    names = ("row", "name", "label", "classes", "probabilities", "logits", "features", "error")
    for parquet, record in zip(sorted(whole[0].glob("*.parquet")), sorted(tmp_path.glob("*.tfrecord"))):
        one, other = (FORMATS[path.suffix[1:]].read(str(path), names) for path in (parquet, record))
        for name in names:
            np.testing.assert_array_equal(one[1][name], other[1][name])
            np.testing.assert_array_equal(one[0][name], other[0][name])


class Stopped(Exception):
    pass


def stopping(monkeypatch, after):
    """Lets the writing of a Parquet file stop the job after so many."""
    write, done = FORMATS["parquet"].write, []

    def stop(*args):
        if len(done) == after:
            raise Stopped
        write(*args)
        done.append(args[0])

    monkeypatch.setitem(FORMATS, "parquet", FORMATS["parquet"].__class__(".parquet", stop, FORMATS["parquet"].read))


@pytest.mark.extended
def test_a_job_in_parts_that_was_stopped_ends_as_one_that_was_not(whole, model, source, tmp_path, monkeypatch):
    out = tmp_path / "train[:90%]*?"  # a folder with the name of a pattern
    assert predict(model, source, out, ALL, part=(1, 2), **SIZES).files == (1, 0, 3)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stopping(patch, after=1)
        predict(model, source, out, ALL, part=(0, 2), **SIZES)
    report = predict(model, source, out, ALL, part=(0, 2), **SIZES)
    assert report.rows == 4 and report.files == (1, 1, 3) and files(out) == files(whole[0])
    assert predict(model, source, out, ALL, **SIZES).files == (0, 3, 3)
    assert sorted(path.name for path in out.iterdir())[0] == "_train.json" and len(list(out.iterdir())) == 4
    assert [description["split"] for description in read_descriptions(str(out))] == ["train"]
    (out / "_train.json").unlink()
    with pytest.raises(ValueError, match="contains train-00000-of-00003.parquet, but no _train.json"):
        predict(model, source, out, ALL, **SIZES)


@pytest.mark.extended
@pytest.mark.usefixtures("openvino")
def test_another_engine_answers_the_same_in_files_of_its_own(whole, model, source, tmp_path):
    predict(model, source, tmp_path, ALL, engine="openvino", **SIZES)
    for one, other in zip(rows(whole[0]), rows(tmp_path), strict=True):
        assert {**one, **dict.fromkeys((*ALL, "probabilities"))} == {**other, **dict.fromkeys((*ALL, "probabilities"))}
        assert one["classes"] == other["classes"]
        for name in ("probabilities", "logits", "features") if one["error"] is None else ():
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="contains rows of another job: engine 'openvino', now None"):
        predict(model, source, tmp_path, ALL, **SIZES)
    with pytest.raises(ValueError, match="Valid: openvino, openvino_bfloat16"):
        predict(model, source, tmp_path / "new", ALL, engine="onnx", **SIZES)
    assert not (tmp_path / "new").exists()


def test_rows_of_another_job_are_never_mixed_in(copied, model, source):
    def refused(message, *arguments, **sizes):
        with pytest.raises(ValueError, match=f"another job: {message}"):
            predict(*arguments, **(sizes or SIZES))

    refused("batch_size 2, now 4", model, source, copied, ALL, batch_size=4, rows_per_file=3)
    refused("columns .*classes.*, now .*features", model, source, copied, ("features",))
    other = every_weight(classes=3, depth=1)
    other.preprocessing = model.preprocessing
    other.get_layer("head").bias.assign([1, 2, 3])
    refused("other weights, of", other, source, copied, ALL)
    refused("other images, of", model, without(source, ["a/0.png"]), copied, ALL)


def renamed(model, **options):
    """A copy of a model with other arguments and the same weights."""
    copy = type(model).from_config(model.get_config() | options)
    copy.set_weights(model.get_weights())
    return copy


@pytest.mark.extended
def test_models_of_the_same_weights_are_told_apart(copied, model, source):
    spec = dataclasses.asdict(model.spec)
    merging, named = renamed(model, variant=spec | {"token_merging": 1}), renamed(model, class_names=("x", "y", "z"))
    others = {"another architecture, of": merging, "model_class_names .*'cat'.*, now .*'x'": named}
    dtype = keras.dtype_policies.serialize(keras.DTypePolicy("mixed_bfloat16"))
    others |= {"another architecture": renamed(model, dtype=dtype)}
    independent = renamed(model)
    independent.activation = "sigmoid"
    for message, other in (others | {"activation 'softmax', now 'sigmoid'": independent}).items():
        with pytest.raises(ValueError, match=f"another job: .*{message}"):
            predict(other, source, copied, ALL, **SIZES)
    features = [fingerprint_of_model(other, ("features",)) for other in (model, merging, named, independent)]
    # Names and activation are in no column.
    assert features[0] != features[1] and features[0] == features[2] == features[3]


@pytest.mark.extended
def test_a_model_has_the_same_fingerprint_wherever_it_is_loaded(model, tmp_path):
    headed = model.with_head(keras.layers.Dense(2))
    for i, made in enumerate((model, headed)):
        made.save(tmp_path / f"{i}.keras")
        found = fingerprint_of_model(made, ALL)
        keras.layers.Dense(2)  # takes the next name
        loaded = keras_vit.load(tmp_path / f"{i}.keras")
        loaded.compile("adam", "mse")
        assert found == fingerprint_of_model(loaded, ALL) == fingerprint_of_model(made.clone("other"), ALL)
    again = model.with_head(keras.layers.Dense(2))
    again.set_weights(headed.get_weights())
    assert again.layers[-1].name != headed.layers[-1].name
    assert fingerprint_of_model(again, ALL) == found


def test_a_folder_of_an_earlier_version_is_read_and_not_added_to(copied, model, source):
    about = json.loads((copied / "_train.json").read_text())
    for key in ("architecture", "model_class_names", "activation"):
        del about[key]
    (copied / "_train.json").write_text(json.dumps(about))
    assert predict(model, source, copied, ALL, **SIZES).rows == 0  # nothing is missing
    (copied / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(ValueError, match="earlier version .* the architecture, model_class_names, activation"):
        predict(model, source, copied, ALL, **SIZES)


def test_splits_have_names_of_files():
    stems = {"train": "train", "test[100:200]": "test_100_to_200", "train[:90%]": "train_to_90pct"}
    assert {split: file_stem(split) for split in stems} == stems and file_stem("train[:90]") == "train_to_90"


@pytest.mark.extended
def test_splits_share_a_folder_and_records_have_rows_too(copied, model, tmp_path):
    images = from_arrays(np.random.default_rng(0).integers(0, 256, (10, 16, 24, 3), dtype="uint8"), np.arange(10) % 2)
    write_records(images, str(tmp_path / "records"), "x", "train", 3)
    records = open_source(f"tfrecord:{tmp_path}/records", "train[2:9]")
    predict(model, records, copied, ALL, split="train[2:9]", batch_size=2, rows_per_file=2)
    assert {name.partition("-")[0] for name in files(copied)} == {"train", "train_2_to_9"}
    found = [row for row in rows(copied) if row["split"] == "train[2:9]"]
    assert [row["name"] for row in found] == example_names(records) and len(found) == 7
    labels = [int(example["label"]) for example in records.ordered().as_numpy_iterator()]
    assert [row["label"] for row in found] == labels


def test_names_at_are_the_names_there(model, tmp_path):
    images = from_arrays(np.zeros((10, 8, 8, 3), "uint8"), np.arange(10) % 2)
    write_records(images, str(tmp_path), "x", "train", 3)
    records = open_source(f"tfrecord:{tmp_path}", "train")
    some = without(records, example_names(records)[3:5])
    for source in (images, records, some):
        assert names_at(source, [0, 2, 5, 7]) == [example_names(source)[i] for i in (0, 2, 5, 7)]
    assert len({digest(records), digest(some), digest(images)}) == 3


@pytest.mark.extended
def test_where_no_image_can_be_read_every_row_says_so_and_without_labels_there_is_no_column_of_them(model, tmp_path):
    (tmp_path / "more").mkdir()
    for i in range(3):
        (tmp_path / "more" / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    source = open_source(f"images:{tmp_path}/more", "train")
    for kind in FORMATS:
        predict(model, source, tmp_path / kind, ("features",), format=kind)
        [path] = [path for path in (tmp_path / kind).iterdir() if path.suffix == f".{kind}"]
        table, present = FORMATS[kind].read(str(path), ("features", "error"))
        assert not present["features"].any() and present["error"].all() and len(table["error"]) == 3
    assert set(rows(tmp_path / "parquet")[0]) == {"split", "row", "name", "features", "error"}


@pytest.mark.extended
def test_the_limit_of_broken_images_counts_those_of_the_files_that_are_there(model, tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(tf.io.encode_png(np.full((9, 9, 3), 40 * i, "uint8")).numpy())
    source, out = open_source(f"images:{tmp_path}", "train"), tmp_path / "out"
    broken = example_names(source)[1:3]  # in the first file and in the second one
    for name in broken:
        pathlib.Path(name).write_bytes(b"no image")

    def go(limit):
        return predict(model, source, out, format="tfrecord", batch_size=2, rows_per_file=2, broken_limit=limit)

    assert go(2).files == (3, 0, 3)
    next(out.glob("train-00001*")).unlink()
    with pytest.raises(ValueError, match=f"More than 1 examples cannot be used, including {broken[1]}"):
        go(1)
    with pytest.raises(ValueError, match="1 images of the files that are there could not be read, more than 0"):
        go(0)
    assert list(go(2).broken) == broken[1:]


def test_a_file_of_records_is_whole_or_not_there(tmp_path, monkeypatch):
    form, columns, path = FORMATS["tfrecord"], [Column("name", "text")], tmp_path / "train-00000-of-00001.tfrecord"
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    form.write(str(path), columns, {"name": ["a", "b"]}, {"name": np.ones(2, bool)}, "")
    assert [name for name in synced if name.endswith(path.name)] and tmp_path.as_posix() in synced
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        form.write(str(path), columns, {"name": ["c", 0]}, {"name": np.ones(2, bool)}, "")
    assert path.read_bytes() == before and [other.name for other in tmp_path.iterdir()] == [path.name]


def test_what_a_model_cannot_answer_is_refused(model, source, tmp_path):
    headless = every_weight(classes=None)
    headless.preprocessing = model.preprocessing
    with pytest.raises(ValueError, match="has no classes: request features"):
        predict(headless, source, tmp_path, ("classes",))
    with pytest.raises(ValueError, match=r'Unknown answer "feature"\. Did you mean "features"'):
        predict(model, source, tmp_path, ("feature",))
    with pytest.raises(ValueError, match=r'Unknown format "parket"\. Did you mean "parquet"'):
        predict(model, source, tmp_path, format="parket")
    with pytest.raises(ValueError, match=r"gives images of \(8, 8, 3\), the model takes \(16, 24, 3\)"):
        predict(model, source, tmp_path, preprocess="decode|resize(8, 8)")
    with pytest.raises(ValueError, match=r"part=\(2, 2\): expected an index from 0 to 1"):
        predict(model, source, tmp_path, part=(2, 2))
    untrained = keras_vit.ViT("Ti/8", image_size=(16, 24), depth=1, width=32, heads=2, classes=3)
    with pytest.raises(ValueError, match="head is all zeros"):
        predict(untrained, source, tmp_path / "untrained")


@pytest.mark.extended
def test_answers_that_are_not_finite_stop_the_job(source, tmp_path):
    model = every_weight()
    model.get_layer("head").bias.assign([np.nan, 0, 0])
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        predict(model, source, tmp_path)
    assert not files(tmp_path)


@pytest.mark.extended
def test_the_encoder_of_a_model_of_pre_training_has_features(source, tmp_path):
    sizes = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64}
    sizes |= {"decoder_depth": 1, "decoder_width": 16, "decoder_heads": 2}
    model = keras_vit.MaskedAutoencoder("Ti/8", image_size=16, **sizes)
    encoder = model.get_encoder()
    with pytest.raises(ValueError, match="has no classes"):
        predict(model, source, tmp_path, ("classes",))
    predict(model, source, tmp_path, preprocess="decode|resize(16, 16)")
    image = encoder.preprocess(rows(tmp_path)[0]["name"])[None]
    expected = keras_vit.Model(encoder.input, encoder.features).predict(image, verbose=0)[0]
    np.testing.assert_allclose(rows(tmp_path)[0]["features"], expected, atol=1e-5)


def test_files_say_what_wrote_them(whole):
    about = json.loads(pyarrow.parquet.read_schema(next(whole[0].glob("*.parquet"))).metadata[b"keras_vit"])
    assert about["preprocess"] == "decode|resize(16, 24)" and about["columns"][-1] == "error"
    assert about == json.loads((whole[0] / "_train.json").read_text())


def test_shards_hold_every_row_once():
    shards = Shards("nowhere", "train", ".parquet", 10, 4)
    assert [list(shards.range(i)) for i in range(shards.count)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert shards.missing((1, 2)) == [1] and shards.missing() == [0, 1, 2]


def test_a_file_with_more_numbers_than_can_be_counted_is_refused():
    many = from_arrays(np.zeros((3_000_000, 1, 1, 1), "uint8"), np.zeros(3_000_000, int))
    with pytest.raises(ValueError, match=r"rows_per_file=3,000,000 of features\[768\] exceeds a file's limit"):
        Job.plan(many, "out", "train", "decode", 100, 3_000_000, "parquet", [Column("features", "numbers", 768)])


def test_parts_of_two_jobs_that_start_together_are_not_mixed(tmp_path, monkeypatch):
    part = Shards(str(tmp_path), "train", ".parquet", 10, 4)
    jobs = [{**dict.fromkeys(shards._KEYS, ""), "preprocess": text} for text in ("decode", "decode(1)")]

    @contextlib.contextmanager
    def after_another(folder):
        monkeypatch.undo()
        shards.take_folder(part, jobs[0])
        yield

    monkeypatch.setattr(shards, "alone", after_another)
    with pytest.raises(ValueError, match="rows of another job"):
        shards.take_folder(part, jobs[1])
