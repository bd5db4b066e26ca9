"""Labels images with a trained model, and writes a table that training reads: the pseudo labels of noisy student.

    python -m trainers.label --model=runs/teacher --data=images:MORE --output=labelled
    python -m trainers.label --model=runs/teacher --data=images:MORE --labelled=folder:PHOTOS --train=train[:80%] \\
        --test=train[80%:] --output=labelled

Then --config.data.source=jsonl:labelled/table.jsonl. Its rows have a path, the class that the model finds most
probable, and its probability; images below --confidence are left out, and so are those that cannot be read, which
label.json names. --labelled adds the images whose labels are known: those of --train to the split train, those of
--test to the split test, on which the student is evaluated. An image that is there is not labelled again. --per_class=N
takes the N most confident images of each class, again and again where they are fewer.
"""

import collections
import json
import os

from . import flags


def _positions(source, class_names):
    """The class of each label of a source among `class_names`.

    Raises:
        ValueError: if the source has other classes.
    """
    own = tuple(source.class_names)
    if own == tuple(class_names):
        return list(range(len(own)))
    if len(set(own)) < len(own) or sorted(own) != sorted(class_names):
        raise ValueError(
            f"{source.name} has the {len(own)} classes {own[:5]}..., and the model labels with {len(class_names)}: "
            f"{tuple(class_names)[:5]}... They have to be the same; take the model that was trained on this data."
        )
    return [class_names.index(name) for name in own]


def _class_names(model, known):
    """The model's class names, or those of the labelled data if it has none, or numbers."""
    named = [source.class_names for source in known.values() if len(source.class_names) == model.classes]
    return tuple(model.class_names or (named[0] if named else map(str, range(model.classes))))


def _known_rows(known, class_names, names):
    """The rows of {split: labelled source}, under the table's `names` of the classes."""
    from keras_vit.data.sources.selection import labels_of
    from keras_vit.data.sources.written_table import image_files

    for split, source in known.items():
        places = _positions(source, class_names)
        for path, label in zip(image_files(source), labels_of(source).tolist()):
            yield {"image": path, "label": names[places[label]], "split": split}


def _report(found, chosen, new, names, rows):
    """What label.json says of the images that were found, and of the table's rows."""
    times = collections.Counter(chosen.tolist())
    counts = collections.Counter(names[found.labels[i]] for i in times)
    return {
        "images": len(found.numbers),
        "already_labelled": len(found.numbers) - int(new.sum()),
        "labelled": len(times),
        "rows": len(chosen),
        "known": len(rows) - len(chosen),
        "splits": dict(collections.Counter(row["split"] for row in rows)),
        "per_class": {name: counts[name] for name in names},
        "broken": found.broken,
    }


def label(model, source, folder, known=None, lowest=0.3, per_class=None, batch_size=64):
    """Writes the table of a source's pseudo labels; returns the report, which label.json in the folder has too.

    Args:
        known: {"train": source, "test": source} of images with labels, which become rows of these splits; or None.
        lowest, per_class: as in keras_vit.evaluation.confident.

    Raises:
        ValueError: if the sources have no image files, the classes differ, or no image is labelled with so much
            confidence.
        OSError: if it cannot be written.
    """
    import numpy as np

    from keras_vit.data.sources.written_table import check_table_folder, image_files, names_for_table, write_table
    from keras_vit.evaluation.labelling import check_teacher, confident, pseudo_labels
    from keras_vit.io.atomic import write_bytes

    check_teacher(model)
    files, known = image_files(source), known or {}
    class_names = _class_names(model, known)
    names = names_for_table(class_names)
    check_table_folder(folder, names)
    rows = list(_known_rows(known, class_names, names))
    seen = {os.path.realpath(row["image"]) for row in rows}
    found = pseudo_labels(model, source, batch_size)
    new = np.array([os.path.realpath(files[i]) not in seen for i in found.numbers], bool)
    chosen = confident(found.labels, np.where(new, found.confidence, -1.0), len(names), lowest, per_class)
    if not len(chosen):
        highest = (
            f"the highest confidence is {found.confidence[new].max():.3f}"
            if new.any()
            else "none is new and can be read"
        )
        raise ValueError(f"No image of {source.name} is labelled with a confidence of {lowest:g} or more: {highest}.")
    rows += [
        {
            "image": files[found.numbers[i]],
            "label": names[found.labels[i]],
            "split": "train",
            "confidence": round(float(found.confidence[i]), 6),
        }
        for i in chosen
    ]
    write_table(folder, names, rows)
    report = _report(found, chosen, new, names, rows)
    write_bytes(os.path.join(folder, "label.json"), json.dumps(report, indent=1, ensure_ascii=False).encode())
    return report


