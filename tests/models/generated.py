"""Generated files: from the fields of the specs the keyword arguments in keras_vit/models/overrides.py and the tables
in docs/reference/model_fields.md; the costs of all models in keras_vit/planning/counts.csv. `make generate` writes
them, in some minutes; test_fields.py compares the former, planning/test_counting.py some of the costs.
"""

import pathlib

from keras_vit.models import fields
from keras_vit.models.families import FAMILIES
from keras_vit.planning.model_count import COUNTS, as_csv
from keras_vit.planning.models import count_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
OVERRIDES, PAGE = ROOT / "keras_vit" / "models" / "overrides.py", ROOT / "docs" / "reference" / "model_fields.md"


def overrides() -> str:
    """A TypedDict of each family's fields, and one of all together."""
    first, *others = FAMILIES.values()
    dicts = [
        fields.typed_dict(f"{row.name}Overrides", fields.rows(row.spec), doc=f"Any field of {row.spec.__name__}.")
        for row in (first, *others)
    ]
    rest = {name: field for row in others for name, field in fields.rows(row.spec).items() if name not in first.fields}
    dicts.append(fields.typed_dict("AnyOverrides", rest, f"{first.name}Overrides", "Any field of a spec."))
    return "\n\n\n".join(dicts)


def between(text: str, start: str, end: str, new: str) -> str:
    """`text` with `new` between the lines `start` and `end`."""
    before, _, rest = text.partition(f"{start}\n")
    assert end in rest, start
    return f"{before}{start}\n{new}\n{end}{rest.partition(end)[2]}"


def files() -> dict[pathlib.Path, str]:
    """{path: the text that the file should have} of what the fields give."""
    start, end = "# Generated from the fields of the specs by `make generate`.", "# End of the generated code."
    source = between(OVERRIDES.read_text(), start, end, f"\n\n{overrides()}\n\n")
    page = PAGE.read_text()
    for row in FAMILIES.values():
        start = f"<!-- the fields of {row.spec.__name__}, by `make generate` -->"
        page = between(page, start, "<!-- end -->", f"\n{fields.markdown(row.spec)}\n")
    return {OVERRIDES: source, PAGE: page}


if __name__ == "__main__":
    for path, text in {**files(), COUNTS: as_csv(count_models())}.items():
        path.write_text(text)
