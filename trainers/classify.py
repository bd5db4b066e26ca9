"""Classifies image files with an exported SavedModel, which needs only TensorFlow, or with anything that keras_vit.load takes.

python trainers/classify.py exported/digits IMAGE [IMAGE ...]
"""

import os
import sys


def _read(path):
    import tensorflow as tf

    try:
        return tf.io.read_file(path).numpy()
    except tf.errors.OpError as error:
        sys.exit(f"{path}: cannot be read: {error.message.rpartition('}} ')[2]}")


def _broken(predict, paths, images):
    """The path of the first image that the model does not take by itself, or None."""
    import tensorflow as tf

    for path, image in zip(paths, images):
        try:
            predict(tf.constant([image]))
        except tf.errors.OpError:
            return path
    return None


def _by_export(folder, paths):
    """[(name, probability), ...] of each image, best first, by an exported SavedModel."""
    import tensorflow as tf

    images = [_read(path) for path in paths]
    try:
        model = tf.saved_model.load(folder)
    except OSError as error:
        sys.exit(f"{folder}: not a SavedModel: {error}")
    predict = model.signatures["serving_default"]
    try:
        answer = predict(tf.constant(images))
    except tf.errors.OpError:
        broken = _broken(predict, paths, images)
        if broken is None:
            raise
        sys.exit(f"{broken}: this file cannot be decoded as an image.")
    best = zip(answer["classes"].numpy(), answer["probabilities"].numpy())
    return [[(name.decode(), probability) for name, probability in zip(*image)] for image in best]


def _by_model(name, paths):
    """The same by a model of keras_vit."""
    import keras_vit

    try:
        return [[guess[:2] for guess in image] for image in keras_vit.load(name).classify(paths, top_k=3, verbose=0)]
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def _classify(model, paths):
    """Prints the three most probable classes of each image."""
    is_model = os.path.isfile(model) or os.path.exists(os.path.join(model, "config.json")) or not os.path.exists(model)
    for path, best in zip(paths, (_by_model if is_model else _by_export)(model, paths)):
        print(f"{path}: {', '.join(f'{name} {probability:.1%}' for name, probability in best[:3])}")


def run():
    program = sys.argv[0] if sys.argv[0].endswith("classify") else f"python {sys.argv[0]}"
    text = __doc__.replace("python trainers/classify.py", program)
    flags = [arg for arg in sys.argv[1:] if arg.startswith("-")]
    if {"--help", "-h"} & set(flags):
        print(text)
    elif flags or len(sys.argv) < 3:
        sys.exit(f"There is no flag {flags[0]}.\n\n{text}" if flags else text)
    else:
        _classify(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    run()
