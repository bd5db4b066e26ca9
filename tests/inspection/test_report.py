"""The report's page: what it says, that nothing on it runs or is fetched, and that it has no empty pictures."""

import dataclasses
import types

import keras
import numpy as np
import pytest
from etils import epath
from pages import Page

import keras_vit
from keras_vit.data import ExampleErrors, from_arrays
from keras_vit.evaluation import Classification as ClassificationEvaluator
from keras_vit.evaluation import Evaluation, Setting
from keras_vit.inspection import html_report
from keras_vit.runs.report import _evaluators as evaluators_sections
from keras_vit.runs.report import command, surroundings, write_report
from keras_vit.tasks import Classification, Score, Task, classification
from trainers import config_files

pytest.importorskip("matplotlib")
NAMES = ("<script>alert(1)</script>", "\u732b", "\u0642\u0637\u0629", "ma\u00eene c\u0153ur", '\U0001f431 & "cat"')
RECORDS = [{"step": s, "loss": 1 / s, "accuracy": 0.1 * s, "val_loss": 2 / s, "val_accuracy": 0.1} for s in (1, 2, 3)]


LABELS = np.array([0, 1, 2, 3])


@pytest.fixture(scope="module")
def evaluated():
    """(a tiny model, what it is evaluated on, its evaluation)."""
    keras.utils.set_random_seed(0)
    fields = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), classes=5, class_names=NAMES, **fields)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 5)))
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")
    source = from_arrays(images, LABELS, class_names=NAMES)
    setting = Setting(model, batch_size=4, source=source, preprocess="decode(3)", errors=ExampleErrors())
    return model, setting, ClassificationEvaluator().prepare(setting)()


@pytest.fixture
def written(evaluated, tmp_path, monkeypatch):
    """Writes and reads the model's report: written(records, config=..., errors=..., images=True)."""
    model, setting, evaluation = evaluated

    def write(records=(), config=None, errors=None, images=False):
        if not images:  # which take longer than everything else
            monkeypatch.setattr(classification, "_examples", lambda *_: [])
        given = setting if errors is None else dataclasses.replace(setting, errors=errors)
        write_report(tmp_path, "Run <1>", Classification(config), model, given, evaluation, list(records))
        text = (tmp_path / "report.html").read_text("utf-8")
        return types.SimpleNamespace(page=Page(text), text=text)

    return write


@pytest.mark.extended
def test_the_page_has_its_sections_and_needs_nothing_else(written):
    found = written(RECORDS, images=True)
    page = found.page
    assert page.headings == [
        "Learning curves",
        "Confusion matrix",
        "Classes",
        "Most confused",
        "Predictions",
        "Attention rollout: what the output attends to",
        "Calibration",
        "Left out",
        "Made by",
    ]
    assert page.links() == [] and page.count("link") == 0
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [
        given for tag, given in page.tags if tag == "meta"
    ]
    assert "prefers-color-scheme: dark" in found.text and "Run <1>" in page.text
    assert all(given["alt"] for tag, given in page.tags if tag == "img")
    assert len(set(page.ids())) == len(page.ids())
    assert len(found.text) < 200_000


@pytest.mark.extended
def test_names_are_text_in_any_script_and_never_code(written):
    found = written(RECORDS, images=True)
    assert len(found.page.scripts) == 1 and "alert" not in found.page.scripts[0]
    named = [row[0] for row in found.page.rows]
    assert set(NAMES[:4]) <= set(named)  # the fifth has no example
    # The head of the confusion matrix.
    assert NAMES[4] in found.page.rows[[row[0] for row in found.page.rows].index("")]
    assert all(not attribute.startswith("on") for _, given in found.page.tags for attribute in given)


@pytest.mark.extended
def test_pictures_take_the_colours_of_the_page_and_hold_no_names(written):
    found = written(RECORDS)
    assert found.page.count("svg") == 3 and "currentColor" in found.text and "#010203" not in found.text
    drawn = found.text[found.text.index("<svg") : found.text.rindex("</svg>")]
    svgs = "".join(part.partition("</svg>")[0] for part in drawn.split("<svg")[1:])
    assert svgs.isascii() and "#ffffff" not in svgs and "http" not in svgs


