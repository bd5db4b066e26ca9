"""Reads boxes from files with a JSON object for each image, of Vertex AI, Azure and SageMaker, as rows of a table.

{"imageGcsUri": "gs://.../a.jpg", "boundingBoxAnnotations": [{"displayName": "cat", "xMin": .2, ...}]}    Vertex AI
{"image_url": "azureml://.../a.jpg", "label": [{"label": "cat", "topX": .2, "topY": .1, ...}]}            Azure
{"source-ref": "s3://.../a.jpg", "bounding-box": {"image_size": [...], "annotations": [...]}, ...}        SageMaker
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_vit.data.annotations import annotation_files
from keras_vit.data.annotations.box_rows import CORNERS, SIZE, Row, Rows
from keras_vit.data.sources.table_rows import jsonl_rows
from keras_vit.io.paths import read_text

ENDINGS = (".jsonl", ".manifest")
_USE = "aiplatform.googleapis.com/ml_use"
_SIDES_VERTEX = ("xMin", "yMin", "xMax", "yMax")
_SIDES_AZURE = ("topX", "topY", "bottomX", "bottomY")
_SIDES_SAGEMAKER = ("left", "top", "width", "height")

_Objects = list[tuple[dict[str, str], tuple[str, ...]]]  # (cells, numbers) of each object


def _numbers(entry: Mapping[str, Any], sides: Sequence[str], default: Any = "") -> tuple[str, ...]:
    return tuple(str(entry.get(side, default)) for side in sides)


def _parse_vertex(row) -> tuple[dict[str, str], _Objects]:
    """Returns (cells of the image, its objects). A side of 0 may be missing, as in all JSON from protocol buffers."""
    use = str((row.get("dataItemResourceLabels") or {}).get(_USE, ""))
    objects = [
        ({"label": str(entry.get("displayName", ""))}, _numbers(entry, _SIDES_VERTEX, 0))
        for entry in row["boundingBoxAnnotations"]
    ]
    return {"image": str(row["imageGcsUri"]), "split": use}, objects


def _parse_azure(row) -> tuple[dict[str, str], _Objects]:
    objects = [
        (
            {"label": str(entry.get("label", "")), "crowd": str(entry.get("isCrowd", ""))},
            _numbers(entry, _SIDES_AZURE),
        )
        for entry in row["label"]
    ]
    return {"image": str(row["image_url"])}, objects


def _job(row):
    """Returns the key of the boxes in SageMaker's manifest, or ""."""
    return next((key for key, value in row.items() if isinstance(value, dict) and "annotations" in value), "")


def _parse_sagemaker(row) -> tuple[dict[str, str], _Objects]:
    job = _job(row)
    names = (row.get(f"{job}-metadata") or {}).get("class-map") or {}
    size = (row[job].get("image_size") or [{}])[0]
    cells = {"image": str(row["source-ref"]), **{side: str(size.get(side, "")) for side in ("height", "width")}}
    objects = []
    for entry in row[job]["annotations"]:
        number = str(entry.get("class_id", ""))
        objects.append(({"label": str(names.get(number, number))}, _numbers(entry, _SIDES_SAGEMAKER)))
    return cells, objects


def _is_azure(row):
    entries = row.get("label")
    return "image_url" in row and isinstance(entries, list) and all("topX" in entry for entry in entries)


_FORMATS = (  # (whether a line has this format, its reader, meaning of the numbers, whether they are fractions)
    (lambda row: {"imageGcsUri", "boundingBoxAnnotations"} <= row.keys(), _parse_vertex, CORNERS, True),
    (_is_azure, _parse_azure, CORNERS, True),
    (lambda row: "source-ref" in row and bool(_job(row)), _parse_sagemaker, SIZE, False),
)


def _format(row):
    return next((found for found in _FORMATS if isinstance(row, dict) and found[0](row)), None)


def has_boxes(path: str) -> bool:
    """Whether the first line has boxes in one of these formats; a line that is longer than what is read has."""
    first = annotation_files.read_start(path).lstrip("\ufeff").split("\n", 1)[0]
    try:
        return _format(json.loads(first)) is not None
    except json.JSONDecodeError:
        return any(key in first for key in ('"boundingBoxAnnotations"', '"topX"', '"source-ref"'))


def _rows(path) -> Iterator[tuple[Any, Row]]:
    """Yields (format, row) of each object, and of each image without objects.

    Raises:
        ValueError: for a line of another format.
    """
    for line, content in jsonl_rows(path, read_text(path)):
        kind = _format(content)
        try:
            cells, objects = kind[1](content)
        except (TypeError, KeyError, AttributeError, IndexError):
            raise ValueError(
                f'"{path}", line {line}: expected an image and its boxes as Vertex AI, Azure or SageMaker write them,'
                f" got {str(content)[:80]}."
            ) from None
        for own, numbers in objects or [({"label": ""}, ("",) * 4)]:
            yield kind, Row(line, {**cells, **own}, numbers)


def read_rows(path: str) -> Rows:
    """Reads the boxes of a file as rows.

    Raises:
        ValueError: for a malformed line, or a file without lines.
    """
    found = list(_rows(path))
    if not found:
        raise ValueError(f'"{path}" has no rows.')
    kind = found[0][0]
    if any(other is not kind for other, _ in found):
        raise ValueError(f'"{path}" mixes formats of several tools. Separate them.')
    return Rows([row for _, row in found], (kind[2],), kind[3])
