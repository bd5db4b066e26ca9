"""Shares a model on the Hugging Face hub, with a card made from it and its run.

    keras-vit share runs/photos --to=hf://USER/NAME --license=apache-2.0 --dry_run --output=look
    keras-vit share runs/photos --to=hf://USER/NAME --license=apache-2.0
    keras-vit share mine.keras --to=hf://USER/NAME --license=mit --run=evaluated

The argument is a run directory (its measures, curves and recipe go into the card) or a checkpoint of any format.
--dry_run uploads nothing: it writes the folder to --output, or prints the card. docs/sharing.md lists the folder's
content; it never has names of files on this machine.
"""

import os
import tempfile

from . import flags, loading


def _show(model, values):
    """Writes the folder to --output, or prints the card."""
    import keras_vit
    from keras_vit.io.progress import stage
    from keras_vit.sharing.published_run import is_run
    from keras_vit.sharing.share import find_place
    from keras_vit.sharing.shared_folder import CARD, check_output

    _, licence = find_place(values.to, values.license)
    output = values.output
    if output:
        check_output(output)
    with stage(f"Loading {model}"):
        loaded = loading.load(model)
    run = values.run or (model if is_run(model) else None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or os.path.join(temporary, "shared")
        keras_vit.sharing.write_folder(loaded, folder, values.to, licence, run, values.images, values.untrained)
        if output:
            print(f"{os.path.join(folder, CARD)} is the card. Nothing was uploaded.")
        else:
            with open(os.path.join(folder, CARD), encoding="utf-8") as file:
                print(file.read())


def main(arguments):
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    if len(arguments) != 1:
        raise ValueError(f"Give one model, such as a run directory, got {len(arguments)}.")
    with shown():
        if values.dry_run:
            return _show(arguments[0], values)
        import keras_vit

        options = {"private": values.private, "images": values.images, "untrained": values.untrained}
        print(keras_vit.sharing.share(arguments[0], values.to, values.license, values.run, **options))


def run():
    flags.string("to", None, "hf://USER/NAME.", required=True)
    flags.string("license", None, "The licence: apache-2.0, mit, cc-by-4.0 ...", required=True)
    flags.string(
        "run",
        None,
        "The run directory, or the --output of evaluate; by default the model's own, if it is a run directory.",
    )
    flags.boolean("private", False, "Make a new repository private.")
    flags.boolean("images", False, "Also share pictures that show images of the data: reconstructions, samples.")
    flags.boolean("untrained", False, "Share a model with a head of zeros.")
    flags.boolean("dry_run", False, "Upload nothing: write the folder to --output, or print the card.")
    flags.path("output", None, "For --dry_run: a new folder; by default the card is printed.")
    flags.only_with("output", "dry_run", bool, "--dry_run")
    flags.launch(main, takes="MODEL", loads=True)


if __name__ == "__main__":
    run()
