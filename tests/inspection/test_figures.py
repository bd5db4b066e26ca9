"""The pictures: single points show, labels keep apart, names that the font lacks are not drawn."""

import io
import re
import warnings

import numpy as np
import pytest

from keras_vit.inspection import figures

pytest.importorskip("matplotlib")


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the pictures that are made, in a list."""
    made, new = [], figures._new

    def remember(*size):
        figure, axes = new(*size)
        made.append(axes)
        return figure, axes

    monkeypatch.setattr(figures, "_new", remember)
    return made


def labels(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def boxes(axes):
    """The extents of the labels of the x axis."""
    axes.figure.draw_without_rendering()
    return [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]


def test_a_single_evaluation_is_a_dot_and_gaps_are_left_out(drawn):
    figures.curves({"training": [(1, 0.5), (2, 0.4), (3, float("nan"))], "evaluation": [(2, 0.3)]}, "step", "x")
    training, evaluation = drawn[0].lines
    assert list(training.get_xdata()) == [1, 2] and evaluation.get_marker() == "o"
    figures.curves({"training": [(1, 0.5)]}, "step", "x")
    assert drawn[1].lines[0].get_marker() == "o"


@pytest.mark.extended
def test_values_of_a_sweep_are_labelled_where_there_is_room(drawn):
    for xs, shown in [
        ([1e-4, 3e-4, 1e-3, 3e-3, 1e-2], ["0.0001", "0.0003", "0.001", "0.003", "0.01"]),
        ([0.0, 1e-5, 1e-3, 0.1], ["0", "1e-05", "0.001", "0.1"]),
        ([0.001, 0.00101, 0.00102, 0.01], ["0.001", "0.01"]),
        ([0.1, 0.2, 0.3], ["0.1", "0.2", "0.3"]),
        ([-1.0, 0.0, 1.0], ["-1", "0", "1"]),
        ([5], ["5"]),
    ]:
        png = figures.lines({"top-1": (xs, [1] * len(xs))}, "learning rate", "top-1", label_each=True)
        assert png.startswith(b"\x89PNG") and labels(drawn[-1]) == shown
        extents = boxes(drawn[-1])
        assert all(left.x1 < right.x0 for left, right in zip(extents, extents[1:]))


def test_twenty_learning_rates_do_not_overlap(drawn):
    xs = np.geomspace(1e-5, 1e-1, 20).tolist()
    figures.lines({"": (xs, xs)}, "learning rate", "top-1", label_each=True)
    extents = boxes(drawn[0])
    assert len(extents) >= 4 and all(left.x1 < right.x0 for left, right in zip(extents, extents[1:]))


def test_bars_have_names_on_lines_and_values(drawn):
    long = "learning_rate=0.001,train_preprocess=" + "decode-random_crop-8-" * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph, or no room for the axes
        figures.bars({long: 91.25, "source=folder-\u7167\u7247": 90.0}, "top-1, %")
    axes = drawn[0]
    first, second = (label.get_text() for label in axes.get_yticklabels())
    assert first.startswith("learning_rate=0.001,\n") and max(map(len, first.split("\n"))) <= 41 and second == "point 2"
    assert [text.get_text() for text in axes.texts] == ["91.25", "90"]
    assert axes.get_position().width > 0.4


def test_a_page_s_pictures_are_the_same_at_each_call_and_have_ids_of_their_own():
    one, again, other = (figures.histogram([10, 50, 90], "recall, %", "classes", name) for name in ("a", "a", "b"))
    assert one == again and one.startswith("<svg") and "http" not in one
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', one)
    assert used and set(used) <= ids[0]


def test_few_shot_accuracy_labels_its_shots(drawn):
    results = {n: {"mean": 0.5, "std": 0.1} for n in (1, 5, 10, 25)}
    from PIL import Image

    assert Image.open(io.BytesIO(figures.few_shot_accuracy(results))).format == "PNG"
    assert labels(drawn[0]) == ["1", "5", "10", "25"]
