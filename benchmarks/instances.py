"""The memory and time of objects with masks in a hard image: 4000 x 3000 pixels and a thousand objects.

    python -m benchmarks.instances

Draws an image of 3000 x 4000 pixels with 1,000 objects, one of them a single pixel, and one without an object. Each
step runs in its own process: reads both as `instances:`, trains a ViT Ti/16 with EoMT and 1,000 queries at 512
pixels for two steps, finds objects with their masks, evaluates both images as instances with Boundary AP and as
panoptic scenes of all queries, predicts files, and exports a SavedModel that answers the image. What an untrained model
finds, masks all over the image, takes longer than objects would.
"""

import json
import os
import pathlib
import resource
import tempfile
import time

import numpy as np

from benchmarks.own_process import in_own_process
from trainers import flags

HEIGHT, WIDTH, OBJECTS, SIZE = 3000, 4000, 1000, 512


def _draw(folder):
    """Writes images and annotations: squares on a grid, the last object one pixel."""
    from PIL import Image

    rng, annotations = np.random.default_rng(0), []
    pixels = rng.integers(90, 110, (HEIGHT, WIDTH, 3)).astype("uint8")
    for number in range(OBJECTS):
        row, column = divmod(number, 40)
        side = 1 if number == OBJECTS - 1 else int(rng.integers(40, 90))
        top, left = row * 120 + 10, column * 100 + 5
        pixels[top : top + side, left : left + side] = rng.integers(0, 256, 3)
        polygon = [left, top, left + side, top, left + side, top + side, left, top + side]
        box = {"bbox": [left, top, side, side], "area": side * side, "segmentation": [polygon]}
        annotations.append({"id": number + 1, "image_id": 1, "category_id": 1, "iscrowd": 0, **box})
    names = {1: ("many.jpg", pixels), 2: ("none.jpg", pixels[:100, :100])}
    images = []
    for number, (name, content) in names.items():
        Image.fromarray(content).save(folder / name)
        images.append({"id": number, "file_name": name, "height": content.shape[0], "width": content.shape[1]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "square"}]}
    (folder / "instances_train.json").write_text(json.dumps(content))


def _model():
    import keras_vit

    return keras_vit.InstanceModel(
        "Ti/16",
        classes=1,
        class_names=["square"],
        image_size=SIZE,
        head_options={"queries": OBJECTS},
        preprocessing=f"decode|resize({SIZE}, {SIZE})",
    )


def _read(folder):
    from keras_vit.data import open_source

    [*examples] = open_source(f"instances:{folder}", "train").ordered()
    counts = sorted(len(np.unique(example["segments"])) - 1 for example in examples)
    assert counts == [0, OBJECTS], counts


def _train(folder):
    import keras_vit
    from keras_vit.data import open_source, training_batches
    from keras_vit.data.instances import pack_instances

    source, model = open_source(f"instances:{folder}", "train"), _model()

    def select(example):
        return example["image"], pack_instances(example, OBJECTS, model.mask_grid)

    batches = training_batches(source, f"decode|resize({SIZE}, {SIZE})", 1, seed=0, select=select)
    model.compile(keras_vit.training.AdamW(1e-4), keras_vit.training.InstanceLoss(1))
    model.fit(batches, steps_per_epoch=2, verbose=0)


def _detect(folder):
    found = _model().detect(os.path.join(folder, "many.jpg"), threshold=0.0)
    found.run_lengths()
    found.picture()


def _evaluated(folder, name, options):
    from keras_vit.data import open_source
    from keras_vit.evaluation import Setting, make_evaluator

    setting = Setting(_model(), batch_size=1, source=open_source(f"instances:{folder}", "train"), verbose=False)
    make_evaluator(name, options).prepare(setting)()


def _evaluate_instances(folder):
    _evaluated(folder, "instances", {"boundary": True})


def _evaluate_panoptic(folder):
    _evaluated(folder, "panoptic", {"threshold": 0.0})


def _predict(folder):
    from keras_vit.data import open_source
    from keras_vit.inference import predict_objects

    source = open_source(f"images:{folder}", "train")
    predict_objects(_model(), source, os.path.join(folder, "found"), threshold=0.0, batch_size=1)


def _export(folder):
    import tensorflow as tf

    import keras_vit

    path = os.path.join(folder, "exported")
    keras_vit.export(_model().without_auxiliary(), path, threshold=0.0)
    encoded = pathlib.Path(folder, "many.jpg").read_bytes()
    files = tf.saved_model.load(path).signatures["encoded_masks"](tf.constant([encoded]))["mask_bytes"]
    assert tf.io.decode_png(files[0, 0]).shape[:2] == (HEIGHT, WIDTH)


STEPS = {
    "read": _read,
    "train": _train,
    "detect": _detect,
    "instances": _evaluate_instances,
    "panoptic": _evaluate_panoptic,
    "predict": _predict,
    "export": _export,
}


def measured(step: str, folder: str) -> tuple[float, float]:
    """(seconds, peak memory in GB) of a step, in this process."""
    import keras_vit  # noqa: F401

    start = time.perf_counter()
    STEPS[step](folder)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main():
    with tempfile.TemporaryDirectory() as folder:
        _draw(pathlib.Path(folder))
        for step in STEPS:
            seconds, peak = in_own_process(measured, step, folder)
            print(f"{step:10}{seconds:8.1f} s {peak:8.2f} GB", flush=True)


def run():
    flags.launch(main)


if __name__ == "__main__":
    run()
