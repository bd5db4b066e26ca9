"""Measures a model's frozen features on VTAB-1k's nineteen tasks, and prints the means of the three groups.

    keras-vit vtab --model=runs/x --data_dir=DIR --output=runs/x
    keras-vit vtab --model=imagenet21k/L_16 --data_dir=DIR --finetune=L/16

DIR contains tensorflow-datasets' prepared data; tasks without data are named. On each task's 1000 examples a linear
classifier is fitted to the features, its penalty chosen on a fifth of them; --method=logistic or knn replaces it. The
benchmark itself fine-tunes: --finetune=VARIANT prints commands that do so with the recipe vtab_finetune, and measures
nothing.
"""

import json
import shlex

from . import flags, loading, shared_flags
from .config_files import packaged
from .without_engine import did_you_mean


def _tasks(names):
    """{name: VtabTask} of the flag's tasks, by default all; ValueError for an unknown one names the nearest."""
    from keras_vit.evaluation.vtab import VtabTask

    table = packaged("lib.vtab")
    every = {name: VtabTask(*row, zero_one=name in table.ZERO_ONE) for name, row in table.TASKS.items()}
    chosen = names.replace(" ", "").split(",") if names else list(every)
    unknown = [name for name in chosen if name not in every]
    if unknown:
        raise ValueError(
            f'VTAB has no task "{unknown[0]}".{did_you_mean(unknown[0], every)} Valid: {", ".join(every)}.'
        )
    return {name: every[name] for name in chosen}


def _without_variant(values, variants):
    """Whether the model is of none of the recipe's variants, so that the run must not check it.

    Raises:
        ValueError: if it is of another one than --finetune.
    """
    from keras_vit.checkpoints.describe import describe_checkpoint
    from keras_vit.models import families

    try:
        described, _ = describe_checkpoint(values.model)
    except (ValueError, OSError):  # the run says what is wrong
        return False
    if described is None:
        return False
    held = families.variant_name(described["variant"])
    if held in variants and held != values.finetune:
        raise ValueError(
            f"--finetune={values.finetune}: {values.model} has the variant {held}. Pass --finetune={held}."
        )
    return held not in variants


def _commands(values, there):
    """The commands that fine-tune on tasks with data, one per line."""
    variants = packaged("vtab_finetune").CHOICES["variant"]
    if values.finetune not in variants:
        raise ValueError(f"--finetune={values.finetune}: the recipe vtab_finetune has {', '.join(variants)}.")
    more = ["--config.model.variant=None"] if _without_variant(values, variants) else []
    more += ["--data_dir=" + values.data_dir] if values.data_dir else []
    for name in there:
        config = [f"--config=vtab_finetune:{name},{values.finetune}", f"--config.init={values.model}", *more]
        yield shlex.join(["keras-vit", "finetune", *config, f"--workdir={values.output or 'runs/vtab'}/{name}"])


def _lines(tasks, results, means, gone):
    """The printed table, line by line."""
    for name, task in tasks.items():
        value = f"{results[name]['top1']:7.2%}" if name in results else "      -"
        yield f"{name:22}{task.group:13}{value}"
    yield ""
    for group, (mean, measured, whole) in means.items():
        text = f"{mean:7.2%}" if mean is not None else "      -"
        part = "" if measured == whole else f"   of {measured} of {whole} tasks: not the benchmark's figure"
        yield f"{'mean, ' + group:35}{text}{part}"
    if gone:
        datasets = dict.fromkeys(tasks[name].source.partition("?")[0] for name in gone)
        yield (
            f"Not prepared: {', '.join(gone)}. Prepare each dataset once, with network: tfds build NAME --data_dir=DIR,"
            " NAME being"
        )
        yield f"{', '.join(datasets)}."


def _write(folder, content, top1):
    """Writes vtab.json and, with matplotlib, vtab.png."""
    from etils import epath

    from keras_vit.distribution import Strategy
    from keras_vit.inspection.figures import bars
    from keras_vit.io.atomic import write_bytes
    from keras_vit.runs.picture_files import write_picture

    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "vtab.json", json.dumps(content, indent=2).encode())
    if top1:
        picture = {name: 100 * value for name, value in top1.items()}
        write_picture(folder / "vtab.png", lambda: bars(picture, "top-1, %"), Strategy())


def run_vtab(values):
    """Measures, or prints the commands."""
    from keras_vit.data import ExampleErrors
    from keras_vit.evaluation import Setting, vtab
    from keras_vit.io.progress import stage

    tasks = _tasks(values.tasks)
    with stage("Looking for the data of the tasks"):
        gone = vtab.missing(tasks, values.data_dir)
    there = {name: task for name, task in tasks.items() if name not in gone}
    if values.finetune:
        lines = list(_commands(values, there)) + [f"# Not prepared: {', '.join(gone)}."] * bool(gone)
        return print("\n".join(lines))
    if not there:
        raise ValueError(
            f"None of the tasks' data is prepared in {values.data_dir or '~/tensorflow_datasets'}. Prepare each dataset"
            " once, with network: tfds build NAME --data_dir=DIR, NAME being"
            f" {', '.join(dict.fromkeys(t.source.partition('?')[0] for t in tasks.values()))}."
        )
    with stage(f"Loading {values.model}"):
        model = loading.load(values.model, image_size=values.image_size)
    errors = ExampleErrors(values.broken_limit)
    setting = Setting(model, batch_size=values.batch_size, data_dir=values.data_dir, errors=errors, verbose=True)
    results = vtab.measured(there, values.method, setting)
    top1 = {name: result["top1"] for name, result in results.items()}
    means = vtab.means(tasks, top1)
    print("\n".join(_lines(tasks, results, means, gone)))
    if values.output:
        groups = {group: {"mean": mean, "measured": n, "tasks": whole} for group, (mean, n, whole) in means.items()}
        _write(
            values.output,
            {"model": values.model, "method": values.method, "means": groups, "tasks": results, "missing": gone},
            top1,
        )


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    with shown():
        if flags.FLAGS.output and not flags.FLAGS.finetune:
            check_folder(flags.FLAGS.output)
        run_vtab(flags.FLAGS)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string("tasks", None, "Names of tasks, joined by commas; by default all nineteen.")
    flags.enum("method", "ridge", ["ridge", "logistic", "knn"], "The classifier on the features.")
    flags.string(
        "finetune",
        None,
        "A variant of the recipe vtab_finetune, such as B/16: only prints the commands that fine-tune.",
    )
    flags.integer("image_size", None, "In pixels; positions are resampled. By default the model's own.", lowest=1)
    flags.path(
        "output",
        None,
        "A folder for vtab.json and vtab.png, with --finetune of the run directories; by default the table is only"
        " printed.",
    )
    flags.integer("batch_size", 64, "Images per batch.", lowest=1)
    shared_flags.define_broken_limit()
    shared_flags.define_data_dir()
    flags.launch(main, resumes=True, loads=True)


if __name__ == "__main__":
    run()
