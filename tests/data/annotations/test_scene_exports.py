"""Exports of annotation tools, in each tool's own layout: they open with exactly these objects, or are named.

A function for each writes the files and returns what is expected: {split: {image: [(label, top, left, bottom, right)]}}
in pixels, or the pattern of a message.
"""

import json
import os

import pytest
from annotation_files import SIZE, picture, shape, text
from box_files import voc_object, voc_xml

from keras_vit.data.annotations import box_source, schema
from keras_vit.data.open import open_source

HEIGHT, WIDTH = SIZE  # 8, 10
CAT, DOG = ("cat", 1, 2, 4, 5), ("dog", 0, 6, 7, 9)  # label, top, left, bottom, right
CAT_AT, DOG_AT = [2, 1, 3, 3], [6, 0, 3, 7]  # x, y, width, height
BOTH = {"a.jpg": [CAT], "b.jpg": [CAT, DOG], "c.jpg": []}
EXPORTS = {}


def export(function):
    EXPORTS[function.__name__.replace("_", " ").strip()] = function
    return function


def pictures(folder, *names):
    for name in names:
        picture(folder / name)


def coco(names, *, first_image=1, first=1, categories=((1, "cat"), (2, "dog")), outlines=False, **extra):
    """COCO's content for three images: one cat; a cat and a dog; nothing."""
    images = [
        {"id": i, "width": WIDTH, "height": HEIGHT, "file_name": name, **extra}
        for i, name in enumerate(names, first_image)
    ]
    placed = [(0, 0, CAT_AT), (1, 0, CAT_AT), (1, 1, DOG_AT)]
    annotations = []
    for number, (image, kind, box) in enumerate(placed, first):
        x, y, width, height = box
        outline = [[x, y, x + width, y, x + width, y + height, x, y + height]] if outlines else []
        annotations.append(
            {
                "id": number,
                "image_id": first_image + image,
                "category_id": categories[kind][0],
                "segmentation": outline,
                "area": float(width * height),
                "bbox": [float(side) for side in box],
                "iscrowd": 0,
            }
        )
    kinds = [{"id": number, "name": name, "supercategory": ""} for number, name in categories]
    return {"images": images, "categories": kinds, "annotations": annotations}


NAMES = ("a.jpg", "b.jpg", "c.jpg")


@export
def coco_itself(folder):
    for split in ("train", "val"):
        pictures(folder / f"{split}2017", *NAMES)
        text(folder / f"annotations/instances_{split}2017.json", coco(NAMES))
        text(folder / f"annotations/captions_{split}2017.json", {"images": [], "annotations": []})
        text(folder / f"annotations/person_keypoints_{split}2017.json", coco(NAMES))
    return {split: {f"{split}2017/{name}": found for name, found in BOTH.items()} for split in ("train", "val")}


@export
def coco_of_cvat(folder):
    """CVAT: Export task dataset, COCO 1.0, with images."""
    pictures(folder / "images/default", *NAMES)
    content = coco(NAMES, outlines=True, license=0, flickr_url="", coco_url="", date_captured=0)
    licenses = [{"name": "", "id": 0, "url": ""}]
    text(folder / "annotations/instances_default.json", {"licenses": licenses, "info": {}, **content})
    return {"train": {f"images/default/{name}": found for name, found in BOTH.items()}}


@export
def coco_of_label_studio(folder):
    """Label Studio: Export, COCO with Images, of a server on Windows."""
    pictures(folder / "images", "1f2e3d4c-a.jpg", "2f2e3d4c-b%20x.jpg", "c.jpg")
    names = ("images\\1f2e3d4c-a.jpg", "images\\2f2e3d4c-b%20x.jpg", "images\\c.jpg")
    content = coco(names, first_image=0, first=0, categories=((0, "cat"), (1, "dog")))
    text(folder / "result.json", {**content, "info": {"contributor": "Label Studio"}})
    found = dict(zip(("images/1f2e3d4c-a.jpg", "images/2f2e3d4c-b%20x.jpg", "images/c.jpg"), BOTH.values()))
    return {"train": found}


@export
def coco_of_label_studio_with_local_files(folder):
    pictures(folder / "photos", *NAMES)
    names = [f"/data/local-files/?d=photos/{name}" for name in NAMES]
    text(folder / "result.json", coco(names, first_image=0, first=0, categories=((0, "cat"), (1, "dog"))))
    return {"train": {f"photos/{name}": found for name, found in BOTH.items()}}


