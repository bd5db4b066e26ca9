"""What pretrain and finetune do as their flags say: a run, the same with several seeds, a sweep, or with --dry_run only a plan."""

import dataclasses

from absl import logging

from keras_vit.training import strategy
from keras_vit.training.faults import RESTART, LostWorker, is_lost_worker
from keras_vit.training.rundir import RunDirectory

from . import dry_run, flags, session
from .runs import run_seeds
from .sweep import run_sweep


def train(build, layout, values):
    """One run, several seeds or a sweep, after one another in the same processes."""

    def run(config, workdir):
        return session.run(config, workdir, build, values.data_dir, layout, values.data_service)[1]

    if values.sweep:
        run_sweep(values.config, values.sweep, values.workdir, run, layout, values.runs)
    elif values.runs != 1:
        run_seeds(values.config, values.workdir, run, layout, values.runs)
    else:
        run(values.config, values.workdir)


def main(build):
    """Runs the binary whose models `build` makes, as its flags say."""
    values = flags.FLAGS
    if values.dry_run:
        print(dry_run.plan(values.config, build, values.workdir, values.examples, values.classes, values.sweep, values.runs))
        return
    # Before anything else touches the devices: the workers of a cluster meet here.
    layout = strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    if not layout.chief:
        logging.set_verbosity(logging.WARNING)
    try:
        train(build, layout, values)
    except Exception as error:
        if layout.hosts == 1 or not is_lost_worker(error):
            raise
        reason = str(error).partition("Collective ops is aborted by: ")[2].partition("\n")[0]
        logging.error(
            "Another worker is lost (%s). %s Start all the workers again with the same command: they go on from there. Exit code %d.",
            reason,
            RunDirectory(values.workdir, dataclasses.replace(layout, host=1)).last_checkpoint(),
            RESTART,
        )
        raise LostWorker from None
