"""Exports a trained model as a SavedModel, which takes image bytes and needs only TensorFlow.

python -m trainers.export --model=runs/digits_finetune --output=exported/digits
"""

from absl import logging

from . import flags


def main():
    import keras_vit

    values = flags.FLAGS
    model = keras_vit.load(values.model)
    with flags.quiet():
        keras_vit.export(model, values.output, format=values.format, top_k=values.top_k)
    logging.info("Exported %s to %s.", values.model, values.output)


def run():
    flags.string("model", None, "A .keras file or a run directory.", required=True)
    flags.string("output", None, "The folder to write; one that is there is replaced once the new one is whole.", required=True)
    flags.string("format", "tf_saved_model", "The format.")
    flags.integer("top_k", 5, "How many classes an image's answer holds.")
    flags.launch(main)


if __name__ == "__main__":
    run()
