"""Classifies image files with an exported SavedModel, which needs only TensorFlow, or with anything that keras_vit.load takes.

python trainers/classify.py exported/digits IMAGE [IMAGE ...]
"""

import os
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


def _by_export(folder, paths):
    """[(name, probability), ...] of each image, best first, by an exported SavedModel."""
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
    return [
        [(name.decode(), probability) for name, probability in zip(*best)]
        for best in zip(answer["classes"].numpy(), answer["probabilities"].numpy())
    ]


def _by_model(name, paths):
    """The same by a model of keras_vit."""
    import keras_vit

    try:
        return [[best[:2] for best in image] for image in keras_vit.load(name).classify(paths, top_k=3, verbose=0)]
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    model, *paths = sys.argv[1:]
    is_export = os.path.exists(os.path.join(model, "saved_model.pb"))
    for path, best in zip(paths, (_by_export if is_export else _by_model)(model, paths)):
        print(f"{path}: {', '.join(f'{name} {probability:.1%}' for name, probability in best[:3])}")


if __name__ == "__main__":
    main()