@pytest.mark.extended
def test_the_table_of_classes_sorts_and_reads_without_a_script(written):
    page = written().page
    assert "table.sortable" in page.scripts[0] and "aria-sort" in page.scripts[0]
    [head] = [row for row in page.rows if row[0] == "class"]
    assert head == ["class", "recall", "precision", "examples"]
    start = page.rows.index(head) + 1
    recalls = [float(row[1].rstrip("%")) for row in page.rows[start : start + 4]]
    assert recalls == sorted(recalls)
    values = [given["data-value"] for tag, given in page.tags if tag == "td" and "data-value" in given]
    assert len(values) == 12 and all(value == "" or float(value) >= 0 for value in values)
    assert "1 of 5 classes have no examples here" in page.text


@pytest.mark.extended
@pytest.mark.parametrize("records", [[], [{"step": 3, "learning_rate": 0.1, "loss": None}]])
def test_nothing_trained_means_no_curves(written, records):
    page = written(records).page
    assert "Learning curves" not in page.headings and not [h for h in page.headings if h.startswith("After")]
    assert page.count("svg") == 1  # calibration


@pytest.mark.extended
def test_a_single_evaluation_is_a_table(written):
    page = written(RECORDS[1:2]).page
    assert "Learning curves" not in page.headings and "After step 2" in page.headings
    rows = {row[0]: row[1] for row in page.rows if len(row) == 2}
    assert rows["loss, training"] == "0.5" and rows["top-1, %, evaluation"] == "10"


@pytest.mark.extended
def test_training_and_its_note_say_what_was_done_to_the_images(written):
    config = config_files.load_config("digits_pretrain")
    config.mixup = None
    augmented = "Training is measured on augmented images; evaluation on unchanged images."
    assert augmented in written(RECORDS, config=config).page.text
    config.mixup = 0.2
    assert "on augmented images, mixed by mixup; evaluation" in written(RECORDS, config=config).page.text
    config.mixup, config.data.train_preprocess = None, "decode(1)|an_op_of_the_run_s_own"
    assert augmented in written(RECORDS, config=config).page.text
    config.mixup, config.data.train_preprocess = None, config.data.eval_preprocess
    page = written(RECORDS, config=config).page
    assert "Training is measured" not in page.text and "mixup" in page.text  # as a key of the configuration
    assert "Configuration" in page.headings and ["optimizer.learning_rate", "0.002"] in page.rows


@pytest.mark.extended
def test_what_was_left_out_is_counted_and_named(written):
    errors = ExampleErrors()
    for i in range(3):
        errors.add(f"photos/<{i}>\udcff.jpg", lambda: "truncated & short")
    page = written(errors=errors).page
    assert "3 examples could not be used." in page.text and ["photos/<2>?.jpg", "truncated & short"] in page.rows
    assert "None: all examples could be read." in written().page.text


@pytest.mark.extended
def test_it_says_how_it_was_made(written, monkeypatch):
    monkeypatch.setattr(
        "sys.orig_argv", ["/usr/bin/python3", "-m", "trainers.pretrain", "--config.total=5 steps", "--workdir=<x>"]
    )
    page = written().page
    assert "python3 -m trainers.pretrain '--config.total=5 steps' '--workdir=<x>'" in page.text
    rows = {row[0]: row[1] for row in page.rows if len(row) == 2}
    assert all(f"{name} " in rows["versions"] for name in ("keras_vit", "keras", "tensorflow", "python"))
    assert rows["date"].endswith(" UTC") and "CPU cores" in rows["devices"] and rows["strategy"] == "one"


def test_a_command_is_written_as_it_is_typed():
    assert command(["/v/python", "/v/keras-vit", "pretrain", "--debug"]) == ["keras-vit", "pretrain", "--debug"]
    assert command(["/v/bin/python", "train.py", "1"]) == ["python", "train.py", "1"]
    assert command(["python"]) == []


def test_the_surroundings_name_the_replicas():
    from keras_vit.distribution import Strategy

    assert dict(surroundings(Strategy("mirrored", replicas=2)))["strategy"] == "mirrored, 2 replicas"


def test_many_classes_are_a_distribution_and_a_bounded_table():
    rng = np.random.default_rng(0)
    names = [f"class {i}" for i in range(1200)]
    details = {"per_class": [None, *rng.random(1199).tolist()], "examples_per_class": [0, *[50] * 1199]}
    page = Page(html_report.page("x", [html_report.recalls(details["per_class"]), html_report.classes(details, names)]))
    assert page.count("svg") == 1 and "1,199 classes by their recall" in page.text
    assert len(page.rows) == 1 + html_report.ROWS and page.rows[0] == ["class", "recall", "examples"]
    lowest = int(np.nanargmin(np.array(details["per_class"], float)))
    assert page.rows[1][0] == names[lowest]
    assert "Shown: the 1,000 of 1,199 classes with the lowest recall." in page.text


