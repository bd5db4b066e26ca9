"""Classifies image files with an exported SavedModel. Needs only TensorFlow.

python trainers/classify.py exported/digits IMAGE [IMAGE ...]
"""

import sys

import tensorflow as tf


def _read(path):
    try:
        return tf.io.read_file(path).numpy()
    except tf.errors.OpError as error:
        sys.exit(f"{path}: cannot be read: {error.message.rpartition('}} ')[2]}")


def _broken(predict, paths, images):
    """The path of the first image that the model does not take by itself, or None."""
    for path, image in zip(paths, images):
        try:
            predict(tf.constant([image]))
        except tf.errors.OpError:
            return path
    return None


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, *paths = sys.argv[1:]
    images = [_read(path) for path in paths]
    model = tf.saved_model.load(folder)
    predict = model.signatures["serving_default"]
    try:
        answer = predict(tf.constant(images))
    except tf.errors.OpError:
        broken = _broken(predict, paths, images)
        if broken is None:
            raise
        sys.exit(f"{broken}: this file cannot be decoded as an image.")
    for path, classes, probabilities in zip(paths, answer["classes"].numpy(), answer["probabilities"].numpy()):
        guesses = ", ".join(f"{name.decode()} {p:.1%}" for name, p in zip(classes[:3], probabilities))
        print(f"{path}: {guesses}")


if __name__ == "__main__":
    main()
