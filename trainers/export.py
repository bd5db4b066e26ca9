"""Exports a model: as a SavedModel, which takes image bytes and needs only TensorFlow, or as weights for another library.

    python -m trainers.export --model=runs/digits_finetune --output=exported/digits
    python -m trainers.export --model=runs/mine --output=for_torch --format=timm

--model is what keras_vit.load takes: a run directory, a checkpoint of any format, a published name. --format: tf_saved_model; timm or
huggingface (a folder for PyTorch users), google (an .npz), keras (a .keras file).
"""

from absl import logging

from . import flags


def main():
    import keras_vit
    from keras_vit.checkpoints.save import FORMATS

    values = flags.FLAGS
    model = keras_vit.load(values.model)
    if values.format in FORMATS:
        keras_vit.save(model, values.output, format=values.format)
    else:
        with flags.quiet():
            keras_vit.export(model, values.output, format=values.format, top_k=values.top_k)
    logging.info("Exported %s to %s.", values.model, values.output)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "output", None, "The folder or file to write; what is there is replaced once the new one is whole.", required=True
    )
    flags.string("format", "tf_saved_model", "tf_saved_model, timm, huggingface, google or keras.")
    flags.integer("top_k", 5, "How many classes an image's answer holds.")
    flags.launch(main)


if __name__ == "__main__":
    run()
