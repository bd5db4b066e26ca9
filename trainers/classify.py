"""Classifies image files with an exported SavedModel. Needs TensorFlow only.

python trainers/classify.py exported/digits IMAGE [IMAGE ...]
"""

import sys

import tensorflow as tf


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, *paths = sys.argv[1:]
    model = tf.saved_model.load(folder)
    answer = model.signatures["serving_default"](tf.constant([tf.io.read_file(path).numpy() for path in paths]))
    for path, classes, probabilities in zip(paths, answer["classes"].numpy(), answer["probabilities"].numpy()):
        guesses = ", ".join(f"{name.decode()} {p:.1%}" for name, p in zip(classes[:3], probabilities))
        print(f"{path}: {guesses}")


if __name__ == "__main__":
    main()
