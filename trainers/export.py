"""Exports a model: as a SavedModel that takes image bytes and needs only TensorFlow, or as weights for another library.

    python -m trainers.export --model=runs/digits_finetune --output=exported/digits
    python -m trainers.export --model=runs/mine --output=for_torch --format=timm

--model is what keras_vit.load takes: a run directory, a checkpoint of any format, a published name. --format: tf_saved_model; timm or
huggingface (a folder for PyTorch users), google (an .npz), keras (a .keras file).
"""

from absl import logging
from etils import epath

from . import flags


def main():
    from keras_vit.io.progress import shown

    with shown():
        export(flags.FLAGS)


def export(values):
    """Exports as the flags say."""
    import keras_vit
    from keras_vit.checkpoints.save import FORMATS
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.logs import quiet
    from keras_vit.io.progress import stage
    from keras_vit.io.suggest import did_you_mean

    valid = ("tf_saved_model", *FORMATS)
    if values.format not in valid:
        raise ValueError(
            f'Unknown export format "{values.format}".{did_you_mean(values.format, valid)} Valid: {", ".join(valid)}.'
        )
    check_folder(epath.Path(values.output).parent)
    with stage(f"Loading {values.model}"):
        model = keras_vit.load(values.model)
    with stage(f"Exporting to {values.output}"), quiet():
        if values.format in FORMATS:
            keras_vit.save(model, values.output, format=values.format)
        else:
            keras_vit.export(model, values.output, format=values.format, top_k=values.top_k, activation=values.activation)
    logging.info("Exported %s to %s.", values.model, values.output)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "output", None, "The folder or file to write; an existing one is replaced once the new one is complete.", required=True
    )
    flags.string("format", "tf_saved_model", "tf_saved_model, timm, huggingface, google or keras.")
    flags.integer("top_k", 5, "How many classes are returned for each image.", lowest=1)
    flags.string(
        "activation",
        None,
        "softmax or sigmoid, from logits to probabilities; by default sigmoid for a model trained with it, else softmax.",
    )
    flags.only_with("activation", "format", lambda form: form == "tf_saved_model", "--format=tf_saved_model")
    flags.only_with("top_k", "format", lambda form: form == "tf_saved_model", "--format=tf_saved_model")
    flags.launch(main)


if __name__ == "__main__":
    run()