def _fraction(text):
    """--confidence as a number."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"--confidence={text}: expected a probability from 0 to 1, such as 0.3.")
    return value


def _print(report, folder):
    """Says what was written, and what was not."""
    from keras_vit.io.suggest import counted, listed

    for name, reason in list(report["broken"].items())[:10]:
        print(f"Left out {name}: {reason}")
    empty = [name for name, count in report["per_class"].items() if not count]
    if empty:
        print(f"No image was labelled as {counted(len(empty), 'class')}: {listed(empty)}")
    parts = [
        f"Labelled {report['labelled']:,} of {counted(report['images'], 'image')}, in {counted(report['rows'], 'row')}"
    ]
    parts += [f"{report['known']:,} more have known labels"] if report["known"] else []
    parts += [f"{report['already_labelled']:,} among these not labelled again"] if report["already_labelled"] else []
    parts += [f"{len(report['broken']):,} cannot be read: label.json names them"] if report["broken"] else []
    print(
        f"{'; '.join(parts)}.\nTo train on them:"
        f" --config.data.source=jsonl:{os.path.join(folder, 'table.jsonl')}{_evaluation(report)}"
    )


def _evaluation(report):
    """What a run evaluates on, where the table has no split of its own for that: flags, and a sentence."""
    if "test" in report["splits"]:
        return ""
    known = "images with known labels are a better measure than the model's own: --labelled=SOURCE --test=SPLIT"
    if report["rows"] > report["labelled"]:  # slices would share images
        return f"\nThe table has no split to evaluate on; {known}."
    return (
        " --config.data.train=train[:90%] --config.data.evaluation=train[90%:]\nThe table has no split test, so a run"
        f" evaluates on a part of train; {known}."
    )


def main():
    import keras_vit
    from keras_vit.data import open_source
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown, stage

    values = flags.FLAGS
    folder, lowest = values.output, _fraction(values.confidence)
    with shown():
        check_folder(folder)
        splits = {"train": values.train, "test": values.test} if values.labelled else {}
        with stage(f"Opening {values.data}"):
            source = open_source(values.data, values.split, values.data_dir)
            known = {to: open_source(values.labelled, split, values.data_dir) for to, split in splits.items() if split}
        with stage(f"Loading {values.model}"):
            model = keras_vit.load(values.model)
        report = label(model, source, folder, known, lowest, values.per_class, values.batch_size)
    _print(report, folder)


def run():
    flags.string(
        "model", None, "The teacher: a run directory, a checkpoint of any format, or a published name.", required=True
    )
    flags.string(
        "data",
        None,
        "The images: images:PATH, folder:PATH, csv:PATH or jsonl:PATH; labels are not read.",
        required=True,
    )
    flags.string("split", "train", "The split of --data; with slices: train[:90%].")
    flags.path("output", None, "The folder for table.jsonl, labels.txt and label.json.", required=True)
    flags.string("confidence", "0.3", "The probability below which an image is left out.")
    flags.integer("per_class", None, "Rows per class; by default all images as they are.", lowest=1)
    flags.string("labelled", None, "A source of images with labels, which the table then has too; by default none.")
    flags.string("train", "train", "The split of --labelled to train on.")
    flags.string("test", None, "The split of --labelled to evaluate on; by default none.")
    flags.integer("batch_size", 64, "Images per batch.", lowest=1)
    for name in ("train", "test"):
        flags.only_with(name, "labelled", bool, "--labelled")
    flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
