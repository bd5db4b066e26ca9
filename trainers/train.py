"""Training for pretrain and finetune: a run, several seeds, a sweep, or with --dry_run only a plan."""

from absl import logging

from keras_vit.data.source_names import with_kind
from keras_vit.data.usual_splits import PLAIN, own_validation
from keras_vit.distribution import strategy as find_strategy
from keras_vit.distribution.strategy import check_name
from keras_vit.io.progress import shown, stage
from keras_vit.runs import run, run_seeds, run_sweep
from keras_vit.runs.config import check_keys
from keras_vit.tasks import find_task

from . import config_files
from .loading import in_shell_words


def train(values, strategy):
    """Runs one run, several seeds or a sweep, in turn in the same processes."""
    score = find_task(values.config.task).score

    def run_one(config, workdir):
        from keras_vit.planning.memory import check_memory
        from keras_vit.planning.model_counts import run_costs

        options = {"check_model": check_memory} if values.check_memory else {}
        model, measures = run(config, workdir, values.data_dir, strategy, values.data_service, **options)

        return {**measures, **run_costs(model, measures["steps"] * config.batch_size)}

    if values.sweep:
        run_sweep(values.config, values.sweep, values.workdir, run_one, strategy, score, values.runs)
    else:
        run_seeds(values.config, values.workdir, run_one, strategy, score, values.runs)


def plan(values):
    """Prints the plan of --dry_run."""
    from keras_vit.planning import dry_run

    datasets = config_files.packaged("lib.datasets").DATASETS
    options = {"examples": values.examples, "classes": values.classes, "sweep": values.sweep, "runs": values.runs}
    print(dry_run.plan(values.config, datasets, values.workdir, data_dir=values.data_dir, **options))


def _take_validation(values):
    """Lets a recipe that holds out a part of train use the data's split val instead, unless flags name the splits."""
    data = values.config.data
    named = any(hasattr(values, f"config.data.{key}") for key in ("train", "evaluation"))
    without_data = values.dry_run and values.examples and values.classes
    if named or without_data or (data.train, data.evaluation) != PLAIN:
        return
    if found := own_validation(data.source, values.data_dir):
        data.train, data.evaluation = found
        logging.info(
            "%s has a split val: training on train, evaluating on val. To hold out a part of train instead:"
            " --config.data.train='%s' --config.data.evaluation='%s'",
            data.source,
            *PLAIN,
        )


def main(values):
    """Trains, or prints a plan, as the flags say."""
    check_name(values.strategy)
    check_keys(values.config, config_files.packaged("lib.common").base())
    values.config.data.source = with_kind(values.config.data.source, values.data_dir)
    _take_validation(values)
    if values.dry_run:
        plan(values)
        return
    # The workers of a cluster meet here, before anything else touches the devices.
    with stage("Waiting for the other workers" if values.strategy == "multiworker" else "Finding the devices"):
        strategy = find_strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    if not strategy.chief:
        logging.set_verbosity(logging.WARNING)
    with shown(strategy.chief), in_shell_words("--config.model."):
        train(values, strategy)
