"""A table of `keras-vit plan` for well-known models on TPU slices. No TPU is used.

    python -m benchmarks.plans
    python -m benchmarks.plans --only="B/16"

Needs the extra [plan]. Each compiles for minutes on two cores the first time; results are cached.
"""

import dataclasses
import os

from trainers import flags


@dataclasses.dataclass(frozen=True)
class Row:
    """A model on a slice.

    Attributes:
        name: of the row.
        model: changes of config.model from `imagenet_pretrain`'s ViT-B/16.
        where, batch_size: the slice, and the batch of all its chips.
        model_parallel: number of chips that share a matrix.
        pixels: side of an image.
    """

    name: str
    model: dict
    where: str = "v5e:4x4"
    batch_size: int = 1024
    model_parallel: int | None = None
    pixels: int = 224


ROWS = (
    Row("B/16", {"variant": "B/16"}),
    Row("L/16", {"variant": "L/16"}),
    Row("H/14, blocks rematerialised", {"variant": "H/14", "remat": True}),
    Row("B/16 at 384 px", {"variant": "B/16"}, pixels=384),
    Row("L/16, matrices over 4 chips", {"variant": "L/16"}, "v5e:16x16", 4096, 4),
    Row("So400m/14", {"variant": "So400m/14"}, "v6e:4x4"),
)


def row_config(row):
    """A row's config: ImageNet's recipe, in bfloat16."""
    from trainers import config_files

    config = config_files.load_config("imagenet_pretrain:B/16")
    config.update(dtype="mixed_bfloat16", batch_size=row.batch_size)
    with config.model.unlocked(), config.model.ignore_type():
        config.model.update(**row.model, image_size=row.pixels)
    for which in ("train_preprocess", "eval_preprocess"):
        config.data[which] = config.data[which].replace("224", str(row.pixels))
    return config


def plan_row(row, datasets):
    """A row's Plan, or a text that says why there is none."""
    from keras_vit.planning.slice.plan import DoesNotFit, make_plan

    try:
        return make_plan(row_config(row), datasets, row.where, model_parallel=row.model_parallel)
    except DoesNotFit as error:
        return str(error)


def main():
    from keras_vit.io.progress import shown
    from keras_vit.planning.slice.plan_text import comparison
    from trainers import config_files

    rows = [row for row in ROWS if flags.FLAGS.only in (None, row.name)]
    if not rows:
        raise ValueError(f'There is no row "{flags.FLAGS.only}". Valid: {", ".join(row.name for row in ROWS)}.')
    datasets = config_files.packaged("lib.datasets").DATASETS
    with shown():
        found = [(row.name, plan_row(row, datasets)) for row in rows]
    print(f"\n{comparison(found)}")


def run():
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags.string("only", None, "The name of one row.")
    flags.launch(main)


if __name__ == "__main__":
    run()
