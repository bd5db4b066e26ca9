"""Finds the images of a data set most similar to given ones, by a model's features, and shows them in a picture.

    keras-vit search cat.jpg dog.jpg --model=dino/s16 --data=images:PHOTOS --index=features \\
        --output=similar.png
    keras-vit search another.jpg --index=features --output=similar.png
    keras-vit search --text="a red bicycle" --text="a dog" --model=siglip2/B_16-224 --data=images:PHOTOS \\
        --index=features --tokenizer=tokenizer.json

The first command writes missing features of --data to the folder --index, as `predict` does; the second searches these
with the model that made them. The most similar images are printed with their cosine similarity, and drawn in --output.
With --text a SigLIP finds the images that fit a text, by the same features.
An image less similar to all others than 95% of the indexed images are is marked: nothing in the index is near.
"""

import os

from . import flags, loading, shared_flags

_ENOUGH = 20  # images in an index that show which similarities are usual
_UNUSUAL = 5  # percent of these images that are as far from all others as one that nothing is near to


def _load(name, values):
    """The model that makes the features, or with --text the dual encoder around it.

    Raises:
        ValueError: for one with features that texts cannot be compared with.
    """
    from keras_vit.io.progress import stage

    with stage(f"Loading {name}"):
        if not values.text:
            return loading.load(name)
        model = loading.load(name, text=True, tokenizer=values.tokenizer)
    if model.projection is not None:
        raise ValueError(
            f"--text: the features of {name} are not in the space of its texts: a projection follows. Take a SigLIP."
        )
    return model


def _encoder(model):
    """The model that makes the features: of a dual encoder the image encoder: its index serves images, too."""
    return getattr(model, "image_encoder", model)


def _index(values, folder):
    """(model, index) that the flags name; writes missing features."""
    from keras_vit.data import open_source
    from keras_vit.inference import predict
    from keras_vit.inference.neighbours import read_index

    if values.data is None:
        index = read_index(folder)
        index.check_written_by_model()
        name = values.model or next(iter(index.descriptions.values())).get("model")
        if name is None:
            raise ValueError(f'"{folder}" does not say which model made its features: give --model.')
        model = _load(name, values)
    else:
        if values.model is None:
            raise ValueError("--data needs --model, which computes the features.")
        sources = {
            split.strip(): open_source(values.data, split.strip(), values.data_dir) for split in values.split.split(",")
        }
        model = _load(values.model, values)
        about = {"model": values.model, "data": values.data, "data_dir": values.data_dir}
        options = {"batch_size": values.batch_size, "engine": values.engine}
        for split, source in sources.items():
            predict(_encoder(model), source, folder, ("features",), split=split, about=about, **options)
        index = read_index(folder)
    index.check_model(_encoder(model))
    model.preprocessing = index.preprocess  # may differ from the model's: predict --preprocess=...
    return model, index


def _others(index, features, path, k):
    """The `k` nearest neighbours of the features (d,) of the file `path`, without that file, even if indexed twice."""
    own, most = os.path.realpath(path), k + 1
    while True:
        [found] = index.nearest(features[None], most)
        others = [neighbour for neighbour in found if os.path.realpath(neighbour.name) != own]
        if len(others) >= k or most >= len(index.names):
            return others[:k]
        most *= 2


def _write_picture(path, pixels, found, index):
    """Writes the picture of the queries' pixels and their neighbours."""
    from keras_vit.inference.neighbours import pixels_of
    from keras_vit.inspection import figures
    from keras_vit.io.atomic import write_bytes

    images = iter(pixels_of(index, [neighbour for row in found for neighbour in row]))
    rows = [(query, [(n.similarity, next(images)) for n in row]) for query, row in zip(pixels, found)]
    write_bytes(path, figures.neighbours(rows))
    print(f"Drawn in {path}.")


def _rows(title, found):
    yield title
    yield from (f"  {neighbour.similarity:.3f}  {neighbour.name}" for neighbour in found)