@export
def coco_of_roboflow(folder):
    """Roboflow: Download Dataset, COCO; category 0 groups the others, ids begin at 0 in each split."""
    for split in ("train", "valid", "test"):
        pictures(folder / split, *NAMES)
        content = coco(NAMES, first_image=0, first=0, license=1)
        content["categories"] = [
            {"id": 0, "name": "pets", "supercategory": "none"},
            *({**kind, "supercategory": "pets"} for kind in content["categories"]),
        ]
        text(folder / split / "_annotations.coco.json", {"info": {"year": "2024"}, **content})
    text(folder / "README.roboflow.txt", "pets - v1\n")
    folders = {"train": "train", "val": "valid", "test": "test"}
    return {split: {f"{place}/{name}": found for name, found in BOTH.items()} for split, place in folders.items()}


@export
def coco_of_via(folder):
    """VIA: Export Annotations (COCO format), whose image_id is text and whose outlines are flat lists."""
    pictures(folder, *NAMES)
    content = coco(NAMES)
    for row in content["annotations"]:
        x, y, width, height = row["bbox"]
        row["image_id"] = str(row["image_id"])
        row["segmentation"] = [x, y, x + width, y, x + width, y + height, x, y + height]
    text(folder / "via_export_coco.json", {"info": {"year": 2024}, **content})
    return {"train": BOTH}


@export
def coco_of_hasty(folder):
    pictures(folder / "images/day", *NAMES)
    text(folder / "coco.json", {"info": {}, "licenses": [], **coco([f"day/{name}" for name in NAMES], outlines=True)})
    return {"train": {f"images/day/{name}": found for name, found in BOTH.items()}}


@export
def coco_of_datumaro(folder):
    for split in ("train", "val"):
        pictures(folder / "images" / split, *NAMES)
        text(folder / f"annotations/instances_{split}.json", coco(NAMES))
    return {split: {f"images/{split}/{name}": found for name, found in BOTH.items()} for split in ("train", "val")}


@export
def coco_of_supervisely(folder):
    """Supervisely's app "Export to COCO": a folder for each dataset of the project."""
    pictures(folder / "images", *NAMES)
    text(folder / "annotations/instances.json", {"info": {}, "licenses": [None], **coco(NAMES, outlines=True)})
    return {"train": {f"images/{name}": found for name, found in BOTH.items()}}


