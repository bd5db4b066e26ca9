"""Fine-tunes a trained Vision Transformer, at another resolution and on other classes where the config says so.

    python -m trainers.finetune --config=digits_finetune --config.init=runs/digits_pretrain --workdir=runs/digits_finetune

--config.init is what keras_vit.load takes: a run directory, a .keras, .npz or safetensors file, a Hugging Face folder, a published
name. --config.head: reset (a new zero head) or keep. --config.linear_probe trains the
head alone, --config.freeze names layers that stay as they are, --config.optimizer.layer_decay lowers the learning rate layer by layer.
"""

from absl import logging

from . import flags


def build(config, source):
    """The model of config.init, made ready for the source."""
    import keras_vit
    from keras_vit.models import freeze, freeze_all_but_head

    from . import pretrain
    from .session import spec_overrides

    if not config.init:
        logging.warning("No --config.init: starting from random weights. Give a trained model to learn from few images.")
        model = pretrain.build(config, source)
    else:
        reset = config.head == "reset"
        model = keras_vit.load(
            config.init,
            image_size=config.model.image_size,
            classes=len(source.class_names) if reset else None,
            class_names=source.class_names if reset else None,
            head=config.head,
            channels=config.model.channels,
            resample=config.resample or None,
            preprocessing=config.data.eval_preprocess,
            remat=config.model.remat,
            dtype=config.dtype,
            **spec_overrides(config),
        )
        if model.classes != len(source.class_names):
            raise ValueError(
                f"The model has {model.classes} classes, the data {len(source.class_names)}: use --config.head=reset."
            )
    if config.linear_probe:
        freeze_all_but_head(model)
    elif config.freeze:
        logging.info("Frozen: %s", ", ".join(freeze(model, config.freeze)))
    return model


def main():
    from . import command

    command.main(build)


def run():
    flags.define_run()
    flags.launch(main, config="digits_finetune")


if __name__ == "__main__":
    run()
