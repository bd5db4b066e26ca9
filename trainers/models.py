"""Lists the variants and the published models with their costs, or one model's layers.

    keras-vit models
    keras-vit models "deit*/small*" --image_size=384
    keras-vit models --layers=R50+B/16
    keras-vit models --layers=runs/digits_finetune --json

All figures are per image: pixels, parameters, GFLOP of a forward pass (2 per multiply-add, so twice the GMACs), and
float32 activations: the most that a forward pass needs at once, and all that a training step keeps. Nothing is
downloaded, and models are built without values. Published models have the parameters that keras_vit.load builds.
"""

import dataclasses
import json
import os

from . import flags, loading
from .without_engine import package_module


def _layers(name, image_size):
    """The rows of one model's layers: of a file as it is loaded, of a name without building it."""
    from keras_vit.planning.model_counts import count
    from keras_vit.planning.models import rows_of

    if os.path.exists(os.path.expanduser(name)) or "://" in name:
        return count(loading.load(name, image_size=image_size))
    return rows_of(name, image_size)


def main(patterns):
    values = flags.FLAGS
    if len(patterns) > 1 or (patterns and values.layers):
        raise ValueError(
            f'One pattern, or --layers=NAME without one: got {patterns}. Write a pattern in quotes: "deit/*".'
        )
    pattern, table = patterns[0] if patterns else "*", package_module("planning.rows_of_text").models_table
    if values.layers:
        from keras_vit.planning.models import layers_table

        found, table = _layers(values.layers, values.image_size), layers_table
    elif values.image_size:
        from keras_vit.planning.models import count_models

        found = count_models(pattern, values.image_size)
    else:
        found = package_module("planning.model_count").read_counts(pattern)
    print(json.dumps([dataclasses.asdict(row) for row in found], indent=1) if values.json else table(found))


def run():
    flags.string("layers", None, "A variant, a published name, or what keras_vit.load takes: prints one row per layer.")
    flags.integer("image_size", None, "Pixels of a square image; by default 224, or a published model's own.", lowest=1)
    flags.boolean("json", False, "Prints JSON, with unrounded numbers.")
    flags.launch(main, takes="[PATTERN]", loads=True)


if __name__ == "__main__":
    run()