@export
def lvis(folder):
    """LVIS v1 names images by their address alone."""
    pictures(folder / "train2017", *NAMES)
    content = coco(NAMES)
    for image in content["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
    text(folder / "lvis_v1_train.json", content)
    return {"train": {f"train2017/{name}": found for name, found in BOTH.items()}}


@export
def objects365(folder):
    pictures(folder / "images/v1/patch8", *NAMES)
    text(folder / "zhiyuan_objv2_train.json", coco([f"images/v1/patch8/{name}" for name in NAMES]))
    return {"train": {f"images/v1/patch8/{name}": found for name, found in BOTH.items()}}


@export
def coco_of_two_cameras(folder):
    names = ("cam1/a.jpg", "cam2/a.jpg", "cam2/b.jpg")
    pictures(folder, *names)
    text(folder / "train.json", coco(names))
    return {"train": dict(zip(names, BOTH.values()))}


@export
def voc_itself(folder):
    root = folder / "VOCdevkit/VOC2007"
    pictures(root / "JPEGImages", *NAMES)
    more = "<source><database>The VOC2007 Database</database></source>"
    for name, found in BOTH.items():
        objects = [voc_object(label, left + 1, top + 1, right, bottom) for label, top, left, bottom, right in found]
        text(root / f"Annotations/{name[0]}.xml", voc_xml(*objects, image=name, more=more))
    for split, lines in (("train", "a\nb\n"), ("val", "c\n"), ("trainval", "a\nb\nc\n"), ("cat_train", "a 1\nb -1\n")):
        text(root / f"ImageSets/Main/{split}.txt", lines)
    found = {f"VOCdevkit/VOC2007/JPEGImages/{name}": found for name, found in BOTH.items()}
    own = [{name: found[name] for name in list(found)[part]} for part in (slice(2), slice(2, 3), slice(3))]
    return dict(zip(("train", "val", "trainval"), own))


def voc_files(folder, images, **options):
    for name, found in BOTH.items():
        objects = [voc_object(label, left, top, right, bottom) for label, top, left, bottom, right in found]
        text(folder / f"{name[0]}.xml", voc_xml(*objects, image=images.format(name), **options))


@export
def voc_of_labelimg(folder):
    pictures(folder, *NAMES)
    voc_files(folder, "{}", more="<folder>photos</folder><path>C:\\photos\\a.jpg</path>")
    return {"train": BOTH}


@export
def voc_of_cvat(folder):
    """CVAT: Pascal VOC 1.1, all images in the list "default"."""
    pictures(folder / "JPEGImages", *NAMES)
    voc_files(folder / "Annotations", "{}", more="<source><database>Unknown</database></source>")
    text(folder / "ImageSets/Main/default.txt", "a\nb\nc\n")
    text(folder / "labelmap.txt", "# label:color_rgb:parts:actions\ncat:::\ndog:::\n")
    return {"train": {f"JPEGImages/{name}": found for name, found in BOTH.items()}}


@export
def voc_of_label_studio(folder):
    """Label Studio: Pascal VOC XML; <filename> has no extension."""
    pictures(folder / "images", *NAMES)
    for name, found in BOTH.items():
        objects = [voc_object(label, left, top, right, bottom) for label, top, left, bottom, right in found]
        text(folder / f"Annotations/{name[0]}.xml", voc_xml(*objects, image=name[0], more="<folder/>"))
    return {"train": {f"images/{name}": found for name, found in BOTH.items()}}


@export
def voc_of_roboflow(folder):
    for split in ("train", "valid"):
        pictures(folder / split, *NAMES)
        voc_files(folder / split, "{}", more="<source><database>roboflow.com</database></source>")
    folders = {"train": "train", "val": "valid"}
    return {split: {f"{place}/{name}": found for name, found in BOTH.items()} for split, place in folders.items()}


@export
def voc_of_vott(folder):
    """VoTT: Pascal VOC, in the folder NAME-PascalVOC-export."""
    root = folder / "pets-PascalVOC-export"
    pictures(root / "JPEGImages", *NAMES)
    voc_files(root / "Annotations", "{}", more="<path>/me/{}</path>")
    text(root / "pascal_label_map.pbtxt", "item {\n id: 1\n name: 'cat'\n}\n")
    return {"train": {f"pets-PascalVOC-export/JPEGImages/{name}": found for name, found in BOTH.items()}}


def labelme_files(folder, image="{}", kind="rectangle", **options):
    for name, found in BOTH.items():
        shapes = []
        for label, top, left, bottom, right in found:
            corners = ((left, top), (right, bottom))
            if kind != "rectangle":
                corners = ((left, top), (right, top), (right, bottom), (left, bottom))
            shapes.append(shape(corners, label, kind, group_id=None, flags={}))
        about = {"imagePath": image.format(name), "imageData": None, "imageHeight": HEIGHT, "imageWidth": WIDTH}
        text(folder / f"{name[0]}.json", {"version": "5.5.0", "flags": {}, "shapes": shapes, **about, **options})


@export
def labelme(folder):
    pictures(folder, *NAMES)
    labelme_files(folder)
    return {"train": BOTH}


@export
def labelme_in_a_folder_of_its_own(folder):
    pictures(folder / "images", *NAMES)
    labelme_files(folder / "labels", "..\\images\\{}")
    return {"train": {f"images/{name}": found for name, found in BOTH.items()}}


@export
def x_anylabeling(folder):
    """X-AnyLabeling writes LabelMe's files, with four corners of rectangles, and turned ones."""
    pictures(folder, *NAMES)
    labelme_files(folder, kind="rotation", version="2.4.4", description="")
    return {"train": BOTH}


@export
def labelme_groups(folder):
    picture(folder / "a.jpg")
    parts = [((2, 1), (3, 2)), ((4, 3), (5, 4))]
    shapes = [shape(points, "cat", "rectangle", group_id=7) for points in parts]
    about = {"imagePath": "a.jpg", "imageHeight": HEIGHT, "imageWidth": WIDTH}
    text(folder / "a.json", {"version": "5.0", "shapes": shapes, **about})
    return {"train": {"a.jpg": [CAT]}}


# Named


def named(name, file, content, message):
    """Registers an export that is named by both kinds of sources."""

    def write(folder):
        picture(folder / "images/a.jpg")
        text(folder / file, content)
        return message

    EXPORTS[name] = write


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows)


