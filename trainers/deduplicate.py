"""Finds the training images that are near-duplicates of a test image, and writes their names, so that a run can leave
them out.

    python -m trainers.deduplicate --train=folder:PHOTOS --test=folder:PHOTOS --train_split=train --test_split=test \\
        --output=excluded.txt
    python -m trainers.finetune --config=folder_finetune --config.data.exclude=excluded.txt ...

It also writes excluded.json, all pairs with their correlations, and excluded.png, the most doubtful pairs to look at
(with matplotlib). It finds copies that were recompressed, resized, brightened, mirrored or cropped by up to a tenth.
First it warns of files with the same contents, also within a source, and of huge images.
"""

import json
import os

import numpy as np
from absl import logging

from . import flags

_SHOWN = 48  # pairs in the picture
_SIDE = 128


def collect(source, text):
    """(names, thumbnails (n, 32, 32) uint8, labels, -1 for none) of the examples of a source that decode; warns of the
    others.
    """
    from keras_vit.data.duplicates import SIDE, thumbnail
    from keras_vit.data.scan import scan
    from keras_vit.io.progress import stage

    def work(example, pixels):
        return thumbnail(pixels), example.get("label", -1)

    names, thumbnails, labels = [], np.zeros((source.size, SIDE, SIDE), "uint8"), []
    with stage(f"Reading {source.name}", source.size, "images") as progress:
        for name, values, reason in scan(source, work):
            if reason:
                logging.warning("Skipping %s: %s", name, reason)
            else:
                thumbnails[len(names)] = values[0]
                labels.append(int(values[1]))
                names.append(name)
            progress.advance()
    if not names:
        raise ValueError(f"None of the {source.size} images of {text} decodes.")
    return names, thumbnails[: len(names)], labels


def _pictures(source, names):
    """{name: (128, 128, 3) uint8} of the examples with those names."""
    import tensorflow as tf

    from keras_vit.data.ops.registry import as_uint8
    from keras_vit.data.scan import scan

    def small(example, pixels):
        return (as_uint8(tf.image.resize(pixels, (_SIDE, _SIDE), antialias=True)),)

    return {name: values[0] for name, values, reason in scan(source, small, only=names) if not reason}


def write_pictures(path, pairs, train, test):
    """Writes the pairs with the lowest correlation as a PNG, side by side, the test image on the left.

    Args:
        pairs: a list of {"train": name, "test": name, "correlation": number, "flipped": bool}.
        train, test: the sources.
    """
    import matplotlib.figure

    from keras_vit.io.atomic import replacing

    doubtful = sorted(pairs, key=lambda pair: pair["correlation"])[:_SHOWN]
    left = _pictures(test, {pair["test"] for pair in doubtful})
    right = _pictures(train, {pair["train"] for pair in doubtful})
    rows = -(-len(doubtful) // 6)
    figure = matplotlib.figure.Figure(figsize=(15, 1.6 * rows))
    for axes, pair in zip(
        figure.subplots(rows, 6, squeeze=False).flat, [*doubtful, *[None] * (6 * rows - len(doubtful))]
    ):
        axes.axis("off")
        if pair:
            axes.imshow(np.concatenate([left[pair["test"]], right[pair["train"]]], 1))
            axes.set_title(f"{pair['correlation']:.3f}{', mirrored' if pair['flipped'] else ''}", fontsize=8)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary)


def deduplicate(train, test, output, threshold):
    """Writes the names of the examples of `train` that are near-duplicates of one of `test`; returns the report.

    Args:
        train, test: sources.
        output: the path of the file of names, ending in .txt; the pairs are written next to it as .json and .png.
        threshold: the correlation above which two images are duplicates.
    """
    from keras_vit.data.duplicates import near_duplicates
    from keras_vit.data.sources.examine import warn_of_files
    from keras_vit.io.atomic import write_bytes
    from keras_vit.io.progress import stage

    warn_of_files(train, test)
    (train_names, train_thumbnails, train_labels), (test_names, test_thumbnails, test_labels) = (
        collect(train, "--train"),
        collect(test, "--test"),
    )
    with stage("Comparing the images"):
        duplicates = near_duplicates(train_thumbnails, test_thumbnails, threshold)
    pairs = [
        {
            "train": train_names[p.train],
            "test": test_names[p.test],
            "correlation": round(p.correlation, 4),
            "flipped": p.flipped,
        }
        | (
            {"same_label": train_labels[p.train] == test_labels[p.test]}
            if train.class_names and test.class_names
            else {}
        )
        for p in duplicates
    ]
    names = [train_names[i] for i in sorted({p.train for p in duplicates})]
    report = {
        "train": {"source": train.name, "images": len(train_names), "duplicates": len(names)},
        "test": {"source": test.name, "images": len(test_names), "duplicates": len({p.test for p in duplicates})},
        "threshold": threshold,
        "pairs": pairs,
    }
    header = (
        f"# {len(names)} images of {train.name} that are near-duplicates of images of {test.name}, correlation"
        f" {threshold}"
    )
    write_bytes(output, "".join(f"{line}\n" for line in [header, *names]).encode())
    write_bytes(os.path.splitext(output)[0] + ".json", json.dumps(report, indent=1, ensure_ascii=False).encode())
    if pairs:
        try:
            write_pictures(os.path.splitext(output)[0] + ".png", pairs, train, test)
        except ImportError as error:
            logging.warning("No picture of the pairs: %s", error)
    return report


def _open(values, which):
    """The source of --train or --test; an error names both flags, since it may be about the split."""
    from keras_vit.data import open_source

    name, split = getattr(values, which), getattr(values, f"{which}_split")
    try:
        return open_source(name, split, values.data_dir)
    except ValueError as error:
        raise ValueError(f"--{which}={name} --{which}_split={split}: {error}") from None


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown, stage

    values = flags.FLAGS
    try:
        threshold = float(values.threshold)
    except ValueError:
        threshold = 0.0
    if not 0.5 <= threshold < 1:
        raise ValueError(f"--threshold={values.threshold}: expected a number from 0.5 to below 1.")
    output = values.output
    if os.path.isdir(output):
        raise ValueError(
            f"--output={values.output} is a folder. Name a file in it, such as"
            f" {os.path.join(values.output, 'excluded.txt')}."
        )
    check_folder(os.path.dirname(os.path.abspath(output)))
    with shown():
        with stage("Opening the data"):
            train, test = _open(values, "train"), _open(values, "test")
        report = deduplicate(train, test, output, threshold)
    print(
        f"{report['test']['duplicates']} of {report['test']['images']} test images have near-duplicates among the"
        f" training images: {report['train']['duplicates']} of {report['train']['images']}. Names: {values.output};"
        " look at the .png next to it."
    )


def run():
    flags.string("train", None, "The source to search for duplicates, as for --config.data.source.", required=True)
    flags.string(
        "test", None, "The source whose images may not be duplicated, as for --config.data.source.", required=True
    )
    flags.string("train_split", "train", 'The split of --train; with slices: "train[:90%]".')
    flags.string("test_split", "test", "The split of --test; with slices.")
    flags.path("output", "excluded.txt", "The file of names to write.")
    flags.string(
        "threshold",
        "0.9",
        "The correlation of edges above which two images are duplicates; a lower one finds more, also wrong ones.",
    )
    flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
