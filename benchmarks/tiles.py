"""Finds small objects in large images with and without tiles: recall, AP, time and memory.

    python -m benchmarks.tiles

Draws scenes of 2000 x 3000 pixels with a fixed seed: 60 striped discs and squares of 8 to 31 pixels and 5 of 200 to
600 on noise, all of one class. Trains a small dense detector of 256 x 256 pixels on crops of other scenes, at their own
size and reduced up to 8 times, in about 8 minutes on 2 cores. Then detects the objects without tiles and with tiles of
each size of --tiles, each in a separate process.
"""

import os
import resource
import tempfile
import time

import numpy as np

from benchmarks.own_process import in_own_process
from trainers import flags

NAMES = ("shape",)
HEIGHT, WIDTH, SIDE = 2000, 3000, 256  # of scenes and of the model's images
SMALL = 32  # pixels
THRESHOLD, LEAST = 0.3, 0.05  # scores that count for recall and precision; for AP


def _shape(side, rng):
    """(pixels (side, side, 3), which of them are the object's (side, side)) of a striped disc or square."""
    y, x = np.mgrid[:side, :side] + 0.5
    disc = np.hypot(y - side / 2, x - side / 2) <= side / 2
    angle, period = rng.uniform(0, np.pi), max(3, side * rng.uniform(0.15, 0.4))
    stripes = np.sin((y * np.sin(angle) + x * np.cos(angle)) * 2 * np.pi / period) > 0
    return np.where(stripes[..., None], *rng.uniform(0, 255, (2, 3))), disc | (rng.random() < 0.5)