named(
    "cvat for images 1.1",
    "annotations.xml",
    '<?xml version="1.0"?><annotations><version>1.1</version><image id="0" name="a.jpg"/></annotations>',
    "CVAT's own XML. In CVAT: Export task dataset, COCO 1.0",
)
LABELS = {"from_name": "label", "type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["cat"]}}
named(
    "label studio",
    "project-1.json",
    [{"id": 1, "annotations": [{"result": [LABELS]}]}],
    "In Label Studio: Export, COCO",
)
named(
    "label studio min", "min.json", [{"image": "/a.jpg", "annotation_id": 1, "lead_time": 2}], "In Label Studio: Export"
)
REGION = {"shape_attributes": {"name": "rect", "x": 1}, "region_attributes": {"label": "cat"}}
VIA = {"a.jpg12": {"filename": "a.jpg", "size": 12, "regions": [REGION]}}
named("via regions", "via_region_data.json", VIA, "In VIA: Annotation, Export Annotations")
named("via project", "via_project.json", {"_via_settings": {}, "_via_img_metadata": VIA}, "In VIA: Annotation")
SHAPE = {"classTitle": "cat", "geometryType": "rectangle", "points": {"exterior": [[2, 1], [5, 4]], "interior": []}}
SUPERVISELY = {"description": "", "tags": [], "size": {"height": 8, "width": 10}, "objects": [SHAPE]}
named("supervisely", "ds0/ann/a.jpg.json", SUPERVISELY, 'In Supervisely: run the app "Export to COCO"')
named("labelbox ndjson", "export.ndjson", lines({"data_row": {"id": "x"}, "projects": {}}), "Labelbox's export")
named(
    "labelbox json", "export.json", [{"ID": "x", "Labeled Data": "https://x/a.jpg", "Label": {}}], "Labelbox's export"
)
VOTT = {"name": "pets", "securityToken": "x", "assets": {"1": {"regions": [{"boundingBox": {"left": 2}}]}}}
named("vott", "vott-json-export/pets-export.json", VOTT, "In VoTT: Export Settings, Pascal VOC")
CREATE = {"label": "cat", "coordinates": {"x": 3.5, "y": 2.5, "width": 3, "height": 3}}
named("createml", "_annotations.createml.json", [{"image": "a.jpg", "annotations": [CREATE]}], "CreateML's JSON")
DATUMARO = {"infos": {}, "categories": {"label": {"labels": [{"name": "cat"}]}}, "items": [{"id": "a"}]}
named("datumaro", "annotations/default.json", {"dm_format_version": "1.0", **DATUMARO}, "datum convert -if datumaro")
named("datumaro of old versions", "annotations/default.json", DATUMARO, "datum convert -if datumaro")
SUPER = {"metadata": {"name": "a.jpg"}, "instances": [{"type": "bbox", "className": "cat", "points": {"x1": 2}}]}
named("superannotate", "a.jpg.json", SUPER, "SuperAnnotate's own JSON")
DARWIN = {"version": "2.0", "schema_ref": "https://darwin", "item": {"name": "a.jpg"}, "annotations": []}
named("v7 darwin", "a.json", DARWIN, "In V7: Export, COCO")
HASTY = {"project_name": "pets", "export_format_version": "1.1", "label_classes": [], "images": [{"labels": []}]}
named("hasty", "pets.json", HASTY, "In Hasty: Export data, COCO")
BDD = [{"name": "a.jpg", "attributes": {"timeofday": "day"}, "labels": [{"category": "cat", "box2d": {"x1": 2}}]}]
named("bdd100k", "det_train.json", BDD, "bdd100k.label.to_coco")
PERSON = {
    "imgHeight": 8,
    "imgWidth": 10,
    "objects": [{"label": "pedestrian", "bbox": [2, 1, 3, 3], "bboxVis": [2, 1, 3, 3]}],
}
named("citypersons", "gtBboxCityPersons/a.json", PERSON, "CityPersons' JSON. Write a CSV")
STREET = {"imgHeight": 8, "imgWidth": 10, "objects": [{"label": "road", "polygon": [[0, 0], [1, 1]]}]}
named("cityscapes polygons", "a_gtFine_polygons.json", STREET, "Cityscapes' polygons. Open the masks")
PROMPT = {"image": "a.jpg", "prefix": "detect cat", "suffix": "<loc0128><loc0200> cat"}
named("paligemma of roboflow", "_annotations.train.jsonl", lines(PROMPT), "In Roboflow: Download Dataset, COCO")
named("kili", "labels.json", [{"labels": [{"jsonResponse": {}}]}], "In Kili: Export, COCO")
named(
    "geojson",
    "a.geojson.json",
    {"type": "FeatureCollection", "features": [{"geometry": {"coordinates": []}}]},
    "GeoJSON",
)
named("dota", "labelTxt/P0001.txt", "imagesource:GoogleEarth\ngsd:0.14\n1 1 5 1 5 4 1 4 cat 0\n", "DOTA's labelTxt")
named(
    "dota without a header",
    "labelTxt/P0001.txt",
    "1.0 1.0 5.0 1.0 5.0 4.0 1.0 4.0 small-vehicle 1\n",
    "DOTA's labelTxt",
)
KITTI = "Car 0.00 0 1.57 599.41 156.40 629.75 189.25 2.85 2.63 12.34 0.47 1.49 69.44 -1.56\n"
named("kitti", "label_2/000000.txt", KITTI, "KITTI's label_2")
named("visdrone", "annotations/a.txt", "2,1,3,3,1,4,0,0\n6,0,3,7,1,1,0,0\n", "VisDrone's text")


FASHION = {"source": "user", "item1": {"landmarks": [1], "bounding_box": [1, 1, 5, 5], "category_name": "vest"}}
named("deepfashion2", "train/annos/000001.json", FASHION, "DeepFashion2's JSON. Write a CSV")
KVASIR = {"a": {"height": 8, "width": 10, "bbox": [{"label": "polyp", "xmin": 2}]}}
named("kvasir", "kavsir_bboxes.json", KVASIR, "Kvasir-SEG's JSON. Write a CSV")
named("crowdhuman", "annotation_train.odgt", lines({"ID": "a", "gtboxes": []}), "CrowdHuman's list. Write a CSV")
named("stanford cars", "devkit/cars_train_annos.mat", "MATLAB 5.0 MAT-file", "a file of MATLAB. Write a CSV")
PENN_FUDAN = "# Compatible with PASCAL Annotation Version 1.00\n"
named("penn-fudan", "Annotation/a.txt", PENN_FUDAN, "as in Penn-Fudan. Write a CSV .* PNGs number objects")
HEADLESS = "a.jpg,1,5,21,40,object,80,60\n"
named("sku110k", "annotations/annotations_train.csv", HEADLESS, "It names no columns: add a first line such as image,")


@export
def taco(folder):
    pictures(folder / "data/batch_1", *NAMES)
    for name in ("annotations", "annotations_unofficial"):
        text(folder / f"data/{name}.json", coco([f"batch_1/{name}" for name in NAMES]))
    return "several files for the split .*annotations.json, .*annotations_unofficial.json. Open one of them"


@export
def oxford_pets(folder):
    pictures(folder / "images", *NAMES)
    voc_files(folder / "annotations/xmls", "{}")
    return {"train": {f"images/{name}": found for name, found in BOTH.items()}}


@export
def coco_panoptic(folder):
    picture(folder / "train2017/a.jpg")
    rows = [{"image_id": 1, "file_name": "a.png", "segments_info": [{"id": 9, "category_id": 1, "bbox": CAT_AT}]}]
    text(folder / "annotations/panoptic_train2017.json", coco(NAMES) | {"annotations": rows})
    return r"panoptic segmentation, whose regions are PNGs \(instances:PATH reads them\). Open a file of objects"


@export
def coco_captions(folder):
    picture(folder / "train2017/a.jpg")
    rows = [{"image_id": 1, "id": 1, "caption": "A cat."}]
    text(
        folder / "annotations/captions_train2017.json",
        {"info": {}, "images": coco(NAMES)["images"], "annotations": rows},
    )
    return "captions of whole images. Open a file of objects"


def objects(folder):
    """{split: {image: [(label, top, left, bottom, right)]}} as read, and nothing of TensorFlow runs."""
    found = {}
    for split, read in box_source.find(str(folder)).splits.items():
        annotations = read()
        images = list(annotations.images)
        assert not any(image.fault for image in images) and not annotations.fractions
        found[split] = {
            os.path.relpath(image.path, folder): [(r.label, *schema.bounding_box(r, image.size)) for r in image.regions]
            for image in images
        }
    return found


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_opens_with_its_objects_or_is_named(tmp_path, name):
    expected = EXPORTS[name](tmp_path)
    if not isinstance(expected, str):
        assert objects(tmp_path) == expected
        return
    for kind in ("boxes", "masks"):
        with pytest.raises(ValueError, match=expected):
            open_source(f"{kind}:{tmp_path}", "train")


def test_boxes_opened_as_masks_are_named(tmp_path):
    voc_of_labelimg(tmp_path)
    with pytest.raises(ValueError, match=f'Its VOC annotations are boxes, .* open "boxes:{tmp_path}"'):
        open_source(f"masks:{tmp_path}", "train")


def test_folders_of_splits_that_are_read_as_one_are_reported(tmp_path, logged):
    for split in ("train", "test"):
        pictures(tmp_path / f"{split}_zip/{split}", *NAMES)
        voc_files(tmp_path / f"{split}_zip/{split}", "{}")
    assert open_source(f"boxes:{tmp_path}", "train").size == 6
    assert any("train_zip and test_zip look like splits, but are read as one" in line for line in logged)
    logged.clear()
    assert open_source(f"boxes:{tmp_path}/test_zip", "test").size == 3
    assert not any("look like splits" in line for line in logged)
