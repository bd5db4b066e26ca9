"""Labels images with a trained model, and writes a table for training: the pseudo labels of noisy student.

    keras-vit label --model=runs/teacher --data=images:MORE --output=labelled
    keras-vit label --model=runs/teacher --data=images:MORE --labelled=folder:PHOTOS --train='train[:80%]' \\
        --test='train[80%:]' --output=labelled

Then --config.data.source=jsonl:labelled/table.jsonl. A row has a path, the most probable class and its probability.
Images below --confidence are left out, and so are unreadable ones, which label.json names. --labelled adds images with
known labels, --train to the split train, --test to the split test, on which the student is evaluated; these are not
labelled again. --per_class=N takes the N most confident images of each class, repeating them where there are fewer.
"""

import json
import os

from . import flags, loading, shared_flags


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
    """Prints what was written and left out."""
    from keras_vit.io.suggest import counted, listed

    for name, reason in list(report["broken"].items())[:10]:
        print(f"Left out {name}: {reason}")
    empty = [name for name, count in report["per_class"].items() if not count]
    if empty:
        print(f"No image was labelled as {listed([json.dumps(name, ensure_ascii=False) for name in empty])}.")
    parts = [
        f"Labelled {report['labelled']:,} of {counted(report['images'], 'image')}, in {counted(report['rows'], 'row')}"
    ]
    parts += [f"{report['known']:,} more have known labels"] if report["known"] else []
    parts += [f"{report['already_labelled']:,} among these not labelled again"] if report["already_labelled"] else []
    parts += [f"{len(report['broken']):,} cannot be read: label.json names them"] if report["broken"] else []
    print(
        f"{'; '.join(parts)}.\nTo train on them: keras-vit finetune --config=noisy_student"
        f" --data=jsonl:{os.path.join(folder, 'table.jsonl')}{_evaluation(report)}"
    )


def _evaluation(report):
    """Flags and a sentence on what to evaluate on, if the table has no split for it."""
    if "test" in report["splits"]:
        return ""
    known = "images with known labels are a better measure than the model's own: --labelled=SOURCE --test=SPLIT"
    return (
        " --config.data.train='train[:90%]' --config.data.evaluation='train[90%:]'\nThe table has no split test, so a"
        f" run evaluates on a part of train; {known}."
    )


def main():
    from keras_vit.data import open_source
    from keras_vit.evaluation.labelling import write_labels
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
            model = loading.load(values.model)
        report = write_labels(model, source, folder, known, lowest, values.per_class, values.batch_size)
    _print(report, folder)


def run():
    flags.string(
        "model", None, "The teacher: a run directory, a checkpoint of any format, or a published name.", required=True
    )
    flags.string(
        "data",
        None,
        "The images: a folder or a table (.csv, .jsonl); labels are not read.",
        required=True,
    )
    flags.string("split", "train", 'The split of --data; with slices: "train[:90%]".')
    flags.path("output", None, "The folder for table.jsonl, labels.txt and label.json.", required=True)
    flags.string("confidence", "0.3", "The probability below which an image is left out.")
    flags.integer("per_class", None, "Rows per class; by default all images as they are.", lowest=1)
    flags.string("labelled", None, "A source of labelled images to add to the table; by default none.")
    flags.string("train", "train", "The split of --labelled to train on.")
    flags.string("test", None, "The split of --labelled to evaluate on; by default none.")
    flags.integer("batch_size", 64, "Images per batch.", lowest=1)
    for name in ("train", "test"):
        flags.only_with(name, "labelled", bool, "--labelled")
    shared_flags.define_data_dir()
    flags.launch(main, loads=True)


if __name__ == "__main__":
    run()
