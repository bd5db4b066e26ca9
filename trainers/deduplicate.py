"""Finds the training images that are near-duplicates of a test image, and writes their names, for a run to leave out.

    python -m trainers.deduplicate --train=folder:PHOTOS --test=folder:PHOTOS --output=excluded.txt
    python -m trainers.finetune --config=folder_finetune --config.data.exclude=excluded.txt ...

Beside excluded.txt lie excluded.json, all pairs with their correlations, and excluded.png, the most doubtful of them to look at (with
matplotlib). Finds copies that were recompressed, resized, brightened, mirrored or cropped by up to a tenth.
"""

import json
import os

import numpy as np
from absl import logging

from . import flags

_SHOWN = 48  # pairs in the picture
_SIDE = 128


def collect(source, text):
    """(names, thumbnails (n, 32, 32) uint8, labels) of the examples of a source that decode; the others are warned of."""
    import keras

    from keras_vit.data.duplicates import SIDE, thumbnail
    from keras_vit.data.passes import each

    names, thumbnails, labels = [], np.zeros((source.size, SIDE, SIDE), "uint8"), []
    bar = keras.utils.Progbar(source.size, unit_name="image")
    for i, (name, values, reason) in enumerate(each(source, lambda image, pixels, label: (thumbnail(pixels), label)), 1):
        if reason:
            logging.warning("Skipping %s: %s", name, reason)
        else:
            thumbnails[len(names)] = values[0]
            labels.append(int(values[1]))
            names.append(name)
        if i % 100 == 0 or i == source.size:
            bar.update(i)
    if not names:
        raise ValueError(f"None of the {source.size} images of {text} decodes.")
    return names, thumbnails[: len(names)], labels


def _pictures(source, names):
    """{name: (128, 128, 3) uint8} of the examples of those names."""
    import tensorflow as tf

    from keras_vit.data.passes import each

    def small(image, pixels, label):
        resized = tf.image.resize(pixels, (_SIDE, _SIDE), antialias=True)
        return (tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8),)

    return {name: values[0] for name, values, reason in each(source, small, only=names) if not reason}


def write_pictures(path, pairs, train, test):
    """The pairs of the lowest correlation side by side, test image left, as a PNG.

    Args:
        pairs: of {"train": name, "test": name, "correlation": number, "flipped": bool}.
        train, test: the sources.
    """
    import matplotlib.figure

    doubtful = sorted(pairs, key=lambda pair: pair["correlation"])[:_SHOWN]
    left = _pictures(test, {pair["test"] for pair in doubtful})
    right = _pictures(train, {pair["train"] for pair in doubtful})
    rows = -(-len(doubtful) // 6)
    figure = matplotlib.figure.Figure(figsize=(15, 1.6 * rows))
    for axes, pair in zip(figure.subplots(rows, 6, squeeze=False).flat, [*doubtful, *[None] * (6 * rows - len(doubtful))]):
        axes.axis("off")
        if pair:
            axes.imshow(np.concatenate([left[pair["test"]], right[pair["train"]]], 1))
            axes.set_title(f"{pair['correlation']:.3f}{', mirrored' if pair['flipped'] else ''}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def deduplicate(train, test, output, threshold):
    """Writes the names of the examples of `train` that are near-duplicates of one of `test`; returns the report.

    Args:
        train, test: sources.
        output: the path of the names, ending in .txt; .json and .png beside it hold the pairs.
        threshold: the correlation above which two images are duplicates.
    """
    from keras_vit.data.duplicates import near_duplicates
    from keras_vit.training.files import write_bytes

    (train_names, train_thumbnails, train_labels), (test_names, test_thumbnails, test_labels) = (
        collect(train, "--train"),
        collect(test, "--test"),
    )
    found = near_duplicates(train_thumbnails, test_thumbnails, threshold)
    pairs = [
        {"train": train_names[p.train], "test": test_names[p.test], "correlation": round(p.correlation, 4), "flipped": p.flipped}
        | {"same_label": train_labels[p.train] == test_labels[p.test]}
        for p in found
    ]
    names = [train_names[i] for i in sorted({p.train for p in found})]
    report = {
        "train": {"source": train.name, "images": len(train_names), "duplicates": len(names)},
        "test": {"source": test.name, "images": len(test_names), "duplicates": len({p.test for p in found})},
        "threshold": threshold,
        "pairs": pairs,
    }
    header = f"# {len(names)} images of {train.name} that are near-duplicates of images of {test.name}, correlation {threshold}"
    write_bytes(output, "".join(f"{line}\n" for line in [header, *names]).encode())
    write_bytes(os.path.splitext(output)[0] + ".json", json.dumps(report, indent=1, ensure_ascii=False).encode())
    if pairs:
        try:
            write_pictures(os.path.splitext(output)[0] + ".png", pairs, train, test)
        except ImportError as error:
            logging.warning("No picture of the pairs: %s", error)
    return report


def main():
    from keras_vit.data import open_source

    values = flags.FLAGS
    try:
        threshold = float(values.threshold)
    except ValueError:
        threshold = 0.0
    if not 0.5 <= threshold < 1:
        raise ValueError(f"--threshold={values.threshold}: expected a number from 0.5 to below 1.")
    train = open_source(values.train, values.train_split, values.data_dir)
    test = open_source(values.test, values.test_split, values.data_dir)
    report = deduplicate(train, test, os.path.expanduser(values.output), threshold)
    print(
        f"{report['test']['duplicates']} of {report['test']['images']} test images have near-duplicates among the training images: "
        f"{report['train']['duplicates']} of {report['train']['images']}. Names: {values.output}; look at the .png beside it."
    )


def run():
    flags.string("train", None, "Where to look for duplicates: what --config.data.source takes.", required=True)
    flags.string("test", None, "Of what: what --config.data.source takes.", required=True)
    flags.string("train_split", "train", 'With slices: "train[:90%]".')
    flags.string("test_split", "test", "With slices.")
    flags.string("output", "excluded.txt", "The file of names.")
    flags.string(
        "threshold", "0.9", "The correlation of edges above which two images are duplicates; lower finds more, also wrong ones."
    )
    flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