def test_confused_pairs_are_named_with_their_share_and_a_picture(pixels):
    pairs = [[0, 1, 6], [2, 0, 1]]
    samples = (pixels, np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]))
    page = Page(html_report.confused(pairs, ["a", "b", "c"], [8, 9, 4], samples))
    assert "a taken for b6 of 8, 75%" in page.text and "c taken for a1 of 4, 25%" in page.text
    assert page.count("img") == 1 and html_report.confused([], ["a"], [1]) == ""


def test_numbers_are_rounded():
    values = (0.123456789, 1234567, 123456.7, 1e-9, float("nan"), np.float32(1 / 3), np.int64(7))
    texts = ["0.1235", "1,234,567", "123,457", "1e-09", "nan", "0.3333", "7"]
    assert list(map(html_report.number, values)) == texts
    assert list(map(html_report.number, ("0.123456789", True, None))) == ["0.123456789", "True", "None"]


class Numbers(Task):
    """A regression that tells the mean of an image's first pixel."""

    score = Score("mae", title="mean <error>", higher_is_better=False, curve="val_mae")


def test_a_regression_shows_its_score_first_rounded_and_its_predictions(tiny, pixels):
    model = tiny(classes=None).with_head(keras.layers.Dense(1))
    evaluation = Evaluation({"loss": 0.0123456789, "mae": 0.0876543219, "examples": 4})
    records = [{"step": s, "loss": 1 / s, "mae": 1.0, "val_mae": 0.5} for s in (1, 2)]
    truth = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    page = Page(html_report.page("x", Numbers(None).report(model, evaluation, (pixels, truth), records)))
    assert page.rows[:3] == [["mean <error>", "0.08765"], ["loss", "0.01235"], ["examples", "4"]]
    assert page.headings == ["Learning curves", "Predictions"] and page.count("svg") == 3
    labels = truth.round().astype("int64")  # no numbers
    assert Page(html_report.page("x", Numbers(None).report(model, evaluation, (pixels, labels), []))).headings == []


def test_float_pixels_are_shown_as_they_are_and_channels_as_colours():
    import io

    from PIL import Image

    from keras_vit.inspection import figures

    for channels, mode in ((1, "L"), (2, "L"), (3, "RGB"), (5, "RGB")):
        media_type, data = figures.photograph(np.full((4, 6, channels), 99.6, "float32"))
        image = Image.open(io.BytesIO(data))
        assert media_type == "image/png" and image.mode == mode and image.size == (6, 4)
        assert np.unique(np.asarray(image)).tolist() == [100]
    media_type, data = figures.photograph(np.zeros((600, 300, 3), "uint8"))
    assert media_type == "image/jpeg" and Image.open(io.BytesIO(data)).size == (128, 256)
    assert figures.heat(np.zeros((8, 12, 3), "uint8"), np.ones((2, 3))).shape == (128, 192, 3)


@pytest.mark.extended
def test_without_matplotlib_it_says_what_is_missing(written, monkeypatch, caplog):
    import logging
    import sys

    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FileNotFoundError):
        written(RECORDS)
    assert "No report.html: Pictures need matplotlib: pip install matplotlib" in caplog.text


def test_examples_of_which_none_could_be_read_are_not_shown(tiny):
    model = tiny()
    details = {"per_class": [0.5] * 5, "confusion": np.eye(5, dtype=int).tolist()}
    nothing = (np.zeros((0, 8, 12, 3), "uint8"), np.zeros(0, "int64"))
    sections = Classification(None).report(model, Evaluation({"top1": 0.5, "examples": 5}, details), nothing, [])
    assert Page(html_report.page("x", sections)).headings == ["Confusion matrix", "Classes"]


def test_evaluators_have_headings_as_they_are_written():
    evals = {"knn": {}, "few_shot": {}, "middle": {"evaluator": "knn"}, "shuffled_patches": {}, "own_measure": {}}
    task = types.SimpleNamespace(config={"evals": evals})
    records = [{"step": 1, **{f"{name}/top1": 0.5 for name in evals}}]
    sections = list(evaluators_sections(epath.Path("none"), task, records))
    headings = [section.partition("<h2>")[2].partition("</h2>")[0] for section in sections]
    assert headings == ["k-NN", "Few-shot", "k-NN, middle", "Shuffled patches", "Own measure"]
