"""Classifies image files with an exported SavedModel, which needs only TensorFlow, or any model for keras_vit.load.

python trainers/classify.py exported/digits IMAGE [IMAGE ...]
"""

import os
import pathlib
import sys


def _by_export(folder):
    """A function paths -> [(name, probability), ...] per image, best first, from an exported SavedModel."""
    import tensorflow as tf

    try:
        predict = tf.saved_model.load(folder).signatures["serving_default"]
    except OSError as error:
        sys.exit(f"{folder}: not a SavedModel: {error}")

    def classify(paths):
        try:
            answer = predict(tf.constant([pathlib.Path(path).read_bytes() for path in paths]))
        except tf.errors.OpError:
            raise ValueError(
                "cannot be decoded: an export reads JPEG, PNG, BMP, GIF and WebP; convert other images"
            ) from None
        bad = [status.decode() for status in answer["status"].numpy() if status != b"ok"] if "status" in answer else []
        if bad:
            raise ValueError(f"cannot be decoded: {bad[0]}")
        best = zip(answer["classes"].numpy(), answer["probabilities"].numpy())
        return [[(name.decode(), probability) for name, probability in zip(*image)] for image in best]

    return classify


def _by_model(name):
    """The same from a model for keras_vit.load."""
    import keras_vit

    try:
        model = keras_vit.load(name)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    return lambda paths: [[guess[:2] for guess in image] for image in model.classify(paths, top_k=3, verbose=0)]


def _one_by_one(classify, paths):
    """(path, answer) of each image, None for unreadable ones, which are reported."""
    for path in paths:
        try:
            yield path, classify([path])[0]
        except (OSError, ValueError) as error:
            reason = str(error).removeprefix(f'"{path}": ').removeprefix(f'"{path}" ')
            print(f"{path}: {reason}", file=sys.stderr)
            yield path, None


def _classify(model, paths):
    """Prints the three most probable classes of each image; returns whether all were readable."""
    is_model = os.path.isfile(model) or os.path.exists(os.path.join(model, "config.json")) or not os.path.exists(model)
    classify = (_by_model if is_model else _by_export)(model)
    try:
        answers = list(zip(paths, classify(paths)))
    except (OSError, ValueError):
        answers = list(_one_by_one(classify, paths))
    for path, best in answers:
        if best is not None:
            print(f"{path}: {', '.join(f'{name} {probability:.1%}' for name, probability in best[:3])}")
    return all(best is not None for _, best in answers)


def run():
    program = sys.argv[0] if sys.argv[0].endswith("classify") else f"python {sys.argv[0]}"
    text = __doc__.replace("python trainers/classify.py", program)
    flags = [arg for arg in sys.argv[1:] if arg.startswith("-")]
    if {"--help", "-h"} & set(flags):
        print(text)
    elif flags or len(sys.argv) < 3:
        sys.exit(f"{f'There is no flag {flags[0]}.' if flags else 'Give a model and at least one image.'}\n\n{text}")
    elif not _classify(sys.argv[1], sys.argv[2:]):
        sys.exit(1)


if __name__ == "__main__":
    run()