def _lines(paths, found, usual):
    """The printed lines. `usual`: similarities of the index's images to their nearest other one, or None."""
    import numpy as np

    yield "Cosine similarity: 1 for the same picture, about 0 for unrelated ones."
    if usual is not None:
        median, low = np.percentile(usual, [50, _UNUSUAL])
        yield (
            f"For comparison: of the images in the index, half have another one at {median:.3f} or more,"
            f" {100 - _UNUSUAL}% at {low:.3f} or more."
        )
    for path, row in zip(paths, found):
        far = usual is not None and row and row[0].similarity < low
        yield from _rows(f"{path}:" + (" nothing in the index is near" if far else ""), row)


def _search_texts(values):
    """Prints the images of the index that fit each of --text."""
    from keras_vit.io.progress import stage

    model, index = _index(values, values.index)
    with stage("Searching"):
        found = index.nearest(model.encode_text(values.text), values.neighbours)
    print("Cosine similarity of image and text: compare the images of one text.")
    print("\n".join(line for text, row in zip(values.text, found) for line in _rows(f'"{text}":', row)))


def _check_output(path):
    """Refuses a name that does not end in .png, and an unwritable folder."""
    from keras_vit.io.atomic import check_folder

    if not path.lower().endswith(".png"):
        raise ValueError(f"--output={path}: expected the name of a PNG file, such as similar.png.")
    check_folder(os.path.dirname(os.path.abspath(path)))


def main(images):
    from keras_vit.inference.neighbours import features_of
    from keras_vit.inspection.photographs import find_images, read_images
    from keras_vit.io.progress import shown, stage

    values = flags.FLAGS
    if bool(images) == bool(values.text):
        raise ValueError("Give at least one image to search for, or --text, not both.")
    if values.text:
        with shown():
            return _search_texts(values)
    output = values.output
    if output:
        _check_output(output)
    paths = [path for image in images for path in find_images(image)]
    with shown():
        model, index = _index(values, values.index)
        with stage("Reading the images", len(paths), "images") as work:
            pixels, read, failed = read_images(model, paths, work.advance)
        for path, why in failed.items():
            print(f"Left out {path}: {why}")
        if not read:
            raise ValueError(f"None of the {len(paths)} images to search for can be read.")
        with stage("Searching"):
            found = [
                _others(index, row, path, values.neighbours) for row, path in zip(features_of(model, pixels), read)
            ]
    usual = index.usual_similarities()
    print("\n".join(_lines(read, found, usual if len(index.names) >= _ENOUGH else None)))
    if output:
        _write_picture(output, pixels, found, index)


def run():
    flags.path("index", None, "The folder of the features, as predict --answers=features writes it.", required=True)
    flags.string("model", None, "The model; by default the one that made the features.")
    flags.string(
        "data",
        None,
        "The images to search in, if --index has no features yet: a folder, a tensorflow-datasets name...",
    )
    flags.string("split", "train", "The split of --data, or several joined by commas.")
    flags.path("output", None, "The picture, a PNG file; by default none.")
    flags.strings("text", "A text to search for instead of images, with a text encoder; by default none")
    flags.path("tokenizer", None, "The tokenizer.json of the texts; by default the one next to the model.")
    flags.only_with("tokenizer", "text", bool, "--text")
    flags.only_with("output", "text", lambda texts: not texts, "images to search for")
    flags.integer("neighbours", 8, "How many similar images are found for each.", lowest=1)
    flags.integer("batch_size", 64, "Images per batch.", lowest=1)
    flags.string(
        "engine",
        None,
        "The engine that computes the features of --data: openvino, or openvino_bfloat16; by default TensorFlow, or"
        " JAX.",
    )
    for name in ("split", "engine"):
        flags.only_with(name, "data", bool, "--data")
    shared_flags.define_data_dir()
    flags.launch(main, takes="IMAGE [IMAGE ...]: files, folders or patterns", resumes=True, loads=True)


if __name__ == "__main__":
    run()
