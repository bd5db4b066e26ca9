"""Small files of boxes in every format, for an image of 8 x 10 pixels with a cat at rows 1 to 4 and columns 2 to 5."""

from annotation_files import SIZE, annotation, coco_folder, labelme_folder, picture, shape, text, yolo_folder

from keras_vit.data.annotations import box_source
from keras_vit.data.annotations.box_table import make_boxes

CAT = {"name": "cat", "xmin": 2, "ymin": 1, "xmax": 5, "ymax": 4}
ROW = "a.jpg,10,8,cat,2,1,5,4"
HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"


def voc_object(name="cat", xmin=2, ymin=1, xmax=5, ymax=4, more=""):
    sides = {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
    box = "".join(f"<{side}>{value}</{side}>" for side, value in sides.items() if value is not None)
    return f"<object><name>{name}</name>{more}<bndbox>{box}</bndbox></object>"


def voc_xml(*objects, image="a.jpg", size=SIZE, more=""):
    height, width = size
    return (
        f"<annotation><filename>{image}</filename>{more}\n<size><width>{width}</width><height>{height}</height></size>\n"
        f"{''.join(objects)}</annotation>"
    )


def voc_folder(folder, content=None, image="a.jpg"):
    picture(folder / image)
    text(folder / "a.xml", voc_xml(voc_object()) if content is None else content)
    return folder


def csv_folder(folder, *rows, header=HEADER):
    picture(folder / "a.jpg")
    text(folder / "train.csv", "\n".join([header, *rows]))
    return folder


def coco_boxes(folder, *boxes, **options):
    """COCO's file of annotations with these boxes, x, y, width, height, or dicts with keys."""
    rows = [box if isinstance(box, dict) else {"bbox": box} for box in boxes]
    annotations = [annotation(i, **{"segmentation": [], **row}) for i, row in enumerate(rows, 1)]
    return coco_folder(folder, annotations, **options)


def yolo_boxes(folder, *lines):
    return yolo_folder(folder, "\n".join(lines))


def yolo_with_list(folder, images, labels, names):
    """YOLO's files without data.yaml, for exports with a list of classes."""
    picture(folder / images / "a.JPG")
    text(folder / labels / "a.txt", "0 .35 .3125 .3 .375")
    text(folder / names, "cat\ndog\n")
    return folder


def cvat_yolo(folder):
    text(folder / "train.txt", "data/obj_train_data/a.JPG\n")
    return yolo_with_list(folder, "obj_train_data", "obj_train_data", "obj.names")


FORMATS = {
    "voc": voc_folder,
    "coco": lambda folder: coco_boxes(folder, [2, 1, 3, 3]),
    "coco outlines": lambda folder: coco_folder(folder, [annotation()]),
    "coco runs": lambda folder: coco_folder(folder, [annotation(segmentation={"size": list(SIZE), "counts": RUNS})]),
    "yolo": lambda folder: yolo_boxes(folder, "0 .35 .3125 .3 .375"),
    "yolo outlines": lambda folder: yolo_boxes(folder, "0 .2 .125 .5 .125 .5 .5 .2 .5"),
    "yolo of label studio": lambda folder: yolo_with_list(folder, "images", "labels", "classes.txt"),
    "yolo of labelimg": lambda folder: yolo_with_list(folder, "", "", "classes.txt"),
    "yolo of cvat": cvat_yolo,
    "labelme": lambda folder: labelme_folder(folder, [shape(((5, 4), (2, 1)), kind="rectangle")]),
    "labelme outlines": lambda folder: labelme_folder(folder, [shape()]),
    "csv": lambda folder: csv_folder(folder, ROW),
    "csv of fractions": lambda folder: csv_folder(
        folder, "a.jpg,cat,.2,.5,.125,.5", header="ImageID,LabelName,XMin,XMax,YMin,YMax"
    ),
}
RUNS = [17, 3, 5, 3, 5, 3, 44]


def annotations(folder, split="train"):
    """The Annotations of a folder; nothing of TensorFlow runs."""
    return box_source.find(str(folder)).splits[split]()


def table(folder, split="train"):
    """(BoxTable, what is reported of each reason, {its text: number}), with classes in alphabetical order."""
    found = annotations(folder, split)
    pictures = list(found.images)
    names = sorted({region.label for picture in pictures for region in picture.regions})
    made = make_boxes(pictures, lambda region, _: names.index(region.label), found.fractions, found.ignored)
    return made, {reason.text: len(names) for reason, names in found.ignored.items() if names}


def fault(folder):
    """What is wrong with the first image, "" for nothing."""
    return next(iter(annotations(folder).images)).fault
