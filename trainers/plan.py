"""Compiles a config's training step for a slice of TPUs, without one, and says whether it fits and what it costs.

    keras-vit plan --config=imagenet_pretrain:B/16 --config.dtype=mixed_bfloat16 --config.batch_size=1024 \\
        --topology=v5e:4x4
    keras-vit plan --config=imagenet_pretrain:B/16 --config.dtype=mixed_bfloat16 --compare=v5e:4x4,v6e:2x2
    keras-vit plan --config=imagenet_pretrain:B/16 --config.dtype=mixed_bfloat16 --topology=v5e:4x4 \\
        --find_batch

The step is a run's on the JAX backend, for any task, with data parallelism or --model_parallel. Compiling takes a
minute or more, and the result is cached. --where shows the time and traffic of each part of the step, --find_batch the
largest batch that fits, with and without rematerialised blocks. Needs the extra [plan]. Times are predictions.
"""

import importlib.util
import math
import os

from . import flags, shared_flags

_NEEDS = "--topology or --compare"


def _check_installed():
    """Raises ImportError without the libraries of a plan."""
    libraries = {"tensorflow": "TensorFlow", "jax": "JAX", "libtpu": "libtpu (the TPU compiler)"}
    missing = [title for name, title in libraries.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"A plan needs {', '.join(libraries.values())}. Not installed: {', '.join(missing)}. Run:"
            f" {flags.pip_install('cpu,plan')}."
        )


def _plans(values):
    """A function (config, slice) -> Plan, with the flags' options."""
    from keras_vit.planning.slice.plan import make_plan

    from . import config_files

    datasets = config_files.packaged("lib.datasets").DATASETS
    options = {name: getattr(values, name) for name in ("model_parallel", "examples", "classes", "data_dir")}
    return lambda config, where: make_plan(config, datasets, where, **options)


def _compare(values, plan_of):
    """Prints a table of the config on several slices."""
    from keras_vit.planning.slice.plan import DoesNotFit
    from keras_vit.planning.slice.plan_text import comparison

    name, named = values.config.model.variant or values.config.init or "B/16", []
    for where in [name.strip() for name in values.compare.split(",") if name.strip()]:
        try:
            named.append((name, plan_of(values.config, where)))
        except DoesNotFit as error:
            named.append((f"{name} on {where}", str(error)))
    print(comparison(named))


def _find_batch(values, plan_of):
    """Prints the largest batch that fits, with and without rematerialised blocks."""
    from keras_vit.io.suggest import counted
    from keras_vit.planning.slice.plan import MOST_PER_CHIP, find_batch, with_batch
    from keras_vit.planning.slice.plan_text import comparison

    named = []
    step = math.lcm(8, values.config.micro_batches)
    for remat in (False, True):
        per_chip, plan = find_batch(
            lambda n, remat=remat: plan_of(with_batch(values.config, n, values.topology, remat=remat), values.topology),
            step,
        )
        says = "is the largest batch that fits" if per_chip + step <= MOST_PER_CHIP else "fits; more were not tried"
        print(f"{'With' if remat else 'Without'} rematerialised blocks, {counted(per_chip, 'image')} per chip {says}.")
        named.append(("remat" if remat else "as it is", plan))
    print(f"\n{comparison(named)}")


def main():
    _check_installed()
    from keras_vit.io.progress import shown
    from keras_vit.planning.slice.plan import DoesNotFit
    from keras_vit.runs.config import check_keys

    from . import config_files

    values = flags.FLAGS
    if bool(values.topology) == bool(values.compare):
        raise ValueError(f"Give {_NEEDS}, one of the two: --topology=v5e:4x4, or --compare=v5e:4x4,v6e:2x2.")
    check_keys(values.config, config_files.packaged("lib.common").base())
    plan_of = _plans(values)
    with shown():
        if values.compare:
            _compare(values, plan_of)
        elif values.find_batch:
            _find_batch(values, plan_of)
        else:
            try:
                _show(values, plan_of(values.config, values.topology))
            except DoesNotFit as error:
                raise ValueError(f"{error} --find_batch says how many images do.") from None


def _show(values, plan):
    """Prints one plan."""
    from keras_vit.planning.slice.plan_text import plan_text, where

    print(plan_text(plan))
    if values.where:
        print(f"\n{where(plan)}")


def run():
    # Set before Keras and JAX are imported: the step is JAX's, and needs no device.
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags.string("topology", None, "The slice: v5e:4x4, v6e:2x2, v4:2x2x1, v5p:2x2x1 and so on.")
    flags.string("compare", None, "Several slices, joined by commas: one table.")
    flags.boolean(
        "find_batch",
        False,
        "Find the largest batch that fits, in multiples of 8 a chip, and of --config.micro_batches.",
    )
    flags.boolean("where", False, "Show the time and the traffic of each part of the step.")
    flags.integer("model_parallel", None, "The number of chips over which a matrix is split; by default 1.", lowest=1)
    flags.integer(
        "examples", None, "The number of training examples, if the dataset is not a well-known one.", lowest=1
    )
    flags.integer("classes", None, "The number of classes, if the dataset is not a well-known one.", lowest=1)
    flags.only_with("find_batch", "topology", bool, "--topology")
    flags.only_with("where", "topology", bool, "--topology")
    shared_flags.define_data_dir()
    flags.launch(main, with_config=True)


if __name__ == "__main__":
    run()
