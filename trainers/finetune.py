"""Fine-tunes a trained model, optionally at another resolution and on other classes.

    keras-vit finetune --data=PHOTOS --init=deit/tiny --epochs=5 --workdir=runs/photos
    keras-vit finetune --config=digits_finetune --init=runs/digits_pretrain --workdir=runs/digits_finetune

PHOTOS has one subfolder of images per class. For files like these the config is folder_finetune by default. --init
accepts a published name, a run directory, a .keras, .npz, safetensors or PyTorch file (.pth), and a folder of timm or
Hugging Face.
--config.head: reset (a new head of zeros), probe (a new head that begins as a linear probe) or keep.
--config.linear_probe trains only the head, --config.freeze names frozen layers, --config.optimizer.layer_decay lowers
the learning rate layer by layer. --config.quantization=int8 trains with the rounding of an int8 file.
"""

from absl import logging

from . import flags, shared_flags
from .config_files import check_source, keys


def main():
    check_source(flags.FLAGS)
    from . import train

    config = flags.FLAGS.config
    if not config.init and not config.model.get("variant") and keys.is_packaged_task(config.task):
        raise ValueError(
            "finetune starts from a trained model: --init=deit/tiny, a run directory or a checkpoint file. To"
            " start from random weights, name what to build: --config.model.variant=Ti/16."
        )
    if not config.init:
        logging.warning(
            "No --init: starting from random weights. Fine-tuning on few images needs a trained model: --init=MODEL."
        )
    train.main(flags.FLAGS)


def run():
    shared_flags.define_run()
    flags.launch(main, with_config=True, for_own_data="folder_finetune")


if __name__ == "__main__":
    run()
