"""Trains a model from random weights: a Vision Transformer, a hybrid, a BiT, or whatever the config's task builds.

    keras-vit pretrain --config=digits_pretrain --workdir=runs/digits_pretrain

A run already in --workdir resumes. Override the config with --config.key=value.
"""

from . import flags, shared_flags
from .config_files import check_source


def main():
    check_source(flags.FLAGS)
    from . import train

    if flags.FLAGS.config.init:
        raise ValueError(
            f"pretrain starts from random weights, but got --config.init={flags.FLAGS.config.init}. Use finetune to"
            " start from a model."
        )
    train.main(flags.FLAGS)


def run():
    shared_flags.define_run()
    flags.launch(main, with_config=True)


if __name__ == "__main__":
    run()
