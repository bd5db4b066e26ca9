"""Sections of a report about segmentation."""

import base64
import io
import re

import numpy as np
import pytest
from pages import Page

from keras_vit.inspection import html_report, segmentation_sections

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
NAMES = ("sky", "<b>road</b>", "bird")
COLORS = ((128, 128, 128), (128, 64, 128), (0, 128, 64))


def row(name, iou, share):
    return {"name": name, "iou": iou, "accuracy": iou, "boundary_f": iou, "share": share}


def test_the_classes_with_their_colours_are_sorted_by_iou():
    rows = [row("sky", 0.9, 0.75), row("<b>road</b>", 0.25, 0.25), row("bird", None, 0.0)]
    text = segmentation_sections.class_scores(rows, COLORS)
    page = Page(html_report.page("x", [text]))
    assert page.rows[0] == ["class", "IoU", "accuracy", "boundary F", "share of pixels"]
    assert page.rows[1:] == [
        ["<b>road</b>", "25.0%", "25.0%", "25.0%", "25.0%"],
        ["sky", "90.0%", "90.0%", "90.0%", "75.0%"],
    ]
    assert "rgb(128 64 128)" in text and "1 of 3 classes occur in neither truth nor predictions" in page.text


def test_a_matrix_of_pixels_is_in_percent_of_its_rows():
    page = Page(html_report.page("x", [html_report.confusion([[750, 250], [3, 997]], ["a", "b"], shares=True)]))
    assert page.rows[1:] == [["a", "75", "25"], ["b", "", "100"]] and "percentage of the row" in page.text


def test_pictures_show_truth_and_prediction_in_the_classes_colours():
    image = np.full((1, 40, 60, 3), 100, "uint8")
    truth = np.zeros((1, 40, 60), "uint8")
    truth[:, :, 30:], truth[:, :4] = 1, 255
    guess = np.zeros((1, 40, 60), "int64")
    text = segmentation_sections.comparisons(image, truth, guess, NAMES, COLORS)
    page = Page(html_report.page("x", [text]))
    assert page.count("img") == 4 and "error: 50.0% of pixels correct" in page.text
    legend = re.search(r'<ul class="legend">(.*?)</ul>', text)[1]
    assert "&lt;b&gt;road" in legend and "no class" in legend and "bird" not in legend
    [data, *_] = [attributes["src"] for tag, attributes in page.tags if tag == "img" and attributes["alt"] == "truth"]
    picture = Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(picture), truth[0])
    shown = np.asarray(picture.convert("RGB"))
    assert tuple(shown[20, 10]) == COLORS[0] and tuple(shown[20, 50]) == COLORS[1] and not shown[0].any()


def test_no_examples_are_no_section():
    none = np.zeros((0, 4, 4), "uint8")
    assert segmentation_sections.comparisons(none[..., None], none, none, NAMES, COLORS) == ""
