"""Boxes over images: colours and styles of what was found and missed, labels, and sections of the report."""

import numpy as np
import pytest
from pages import Page

from keras_vit.inspection import box_comparison, detection_sections, html_report
from keras_vit.io.box_pictures import DASHED, Mark, draw, enlarged

pytest.importorskip("matplotlib")
NAMES = ("cat", "<b>dog</b>")
OBJECTS = np.array(
    [
        [0.1, 0.1, 0.3, 0.3, 0, 0, 400],
        [0.5, 0.5, 0.9, 0.9, 1, 0, 1600],
        [0.1, 0.6, 0.3, 0.8, 0, 0, 400],
        [0.6, 0.0, 0.9, 0.3, 0, 2, 900],
    ]
)


def marks():
    """Of a found cat, a dog taken for a cat, a missed cat, a difficult one, and a false alarm."""
    boxes = np.array([OBJECTS[0, :4], OBJECTS[1, :4], [0.4, 0.1, 0.5, 0.2]])
    return box_comparison.match_marks(
        OBJECTS, boxes, np.array([0.9, 0.8, 0.7]), np.array([0, 0, 1]), np.array([0, 1, -1]), NAMES
    )


def test_marks_tell_what_was_found_missed_confused_or_a_false_alarm():
    kinds = {kind: name for name, kind in box_comparison.KINDS.items()}
    found = [(mark.label, kinds[mark.color, mark.style]) for mark in marks()]
    assert found == [
        ("cat", "missed"),
        ("cat", "not counted"),
        ("<b>dog</b> 0.70", "false alarm"),
        ("cat 0.80, is <b>dog</b>", "another class"),
        ("cat 0.90", "found"),
    ]


def test_a_box_lies_on_its_pixels_and_small_images_are_enlarged():
    image = np.full((32, 32, 3), 200, "uint8")
    picture = draw(enlarged(image), [Mark((0.25, 0.25, 0.75, 0.75), "", (0, 158, 115))])
    assert picture.shape == (320, 320, 3)
    where = np.argwhere((picture == (0, 158, 115)).all(-1))
    np.testing.assert_allclose([*where.min(0), *where.max(0)], [80, 80, 240, 240], atol=2)
    assert (picture[150:170, 150:170] == 200).all()


def test_dashes_leave_gaps():
    image = np.full((320, 320, 3), 200, "uint8")
    solid, dashed = (
        (draw(image, [Mark((0.2, 0.2, 0.8, 0.8), "", (0, 158, 115), style)]) == (0, 158, 115)).all(-1).sum()
        for style in ((0, 0), DASHED)
    )
    assert 0.3 * solid < dashed < 0.75 * solid


def test_labels_do_not_cover_each_other_and_stay_inside():
    image, edge = np.full((320, 320, 3), 200, "uint8"), (0.0, 0.0, 0.3, 0.3)
    one, two = draw(image, [Mark(edge, "cat", (0, 158, 115))]), draw(image, [Mark(edge, "cat", (0, 158, 115))] * 2)

    def color(picture):
        return (picture == (0, 158, 115)).all(-1).sum()

    assert color(two) > color(one) + 50
    beyond = draw(image, [Mark((0.95, 0.95, 1.4, 1.4), "a long name of a class", (0, 158, 115))])
    assert (beyond == (0, 158, 115)).all(-1).sum() > 1000


def test_a_picture_of_many_boxes_has_no_labels():
    image = np.full((320, 320, 3), 200, "uint8")
    labelled, plain = (Mark((0.2, 0.2, 0.8, 0.8), label, (0, 158, 115)) for label in ("cat", ""))
    np.testing.assert_array_equal(draw(image, [labelled] * 41), draw(image, [plain] * 41))


def test_a_sheet_has_a_legend_of_the_kinds_that_it_shows():
    image = np.full((40, 40, 3), 200, "uint8")
    every = box_comparison.sheet([image, image], [marks(), []])
    assert every.shape[1] == 2 * 320 + 8 and every.shape[0] > 320
    assert box_comparison.sheet([image], [[]], columns=1).shape == (320, 320, 3)


def row(name, ap, objects):
    return {"name": name, "ap": ap, "ap50": ap, "precision": ap, "recall": ap, "objects": objects}


def test_sections_show_classes_by_ap_sizes_and_the_confusion_with_the_background():
    rows = [row("cat", 0.9, 5), row("<b>dog</b>", 0.25, 2), row("fox", None, 0)]
    sizes = {"small": {"ap": None, "ar": None, "objects": 0}, "large": {"ap": 0.5, "ar": 0.75, "objects": 7}}
    sections = [
        detection_sections.classes(rows, 0.4),
        detection_sections.sizes(sizes),
        detection_sections.confusion([[4, 0, 1], [1, 1, 0], [2, 0, 0]], NAMES, 0.4),
    ]
    page = Page(html_report.page("x", sections))
    assert page.rows[0] == ["class", "AP", "AP50", "precision", "recall", "objects"]
    assert page.rows[1:3] == [
        ["<b>dog</b>", "25.0%", "25.0%", "25.0%", "25.0%", "2"],
        ["cat", "90.0%", "90.0%", "90.0%", "90.0%", "5"],
    ]
    assert ["small", "below 32 x 32", "-", "-", "0"] in page.rows
    assert ["large", "above 96 x 96", "50.0%", "75.0%", "7"] in page.rows
    assert page.rows[-1] == ["background", "2", "", ""]
    assert "1 of 3 classes have no objects here" in page.text and "scoring 0.4 or more" in page.text


def test_curves_of_the_worst_classes_and_their_mean():
    curves = {f"class {i}": [1 - i / 20] * 101 for i in range(10)}
    rows = [row(name, curve[0], 3) for name, curve in curves.items()]
    text = detection_sections.precision_recall(curves, rows)
    page = Page(html_report.page("x", [text]))
    assert "class 9, AP50 55.0%" in page.text and "class 1," not in page.text
    assert "the 8 of 10 classes with the lowest AP50" in page.text and text.count("<svg") == 1
    assert detection_sections.precision_recall({}, []) == ""


def test_examples_are_one_picture():
    text = detection_sections.examples(np.full((1, 40, 40, 3), 200, "uint8"), [marks()], "a note")
    page = Page(html_report.page("x", [text]))
    assert page.count("img") == 1 and "a note" in page.text
    assert detection_sections.examples(np.zeros((0, 4, 4, 3)), []) == ""
