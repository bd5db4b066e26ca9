"""Names text files of boxes that do not open, by their first lines, and says what to do."""

import os
import re

from keras_vit.data.annotations import annotation_files

_N = r"-?[\d.]+"  # a number
_COCO = "Convert it to COCO or to a CSV table"
# (endings, pattern at the start of the file, what it is and what to do)
_KINDS = (
    ((".txt", ".csv"), rf"\d+,-?\d+(?:,{_N}){{4,8}}\s", f"a table of tracks of the MOT Challenge. {_COCO}"),
    ((".txt",), r"\S+\.jpg\s+\d+\s+(?:\d+ ){9}\d+\s", f"a list of faces of WIDER FACE. {_COCO}"),
    ((".txt",), r"\S+\.\w+(?: \d+,\d+,\d+,\d+,\d+)+\s", f"a list of images with boxes, as for keras-yolo3. {_COCO}"),
    ((".csv",), r"[^\n]*region_shape_attributes", "a table of VGG Image Annotator. Export its annotations as COCO"),
    ((".csv",), r"(?s:.*)rectanglelabels", "a table of Label Studio. Export the project as COCO or YOLO"),
    (
        (".csv",),
        r"filename(?:, ?[^,\n]+)+\n[^,\n]+\.\w+(?:, ?[01])+\s",
        "a table of classes of whole images, of Roboflow's multi-label classification. It has no boxes",
    ),
    ((".json",), r'(?s:.*)"(?:label_hash|data_hash)"', "Encord's JSON. Export the labels as COCO"),
)
_TRIED = 3  # files of an ending


def foreign_table(root: str) -> str:
    """A sentence about the first text file of another tool, at `root` or in that folder, or ""."""
    for end in dict.fromkeys(end for ends, *_ in _KINDS for end in ends):
        for path in [root] if root.lower().endswith(end) else annotation_files.below(root, end)[:_TRIED]:
            start = annotation_files.start_of(path).lstrip("\ufeff") + "\n"
            found = next((kind for ends, pattern, kind in _KINDS if end in ends and re.match(pattern, start)), None)
            if found:
                return f'"{path}" is {found}.'
            if end == ".csv":
                columns = start.partition("\n")[0].strip()[:200]
                fix = " It names no columns: add a first line such as image,xmin,ymin,xmax,ymax,label."
                numbers = re.findall(rf"(?:^|,)\s*{_N}\s*(?=,|$)", columns)
                first = f'The first line of "{os.path.basename(path)}" is {columns!r}.'
                return f"{first}{fix if len(numbers) > 3 else ''}"
    return ""
