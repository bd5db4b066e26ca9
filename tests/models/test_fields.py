"""The table of the specs' fields: every field has a row, takes and refuses values by its kind, and what is generated
from the table is current.
"""

import inspect
import json
import re

import numpy as np
import pytest
from generated import files

from keras_vit.checkpoints.reading.metadata import check_fields
from keras_vit.models import fields
from keras_vit.models.families import FAMILIES

ROWS = [(family, name) for family in FAMILIES.values() for name in family.fields]
each_row = pytest.mark.parametrize(("family", "name"), ROWS, ids=[f"{family.name}.{name}" for family, name in ROWS])
INTEGERS = [(0, "integer"), (2.5, "got 2.5"), (True, "got True"), ("2", "got '2'")]
NUMBERS = [(True, "must be a number, got True"), ("0.1", "number, got '0.1'"), (float("nan"), "number, got nan")]
# By what a kind takes: [(a value, the plain one)], and [(a value of another kind or range, part of the message)].
KINDS = {
    "a positive integer": ([(np.int64(2), 2)], [*INTEGERS, (0, "must be a positive integer, got 0")]),
    "an integer of 0 or more": ([(np.int8(0), 0)], [*INTEGERS[1:], (-1, "must be an integer of 0 or more, got -1")]),
    "an integer of 2 or more": ([(np.int64(2), 2)], [*INTEGERS, (1, "must be an integer of 2 or more, got 1")]),
    "an integer of 0 or more, or one per block": (
        [(np.int64(1), 1), (np.array([0, 1]), (0, 1))],
        [*INTEGERS[1:], (-1, "must be an integer of 0 or more, got -1"), ((1, 0.5), "got 0.5")],
    ),
    "True or False": ([(np.bool_(True), True), (0, False)], [("no", "must be True or False, got 'no'"), (2, "got 2")]),
    "a number": ([(np.float64(0.5), 0.5), (2, 2)], NUMBERS),
    "a number of 0 or more": ([(np.float32(0.5), 0.5)], [*NUMBERS, (-1, "must be 0 or more, got -1")]),
    "a number of 1 or more": ([(np.float32(1.5), 1.5)], [*NUMBERS, (0.5, "must be 1 or more, got 0.5")]),
    "a number above 0 and below 1": (
        [(np.float32(0.5), 0.5)],
        [*NUMBERS, (0.0, "must be above 0 and below 1, got 0.0"), (10, "must be above 0 and below 1, got 10")],
    ),
    "a number in [0, 1)": ([(0, 0.0)], [*NUMBERS, (1.0, "must be in [0, 1), got 1.0"), (-0.1, "must be in [0, 1)")]),
    "a number, or one per channel": (
        [(np.array(3.0), 3.0), (np.array([1.0, 2.0]), (1.0, 2.0)), ([1, 2], (1, 2))],
        [*NUMBERS, ((), "must be a number, or one per channel, got ()"), (np.ones((3, 1)), "must be a number")],
    ),
    "a positive integer or a pair (height, width)": (
        [(np.int64(2), (2, 2)), (np.array([2, 4]), (2, 4))],
        [*INTEGERS, ((1, 2, 3), "must be a positive integer or a pair (height, width) of them, got (1, 2, 3)")],
    ),
    "numbers of blocks": (
        [(np.array([5, 2]), (2, 5)), (range(2), (0, 1)), (3, (3,))],
        [("last", "got 'last'"), ((-1,), "must be an integer of 0 or more, got -1"), ((0.5,), "got 0.5")],
    ),
    "an attention pattern": (
        [("window(14,global=(8, 2))", "window(14, global=(2, 8))"), (np.str_("axial"), "axial")],
        [("windows(7)", 'Did you mean "window"?'), (3, "must be one of global, axial, window(r)")],
    ),
    "numbers or pairs (rows, columns)": (
        [((12, np.int64(6)), ((12, 12), (6, 6))), ([[2, 3]], ((2, 3),))],
        [(3, "must be one window per stage"), ((), "such as (12, 12, 12, 6), got ()"), ((0,), "got 0")],
    ),
    "a number above 0": ([(np.float32(0.5), 0.5), (4, 4)], [*NUMBERS, (0, "must be above 0, got 0")]),
    "positive integers": (
        [(np.array([2, 3]), (2, 3)), ([2], (2,))],
        [(3, "must be positive integers, such as ("), ((True, 1), "got (True, 1)"), ((0, 8), "got (0, 8)")],
    ),
}


def samples(field):
    """A row of KINDS."""
    choices = list(field.metadata["kind"].choices)
    if not choices:
        return KINDS[field.metadata["kind"].words]
    message = f'Unknown {field.name} "{choices[0]}x". Did you mean "{choices[0]}"? Valid: {", ".join(choices)}.'
    return [(np.str_(choices[0]), choices[0])], [(f"{choices[0]}x", message), (3, f"Unknown {field.name} 3.")]


@each_row
def test_a_field_takes_values_of_its_kind_and_keeps_them_plain(family, name):
    field = family.fields[name]
    taken, refused = samples(field)
    for given, expected in taken:
        value = fields.plain(field, given)
        assert json.dumps(value) == json.dumps(expected) and type(value) is type(expected)
    for given, message in refused:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            fields.plain(field, given)
        assert name in str(caught.value)
    if "None" not in fields.takes(field):
        with pytest.raises(ValueError, match=f"{name}.* None"):
            fields.plain(field, None)


@each_row
def test_a_field_of_a_file_is_checked_by_the_same_row(family, name):
    good = family.make_spec(family.variants[0]).to_dict()
    check_fields(json.loads(json.dumps(good)), family.spec, "m.npz")
    foreign = [value for value, _ in samples(family.fields[name])[1] if not isinstance(value, np.ndarray)]
    for value in (*foreign, {"a": 1}, 10**400, "x" * 10**6, [[1]]):
        with pytest.raises(ValueError, match=f"^m.npz: .*{name}") as caught:
            check_fields({**good, name: value}, family.spec, "m.npz")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_field_has_a_row_which_help_shows(family):
    assert fields.rows(family.spec).keys() == family.fields.keys()
    shown = " ".join(inspect.getdoc(family.spec).split())
    for name, field in family.fields.items():
        assert f" {name}: {fields.takes(field)}; by default {fields.default(field)}." in shown
        assert field.metadata["meaning"] in shown and field.metadata["meaning"].endswith(".")


@pytest.mark.extended
def test_what_the_table_generates_is_current():
    for path, text in files().items():
        assert path.read_text() == text, f"{path} is not what the fields of the specs generate: run `make generate`"
