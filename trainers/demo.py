"""Runs the whole path on real digits: pre-trains at 8x8, fine-tunes at 16x16, evaluates, exports, and serves.

keras-vit demo --workdir=runs/demo
"""

import pathlib
import subprocess
import sys
import time

from . import flags

_CLASSIFY = """
import pathlib, sys
import tensorflow as tf

predict = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answer = predict(tf.constant([pathlib.Path(path).read_bytes() for path in sys.argv[2:]]))
for path, classes, probabilities in zip(sys.argv[2:], answer["classes"].numpy(), answer["probabilities"].numpy()):
    print(f"{path}: {classes[0].decode()} {probabilities[0]:.1%}")
"""


def _write_scans(folder, count):
    """Some test digits as PNG files; returns (paths, labels)."""
    import tensorflow as tf

    from keras_vit.data import open_source

    paths, labels = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for i, example in enumerate(open_source("digits", "test").ordered().take(count).as_numpy_iterator()):
        path = folder / f"scan_{i:02d}_is_{example['label']}.png"
        path.write_bytes(tf.io.encode_png(example["image"]).numpy())
        paths.append(str(path))
        labels.append(str(example["label"]))
    return paths, labels


def _serve(exported, paths, labels):
    """Classifies the files in a fresh process without keras_vit; returns (right, count)."""
    command = [sys.executable, "-I", "-c", _CLASSIFY, str(exported), *paths]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(answer, end="")
    guesses = [line.rsplit(": ", 1)[1].split()[0] for line in answer.splitlines()]
    return sum(guess == label for guess, label in zip(guesses, labels)), len(labels)


def main():
    from keras_vit.io.progress import shown

    with shown():
        demonstrate()


def demonstrate():
    """Trains twice, exports, serves in a fresh process, and prints the results."""
    import keras_vit
    from keras_vit.io.logs import quiet
    from keras_vit.io.progress import stage
    from keras_vit.runs import run as train

    from .config_files import load_config

    began, root = time.time(), pathlib.Path(flags.FLAGS.workdir)
    config = load_config("digits_pretrain")
    config.seed = flags.FLAGS.seed
    _, first = train(config, root / "pretrain")
    config = load_config("digits_finetune")
    config.seed = flags.FLAGS.seed
    config.init = str(root / "pretrain")
    _, second = train(config, root / "finetune")
    with quiet(), stage("Exporting"):
        keras_vit.export(keras_vit.load(root / "finetune"), root / "exported")
    with stage("Serving it in a fresh process"):
        right, count = _serve(root / "exported", *_write_scans(root / "scans", 8))
    rows = [
        ("pre-trained at 8x8", f"{first['top1']:.2%} of {first['examples']} test digits", root / "pretrain"),
        ("fine-tuned at 16x16", f"{second['top1']:.2%} of {second['examples']} test digits", root / "finetune"),
        ("served from a SavedModel", f"{right} of {count} PNG files right", root / "exported"),
        ("report", "curves, confusion, examples, attention", root / "finetune" / "report.html"),
    ]
    print()
    for what, result, place in rows:
        print(f"{what:26}{result:40}{place}")
    print(f"{time.time() - began:.0f} s, seed {flags.FLAGS.seed}")


def run():
    flags.path("workdir", "runs/demo", "The folder for all files; a demo that was interrupted resumes.")
    flags.integer("seed", 0, "Seed of weights, order and augmentation.")
    flags.launch(main)


if __name__ == "__main__":
    run()
