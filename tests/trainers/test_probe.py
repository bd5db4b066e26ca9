"""The probe binary: its methods, penalties and mistakes. In a training run: tests/fit/test_averages."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import ExampleErrors, open_source
from keras_vit.data.errors import TooManyErrors
from keras_vit.data.sources.selection import subset
from keras_vit.evaluation import Embedder, FeatureSplits, FewShot, few_shot, shots
from keras_vit.runs.config import resolve
from trainers import config_files, probe

SMALL = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with a small random model for the digits."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    keras.utils.set_random_seed(0)
    keras_vit.save(
        keras_vit.ViT("Ti/2", image_size=8, channels=1, classes=10, preprocessing="decode(1)", **SMALL), path
    )
    return path


@pytest.fixture
def run_probe(saved, binary, tmp_path):
    """A function: runs the binary with flags; returns (what it printed, probe.json)."""

    def run(**options):
        given = {"model": str(saved), "data": "digits", "train": "train[:300]", "test": "test[:100]"}
        given |= {"shots": "1,5", "batch_size": 60}
        printed = binary(probe, **{**given, **options}, output=str(tmp_path / "out"))
        return printed, json.loads((tmp_path / "out" / "probe.json").read_text())

    return run


def test_a_model_that_takes_crops_is_measured_by_its_encoder(run_probe, tmp_path):
    vit = keras_vit.ViT("Ti/2", image_size=8, channels=1, classes=None, preprocessing="decode(1)", **SMALL)
    keras_vit.DINO(vit, outputs=4, hidden=4, bottleneck=4, local_size=8).save(tmp_path / "dino.keras")
    assert run_probe(model=str(tmp_path / "dino.keras"))[1]["features"] == 16


def runs_of(results):
    """The accuracies of all draws, shots after shots."""
    return [accuracy for found in results.values() for accuracy in found["runs"]]


@pytest.mark.extended
def test_all_methods_agree_with_few_shot_alone(run_probe, saved, tmp_path):
    """The draws are the same whether all training images are embedded or the drawn ones; the figures are
    evaluation.few_shot's.
    """
    _, alone = run_probe()
    printed, every = run_probe(methods="few_shot,knn,logistic,ridge")
    assert runs_of(alone["few_shot"]) == pytest.approx(runs_of(every["few_shot"]), abs=0.021)  # two of the 100
    assert alone["train_images"] <= 3 * 5 * 10 and every["train_images"] == 300 and every["test_images"] == 100
    embedder = Embedder(keras_vit.load(saved), "decode(1)", 100)
    splits = [embedder(open_source("digits", split)) for split in ("train[:300]", "test[:100]")]
    direct = few_shot(*splits[0], *splits[1], shots=(1, 5))
    assert runs_of(alone["few_shot"]) == pytest.approx(runs_of(direct), abs=0.021)
    for method in ("knn", "logistic", "ridge"):  # a random model's features
        assert 0.2 < every[method]["top1"] < every[method]["top5"] <= 1
    assert every["logistic"]["held_out"][f"{every['logistic']['C']:g}"] == max(every["logistic"]["held_out"].values())
    for line in ("few-shot, 5 per class", "nearest neighbours", "logistic regression", "ridge regression"):
        assert line in printed
    assert (tmp_path / "out" / "few_shot.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.extended
def test_by_default_few_shot_takes_what_the_smallest_class_has(run_probe):
    assert np.bincount(open_source("digits", "train[:70]").labels).min() == 4
    _, found = run_probe(train="train[:70]", shots=None)
    assert list(found["few_shot"]) == ["1"]  # of 1, 5, 10 and 25
    with pytest.raises(ValueError, match="shots=5 needs 5 examples of every class"):
        run_probe(train="train[:70]", shots="1,5")


@pytest.mark.extended
def test_the_penalty_is_chosen_on_the_validation_split(run_probe):
    _, found = run_probe(validation="train[300:400]", l2="1,1000000000", shots="5")
    assert found["few_shot"]["5"]["l2"] == 1  # at 1e9 the head predicts next to nothing
    with pytest.raises(ValueError, match="--validation='train"):
        run_probe(l2="1,1024")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "svm"}, 'Unknown method "svm". Valid: few_shot, knn, logistic, ridge'),
        ({"shots": "1,x"}, "shots='1,x': expected integers above 0"),
        ({"dtype": "int8"}, 'Unknown dtype of features "int8". Valid: float32, float16'),
        ({"shots": "500"}, "10 of 10 classes have fewer: 0 "),
        ({"preprocess": "decode(1)|resize(9, 9)"}, r"gives images of \(9, 9, 1\), the model takes \(8, 8, 1\)"),
    ],
)
def test_wrong_flags_are_clear_errors(run_probe, options, message):
    with pytest.raises(ValueError, match=message):
        run_probe(**options)


@pytest.mark.extended
def test_draws_leave_out_unreadable_training_images(tmp_path, caplog):
    import tensorflow as tf

    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.png").write_bytes(tf.io.encode_png(np.full((8, 8, 1), 40 * i, "uint8")).numpy())
    source = open_source(f"folder:{tmp_path}", "train")
    broken = np.flatnonzero(source.labels == 1)[0]
    (path,) = [name for name in tmp_path.glob("b/*") if source.example_name(broken).endswith(str(name))]
    path.write_bytes(b"\x89PNG broken since")
    model = keras_vit.ViT("Ti/2", image_size=8, channels=1, classes=10, **SMALL)
    embedder = Embedder(model, "decode(1)|resize(8, 8)", 4)
    for keep in (False, True):
        splits = FeatureSplits(embedder, source, source, keep)
        caplog.clear()
        assert FewShot(source="folder", shots=(3,)).evaluate(splits).details["train_images"] == 5
        assert "fewer examples than drawn: b (2)." in caplog.text
        others = np.setdiff1d(np.arange(source.size), broken)
        _, labels, numbers = splits.train_at(np.arange(source.size))
        np.testing.assert_array_equal(numbers, others)
        np.testing.assert_array_equal(labels, source.labels[others])
    with pytest.raises(TooManyErrors, match="--broken_limit for evaluate"):
        list(Embedder(model, "decode(1)|resize(8, 8)", 1, errors=ExampleErrors(0)).batches(source))
    alone = subset(source, np.array([broken]))
    with pytest.raises(ValueError, match="^None of the 1 examples of folder:.* can be used"):
        FewShot(source="folder", shots=(2,)).evaluate(FeatureSplits(embedder, subset(source, others), alone))
    with pytest.raises(ValueError, match="None of the images of folder:.* can be used"):
        embedder(alone)


def test_durations_are_whole_evaluations():
    config = config_files.load_config("digits_pretrain")
    config.update(total="100 steps", evaluate="4 steps", batch_size=8)
    config.evals.update({name: {"every": every} for name, every in (("a", None), ("b", "3 steps"), ("c", "10 steps"))})
    assert [options["every"] for options in resolve(config, 800)["evals"].values()] == [100, 4, 12]


def test_draws_keep_their_order_without_unreadable_images():
    """Positions 4 and 7 are unreadable: the examples after them move up, and keep their own rows."""
    numbers = np.array([0, 1, 5, 6, 9])
    [places] = shots._readable([np.array([[1, 4, 0], [7, 9, 5]])], numbers, ("a", "b"))
    np.testing.assert_array_equal(places, [[1, 0, -1], [4, 2, -1]])
    with pytest.raises(ValueError, match="None of the drawn training images of b can be read"):
        shots._readable([np.array([[1, 0], [7, 4]])], numbers, ("a", "b"))
