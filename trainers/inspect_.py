"""Inspects a model: writes a page of its filters, positions, heads and layers, and of what it sees in images.

    keras-vit inspect --model=runs/photos --images=PHOTOS --output=look
    keras-vit inspect --model=deit/tiny --images="cats.png,photos/**/*.jpg" --class="tabby, tabby cat" \\
        --output=look

--model accepts a run directory, a file of any format or a published name. --images are files, folders and patterns,
separated by commas, preprocessed as the model's file says; unreadable ones are named and skipped. --output gets a
self-contained index.html, its pictures as PNG files, and the numbers in inspection.json, replacing an earlier page.
Needs matplotlib.
"""

import sys

from . import flags, loading


def main():
    values = flags.FLAGS
    print(f"Inspecting {values.model}.", flush=True)  # before the engine loads, which takes seconds
    from keras_vit.inspection.model_page import check_place
    from keras_vit.io.progress import shown

    check_place(values.output)
    with shown():
        inspect(values)


def _chosen(values):
    """The image files to measure, of those that --images names."""
    from absl import logging

    from keras_vit.inspection.photographs import evenly, find_images

    found = find_images(values.images)
    if len(found) > values.max_images:
        logging.info("Taking %d of %d images, evenly spaced: --max_images changes that.", values.max_images, len(found))
    return [found[i] for i in evenly(len(found), values.max_images)]


def _read(model, paths):
    """(pixels, names, {path: reason} of skipped images)."""
    from absl import logging

    from keras_vit.inspection.photographs import read_images, short_names
    from keras_vit.io.progress import stage

    with stage("Reading the images", len(paths), "images") as work:
        pixels, read, failed = read_images(model, paths, work.advance)
    for path, why in failed.items():
        logging.warning("Skipping %s: %s", path, why)
    if not read:
        raise ValueError(f"None of the {len(paths)} files of --images can be read as an image.")
    return pixels, short_names(read), failed


def inspect(values):
    """Writes the page as the flags say."""
    from keras_vit.distribution import strategy
    from keras_vit.inspection import html_report
    from keras_vit.inspection.model_page import class_number, inspect_model, write_page
    from keras_vit.io.progress import stage
    from keras_vit.io.suggest import counted
    from keras_vit.runs.report import command, surroundings

    paths = _chosen(values)
    with stage(f"Loading {values.model}"):
        model = loading.load(values.model)
    if getattr(values, "class"):
        class_number(model, getattr(values, "class"))  # refused before the images are read
    pixels, names, failed = _read(model, paths)
    parts = inspect_model(model, pixels, names, values.show, getattr(values, "class"))
    made_by = html_report.about(command(sys.orig_argv), surroundings(strategy("one")))
    left_out = html_report.skipped(failed) if failed else ""
    write_page(values.output, f"Inside {values.model}", parts, [left_out, made_by])
    print(f"{counted(len(names), 'image')}; page and pictures: {values.output}/index.html")


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string("images", None, "Files, folders and patterns, separated by commas.", required=True)
    flags.path("output", None, "The folder to write; an earlier page there is replaced.", required=True)
    flags.string("class", None, "The class to draw maps of, a name or a number; by default each image's predicted one.")
    flags.integer(
        "max_images",
        128,
        "The largest number of images to measure heads and layers on; evenly spaced if there are more.",
        lowest=1,
    )
    flags.integer("show", 12, "How many of the measured images to show.", lowest=1)
    flags.launch(main, loads=True)


if __name__ == "__main__":
    run()
