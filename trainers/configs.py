"""Lists the packaged configs, or shows one with all of its keys.

    keras-vit configs
    keras-vit configs paper_finetune:L/16,cifar10

Override any key with --config.key=value.
"""

import inspect

from . import flags
from .command import first_line
from .config_files import CONFIGS, config_names, flat_values, load_config, packaged


def _show(text):
    """Prints a config's docstring, and its keys in the form of overrides."""
    config = load_config(text)
    name = text.partition(":")[0]
    if name in config_names():
        print(inspect.getdoc(packaged(name)), end="\n\n")
    print("\n".join(f"--config.{key}={value}" for key, value in flat_values(config).items()))


def main(names):
    if not names:
        width = max(map(len, config_names()))
        print("\n".join(f"{name:{width}}  {first_line(CONFIGS / f'{name}.py')}" for name in config_names()))
    for name in names:
        _show(name)


def run():
    flags.launch(main, takes="[NAME ...]")


if __name__ == "__main__":
    run()
