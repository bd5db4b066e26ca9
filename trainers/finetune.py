"""Fine-tunes a trained model, optionally at another resolution and on other classes.

    python -m trainers.finetune --config=digits_finetune --config.init=runs/digits_pretrain \\
        --workdir=runs/digits_finetune

--config.init accepts a run directory, a .keras, .npz or safetensors file, a Hugging Face folder or a published name.
--config.head: reset (a new head of zeros) or keep. --config.linear_probe trains only the head, --config.freeze names
frozen layers, --config.optimizer.layer_decay lowers the learning rate layer by layer.
"""

from absl import logging

from . import flags
from .config_files import check_source


def main():
    check_source(flags.FLAGS)
    from . import train

    if not flags.FLAGS.config.init:
        logging.warning(
            "No --config.init: starting from random weights. Fine-tuning on few images needs a trained model:"
            " --config.init=MODEL."
        )
    train.main(flags.FLAGS)


def run():
    flags.define_run()
    flags.launch(main, with_config=True)


if __name__ == "__main__":
    run()
