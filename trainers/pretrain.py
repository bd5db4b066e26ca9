"""Trains a Vision Transformer, a hybrid or a BiT from random weights.

    python -m trainers.pretrain --config=digits_pretrain --workdir=runs/digits_pretrain

A run that is in --workdir already resumes where it stopped. Override the config with --config.key=value.
"""

from . import flags


def build(config, source):
    """A new model for the source's classes."""
    from keras_vit import models

    from .session import spec_overrides

    return models.build(
        config.model.variant,
        image_size=config.model.image_size,
        channels=config.model.channels,
        classes=len(source.class_names),
        class_names=source.class_names,
        preprocessing=config.data.eval_preprocess,
        remat=config.model.remat,
        dtype=config.dtype,
        **spec_overrides(config),
    )


def main():
    from . import command

    command.main(build)


def run():
    flags.define_run()
    flags.launch(main, config="digits_pretrain")


if __name__ == "__main__":
    run()
