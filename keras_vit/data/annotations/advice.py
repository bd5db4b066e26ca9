"""Advice for a path whose annotations do not open: other tools' own formats, archives, a folder one level too high."""

import os
import re
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.annotations import annotation_files
from keras_vit.data.annotations.schema import Layout

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".7z", ".rar")
_TRIED = 3  # files of an ending
_FOLDERS = 20
_N = r"-?[\d.]+"  # a number
_TO_COCO = "Convert it to COCO or to a CSV table"
_BY_CSV = "Write a CSV with a row for each box: image, label, xmin, ymin, xmax, ymax"
_TRACKS = rf"\A\d+,-?\d+(?:,{_N}){{4,8}}\s"
_LISTS = {  # JSON by line, or a list of objects
    r'"data_row"|"Labeled Data"|"DataRow ID"': (
        "Labelbox's export. Convert it to COCO with Labelbox's SDK (labelbox.data.serialization)"
    ),
    r"<loc\d{4}>": "Roboflow's JSONL for PaliGemma. In Roboflow: Download Dataset, COCO",
    r'"jsonResponse"': "Kili's own JSON. In Kili: Export, COCO",
}
# {ending: {pattern in a file's first characters, the most specific first: what the file is, and what to do}}
_FOREIGN = {
    ".xml": {r"<annotations[\s>]": "CVAT's own XML. In CVAT: Export task dataset, COCO 1.0"},
    ".json": {
        **_LISTS,
        r'"FeatureCollection"': "GeoJSON, with coordinates on the globe. Export pixels, as COCO",
        r'"segments_info"': (
            "COCO's panoptic file, whose regions are PNGs. Open it as instances:FILE, instances_*.json for objects, or"
            " convert the PNGs to masks of class numbers"
        ),
        r'"caption"\s*:': "a file of captions. Open instances_*.json for objects",
        r'"rectanglelabels"|"polygonlabels"|"brushlabels"|"from_name"|"annotation_id"': (
            "Label Studio's own JSON. In Label Studio: Export, COCO or YOLO with Images"
        ),
        r'"shape_attributes"|"_via_settings"|"region_attributes"': (
            "a project of VGG Image Annotator. In VIA: Annotation, Export Annotations (COCO format)"
        ),
        r'"classTitle"|"geometryType"|"projectType"': (
            'Supervisely\'s own JSON. In Supervisely: run the app "Export to COCO" on the project'
        ),
        r'"dm_format|"media_type"|"label"\s*:\s*\{\s*"labels"': (
            "Datumaro's JSON. Convert it: datum convert -if datumaro -f coco; in CVAT: Export task dataset, COCO 1.0"
        ),
        r'"schema_ref"|darwin-py|"annotations".*"slot_names"': "V7 Darwin's JSON. In V7: Export, COCO",
        r'"label_classes"|"export_format_version"': "Hasty's own JSON. In Hasty: Export data, COCO Detection",
        r'"className"|"pointLabels"|"annotationStatus"': (
            "SuperAnnotate's own JSON. Convert it with its SDK: convert_json_to_coco, or export as COCO"
        ),
        r'"securityToken"|"sourceConnection"|"boundingBox"\s*:': "VoTT's JSON. In VoTT: Export Settings, Pascal VOC",
        r'"box2d"|"poly2d"|"timeofday"': "BDD100K's JSON. Convert it: python -m bdd100k.label.to_coco",
        r'"bboxVis"': f"CityPersons' JSON. {_BY_CSV}",
        r'"imgHeight"|"imgWidth"': (
            "Cityscapes' polygons. Open the masks beside it, leftImg8bit and gtFine, as masks:FOLDER"
        ),
        r'"bounding_box"[^{]*"category_name"|"landmarks".*"bounding_box"': f"DeepFashion2's JSON. {_BY_CSV}",
        r'"bbox"\s*:\s*\[\s*\{\s*"label"': f"Kvasir-SEG's JSON. {_BY_CSV}",
        r'"coordinates"\s*:': "CreateML's JSON. In Roboflow: Download Dataset, COCO; elsewhere, export as COCO",
        r'"(?:label_hash|data_hash)"': "Encord's JSON. Export the labels as COCO",
    },
    ".ndjson": _LISTS,
    ".jsonl": _LISTS,
    ".manifest": _LISTS,
    ".tfrecord": {"": "a TFRecord. Open its folder as tfrecord:FOLDER"},
    ".mat": {"": f"a file of MATLAB. {_BY_CSV}, or write PNG masks of class numbers"},
    ".odgt": {r'"gtboxes"': f"CrowdHuman's list. {_BY_CSV}"},
    ".txt": {
        r"^# Compatible with PASCAL Annotation Version 1": (
            f"PASCAL's text of 2005, as in Penn-Fudan. {_BY_CSV}; its PNGs number objects, not classes"
        ),
        r"^imagesource:|^gsd:|^(?:-?[\d.]+ ){8}[a-z][\w-]* [012]\s*$": (
            "DOTA's labelTxt, turned boxes by their corners. Write a COCO file with these corners as polygons"
            " (segmentation)"
        ),
        r"^[A-Za-z_]+ \d\.\d+ \d (?:-?\d+\.\d+ ){11}-?\d+\.\d+\s*$": f"KITTI's label_2. {_BY_CSV}",
        r"^\d+(?:,-?\d+){7},?\s*$": f"VisDrone's text. {_BY_CSV}",
        _TRACKS: f"a table of tracks of the MOT Challenge. {_TO_COCO}",
        r"\A\S+\.jpg\s+\d+\s+(?:\d+ ){9}\d+\s": f"a list of faces of WIDER FACE. {_TO_COCO}",
        r"\A\S+\.\w+(?: \d+,\d+,\d+,\d+,\d+)+\s": f"a list of images with boxes, as for keras-yolo3. {_TO_COCO}",
    },
    ".csv": {
        _TRACKS: f"a table of tracks of the MOT Challenge. {_TO_COCO}",
        r"\A[^\n]*region_shape_attributes": "a table of VGG Image Annotator. Export its annotations as COCO",
        r"rectanglelabels": "a table of Label Studio. Export the project as COCO or YOLO",
        r"\Afilename(?:, ?[^,\n]+)+\n[^,\n]+\.\w+(?:, ?[01])+\s": (
            "a table of classes of whole images, of Roboflow's multi-label classification. It has no boxes"
        ),
    },
}


