"""Finds training images that nearly duplicate test images, and writes their names, so that a run can exclude them.

    keras-vit deduplicate --train=folder:PHOTOS --test=folder:PHOTOS --train_split=train --test_split=test \\
        --output=excluded.txt
    keras-vit finetune --config=folder_finetune --config.data.exclude=excluded.txt ...

Also writes excluded.json, all pairs with their correlations, and with matplotlib excluded.png, the most doubtful pairs.
Finds copies that were recompressed, resized, brightened, mirrored or cropped by up to a tenth. Warns first about files
with the same contents, also within a source, and about huge images.
"""

import os

from . import flags, shared_flags


def _open(values, which):
    """The source of --train or --test; errors name both flags, since they may be about the split."""
    from keras_vit.data import open_source

    name, split = getattr(values, which), getattr(values, f"{which}_split")
    try:
        return open_source(name, split, values.data_dir)
    except ValueError as error:
        raise ValueError(f"--{which}={name} --{which}_split={split}: {error}") from None


def main():
    from keras_vit.data.duplicates import deduplicate
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
    flags.string("test", None, "The source to protect from duplicates, as for --config.data.source.", required=True)
    flags.string("train_split", "train", 'The split of --train; with slices: "train[:90%]".')
    flags.string("test_split", "test", "The split of --test; with slices.")
    flags.path("output", "excluded.txt", "The file of names to write.")
    flags.string(
        "threshold",
        "0.9",
        "The correlation of edges above which two images are duplicates; a lower value finds more, including false"
        " ones.",
    )
    shared_flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