def scene(number: int, small: int = 60, large: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A scene (h, w, 3) uint8 and its objects (m, 5), top, left, bottom, right, label; large ones lie below."""
    from PIL import Image

    rng = np.random.default_rng(number)
    clouds = Image.fromarray(rng.integers(60, 180, (HEIGHT // 50, WIDTH // 50, 3), dtype="uint8"))
    image = np.asarray(clouds.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), "float32")
    image = image + rng.normal(0, 20, image.shape).astype("float32")
    objects = []
    for sides, count in (((200, 601), large), ((8, SMALL), small)):
        placed = []
        while len(placed) < count:
            side = rng.integers(*sides)
            top, left = rng.integers(HEIGHT - side + 1), rng.integers(WIDTH - side + 1)
            box = np.array([top, left, top + side, left + side])
            if any((np.minimum(box[2:], other[2:4]) > np.maximum(box[:2], other[:2])).all() for other in placed):
                continue
            pixels, inside = _shape(side, rng)
            image[top : top + side, left : left + side][inside] = pixels[inside]
            placed.append(np.append(box, 0))
        objects += placed
    return np.clip(image, 0, 255).astype("uint8"), np.array(objects)


def crops(scenes: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Crops of scenes, half at their own size, half reduced: images (n, SIDE, SIDE, 3) uint8, objects (n, m, 7)."""
    from keras_vit.data import pack_objects
    from keras_vit.segmentation.segment import resized_image

    images, boxes, labels = [], [], []
    for number in range(scenes):
        image, objects = scene(1000 + number)
        rng = np.random.default_rng(number)
        for i in range(each):
            side = SIDE if i % 2 else int(SIDE * 2 ** rng.uniform(0, 3))
            side = min(side, HEIGHT)
            y, x = objects[rng.integers(len(objects)), :2]  # so that no crop is empty
            top, left = np.clip([y - rng.integers(side), x - rng.integers(side)], 0, [HEIGHT - side, WIDTH - side])
            inside = np.clip(objects[:, :4] - [top, left, top, left], 0, side)
            sides = (inside[:, 2:] - inside[:, :2]) * SIDE / side
            seen = (sides >= 4).all(-1)
            images.append(resized_image(image[top : top + side, left : left + side], (SIDE, SIDE)))
            boxes.append(inside[seen] / side)
            labels.append(objects[seen, 4])
    return np.stack(images), pack_objects(boxes, labels)


def trained(epochs: int, scenes: int):
    """A dense detector trained on crops of scenes."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    model = keras_vit.DetectionModel(
        "Ti/16",
        classes=len(NAMES),
        class_names=NAMES,
        image_size=SIDE,
        depth=4,
        width=128,
        heads=4,
        mlp_dim=256,
        preprocessing=f"decode(3)|resize({SIDE}, {SIDE})",
        head_options={"scales": (2, 1), "width": 64, "convs": 2},
    )
    images, objects = crops(scenes, 50)
    steps = epochs * len(images) // 8
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=1e-3, warmup_steps=steps // 20)
    model.compile(keras_vit.training.AdamW(rate, decay=1e-4), keras_vit.training.DenseDetectionLoss())
    model.fit(images, objects, batch_size=8, epochs=epochs, verbose=2)
    return model


def _truth(objects):
    """Objects (m, 5) as rows (m, 7) of `AveragePrecision.add`."""
    sides = objects[:, 2:4] - objects[:, :2]
    return np.column_stack(
        [objects[:, :4] / np.array([HEIGHT, WIDTH] * 2), objects[:, 4], np.zeros(len(objects)), sides.prod(-1)]
    )


def measured(path: str, count: int, tiles: int | None) -> dict[str, float]:
    """Recall and precision at a score of 0.3 and IoU 0.5, AP, seconds per image and peak memory, of `count` scenes."""
    import keras_vit
    from keras_vit.evaluation.average_precision import AveragePrecision
    from keras_vit.evaluation.matched_boxes import objects_found

    model, precision = keras_vit.load(path), AveragePrecision(NAMES)
    model.detect(np.zeros((512, 512, 3), "uint8"), tiles=tiles and 256)  # compiles
    seconds, rows = [], []
    for number in range(count):
        image, objects = scene(number)
        began = time.perf_counter()
        found = model.detect(image, threshold=LEAST, limit=200, tiles=tiles)
        seconds.append(time.perf_counter() - began)
        truth, boxes = _truth(objects), found.boxes / np.array([HEIGHT, WIDTH] * 2)
        precision.add((HEIGHT, WIDTH), truth, boxes, found.scores, found.labels)
        kept = found.scores >= THRESHOLD
        matches = objects_found(truth, boxes[kept], found.labels[kept])
        hit, small = np.isin(np.arange(len(objects)), matches), objects[:, 2] - objects[:, 0] < SMALL
        rows.append(
            [hit[small].sum(), small.sum(), hit[~small].sum(), (~small).sum(), (matches >= 0).sum(), kept.sum()]
        )
    hit, small, hit_large, large, right, all_found = np.sum(rows, 0)
    measures, _ = precision.result()
    return {
        "recall below 32 px": hit / small,
        "recall of 200 to 600 px": hit_large / large,
        "precision": right / max(all_found, 1),
        "AP below 32 px": measures["ap_small"],
        "AP": measures["ap"],
        "AP50": measures["ap50"],
        "s per image": float(np.median(seconds)),
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def _train_and_save(path, epochs, scenes):
    began = time.perf_counter()
    trained(epochs, scenes).save(path)
    print(f"Trained in {(time.perf_counter() - began) / 60:.1f} minutes.")


def main():
    values = flags.FLAGS
    with tempfile.TemporaryDirectory() as folder:
        path = values.model or os.path.join(folder, "detector.keras")
        if not os.path.exists(path):
            in_own_process(_train_and_save, path, values.epochs, values.training_scenes)
        rows = {"none": in_own_process(measured, path, values.scenes, None)}
        for size in map(int, values.tiles.split(",")):
            rows[f"{size} px"] = in_own_process(measured, path, values.scenes, size)
    names = list(rows["none"])
    print(f"| tiles | {' | '.join(names)} |\n|{'-|' * (len(names) + 1)}")
    for tiles, row in rows.items():
        print(f"| {tiles} | {' | '.join(f'{row[name]:.3g}' for name in names)} |")


def run():
    flags.string("tiles", "512,256", "Sizes of tiles, joined by commas.")
    flags.integer("scenes", 10, "The number of scenes to measure on.", lowest=1)
    flags.integer("training_scenes", 32, "The number of scenes to train on, 50 crops of each.", lowest=1)
    flags.integer("epochs", 10, "Of training.", lowest=1)
    flags.path("model", None, "A .keras file: kept if it exists, else written after training.")
    flags.launch(main)


if __name__ == "__main__":
    run()