def _recognise(root: str) -> str:
    """Returns a sentence about the first file in a format that does not open, or the columns of a CSV; "" without."""
    for end, kinds in _FOREIGN.items():
        for path in [root] if root.lower().endswith(end) else annotation_files.find_files(root, end)[:_TRIED]:
            start = annotation_files.read_start(path).lstrip("\ufeff") + "\n"
            found = next((kind for pattern, kind in kinds.items() if re.search(pattern, start, re.MULTILINE)), None)
            if found:
                return f'"{path}" is {found}.'
            if end == ".csv":
                return _describe_columns(path, start.partition("\n")[0].strip()[:200])
    return ""


def _describe_columns(path, line):
    fix = " It names no columns: add a first line such as image,xmin,ymin,xmax,ymax,label."
    numbers = re.findall(rf"(?:^|,)\s*{_N}\s*(?=,|$)", line)
    return f'The first line of "{os.path.basename(path)}" is {line!r}.{fix if len(numbers) > 3 else ""}'


def _look_inside(root, find):
    """A sentence about the first folder in `root` with annotations, the reason why they do not open, or ""."""
    reasons = []
    for name in annotation_files.list_names(root)[:_FOLDERS]:
        place = os.path.join(root, name)
        if not tf.io.gfile.isdir(place):
            continue
        try:
            layout = find(place)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if layout is not None:
            return f'Its folder "{name}" has {layout.format} annotations: open "{place}".'
    return next(iter(reasons), "")


def advice(root: str, find: Callable[[str], Layout | None]) -> str:
    """Returns a sentence that says how to open what is at `root`, or "".

    Args:
        root: str. Folder or file without annotations that open.
        find: callable. Maps a folder to the layout of its annotations, or None.
    """
    if root.lower().endswith(_ARCHIVES):
        return "Unpack it, and open the folder."
    return _look_inside(root, find) or _recognise(root)
