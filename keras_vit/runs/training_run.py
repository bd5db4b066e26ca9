"""A training run from a config, new or resumed."""

import dataclasses
import functools
import math
import os
import platform
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from keras_vit.checkpoints.save import save_model
from keras_vit.data import evaluation_batches, training_batches
from keras_vit.distribution import Strategy
from keras_vit.evaluation.registry import Setting
from keras_vit.fit.state import KEY as TRAINING
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted
from keras_vit.layers.normalization import batch_normalizations
from keras_vit.models import families, whiten
from keras_vit.models.finetuning.quantization_aware import calibrate
from keras_vit.optim.wrappers import averaging, swap_averages
from keras_vit.runs import broken_examples
from keras_vit.runs.config import check_same_run
from keras_vit.runs.evaluate import evaluation_content
from keras_vit.runs.file_notes import file_notes
from keras_vit.runs.loop.best import Best
from keras_vit.runs.loop.periodic import measure_added, periodics
from keras_vit.runs.loop.train import fix_order_of_sums, train
from keras_vit.runs.own_data import file_digests
from keras_vit.runs.prepare import check, open_data
from keras_vit.runs.report import write_report
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.version import __version__

_ONE_DEVICE = Strategy()
_CALIBRATION = 128  # images from which ranges of fake quantisation are found


def _image_alone(example):
    return example["image"], tf.constant(0)


def _first_images(config, source, text, count):
    """The first `count` images (n, h, w, c) of training, preprocessed by `text`; the same in every process."""
    size = min(count, 64)
    batches = training_batches(source, text, size, config.seed, select=_image_alone).take(-(-count // size))
    return np.concatenate([images for images, _ in batches.as_numpy_iterator()])[:count]


def whiten_first_layer(config, model, source, strategy):
    """Sets a new model's first layer from the first `config.whiten` training images, the same in every process."""
    images = _first_images(config, source, config.data.train_preprocess, config.whiten)
    with strategy.scope():
        whiten(model, images)


def calibrate_quantization(config, model, source, strategy):
    """Sets the ranges of fake quantisation from training images, preprocessed as for evaluation."""
    images = _first_images(config, source, config.data.eval_preprocess, _CALIBRATION)
    with strategy.scope():
        calibrate(model, images)


def _agree(strategy, number):
    """Whether `number` is the same in all processes; bit by bit, because `strategy.any` combines only booleans."""
    return not any(strategy.any(number >> i & 1) and strategy.any(not number >> i & 1) for i in range(40))


def resume(rundir, model, strategy):
    """Restores the newest intact checkpoint in every process; returns its step. ValueError if these differ."""
    start = rundir.resume(model)
    if not _agree(strategy, start):
        raise ValueError(
            f"{rundir.path}: the processes do not see the same newest checkpoint (here step {start}). All of them need"
            " the same directory: a shared file system or a bucket."
        )
    return start


def check_length(rundir, start, total):
    """Refuses a run that is already past its end; ValueError names both steps."""
    if start > total:
        raise ValueError(
            f"{rundir.path} contains a run at step {start:,}, beyond the {counted(total, 'step')} of --config.total."
            " Set a longer total, or use a new --workdir."
        )


def _describe(prepared, model, strategy):
    """The content of config.json: resolved config, task options, the model's spec, data size, versions and strategy."""
    versions = {
        "keras_vit": __version__,
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "python": platform.python_version(),
    }
    about = {
        "objective": dataclasses.asdict(prepared.task.options),
        "model_spec": {name: value for name, value in model.get_config().items() if name != TRAINING},
        "training_examples": prepared.train.size,
        "files": file_digests(prepared.train, prepared.held_out),
        "versions": versions,
        "strategy": {"name": strategy.name, "replicas": strategy.replicas, "hosts": strategy.hosts},
    }
    resolved, spec = prepared.resolved, getattr(model, "spec", None)
    if "variant" in resolved.get("model", {}) and spec is not None:
        named = resolved["model"]["variant"] or families.variant_name(spec)
        resolved = {**resolved, "model": {**resolved["model"], "variant": named}}
    return {**resolved, **about}


def _begin(prepared, model, rundir):
    """Resumes or initialises the model, checks that all fits together, and writes config.json; returns the step."""
    config, resolved, strategy = prepared.config, prepared.resolved, rundir.strategy
    content = _describe(prepared, model, strategy)
    check_same_run(rundir, content, bool(batch_normalizations(model)))
    with stage("Looking for a checkpoint"):
        start = resume(rundir, model, strategy)
    check_length(rundir, start, resolved["total"])
    prepared.check_images(model)  # from now on `select` may read the run's model
    if config.whiten and not start:
        with stage("Whitening the first layer"):
            whiten_first_layer(config, model, prepared.train, strategy)
    if config.quantization and not start:
        with stage("Calibrating the quantisation"):
            calibrate_quantization(config, model, prepared.train, strategy)
    rundir.check_space(model, config.keep)
    rundir.begin(content)
    logging.info(
        "%s: %s parameters, %s trained. %s and %s. %s with batches of %d, from step %d.",
        model.name,
        f"{model.count_params():,}",
        f"{sum(math.prod(v.shape) for v in model.trainable_variables):,}",
        counted(prepared.train.size, "training example"),
        counted(prepared.held_out.size, "evaluation example"),
        counted(resolved["total"], "step"),
        config.batch_size,
        start,
    )
    return start


def _datasets(prepared, strategy, setting, data_service):
    """(a function from a step to the training dataset from that step on, the evaluation dataset)."""
    config, common = prepared.config, {"errors": setting.errors, "select": setting.select}

    def batches(step):
        options = {"service": data_service, "deterministic": config.data.deterministic, **common}
        make = functools.partial(
            training_batches, prepared.train, config.data.train_preprocess, config.batch_size, config.seed, step
        )
        return strategy.distribute(lambda shard, replicas: make(shard, replicas, **options))

    def evaluation(shard, replicas):
        text = config.data.eval_preprocess
        return evaluation_batches(prepared.held_out, text, config.batch_size, shard, replicas, **common)

    return batches, strategy.distribute(evaluation)


def _train(prepared, model, rundir, start, setting, data_service):
    """Trains to the end of the run, with periodic evaluations by the config's evaluators.

    Returns its last step, and how the weights were chosen, "" for the last ones.
    """
    config, resolved = prepared.config, prepared.resolved
    batches, evaluation = _datasets(prepared, rundir.strategy, setting, data_service)
    measured = periodics(prepared.evaluators, resolved, setting, rundir, start)
    best, patience = None, resolved["early_stopping"]
    if config.keep_best or patience:
        initial = config.head != "reset"  # a head of zeros predicts nothing
        best = Best(rundir, prepared.task.score, config.keep_best, patience, initial, start)
    last = train(
        model,
        batches,
        rundir,
        total=resolved["total"],
        every=resolved["evaluate"],
        batch_size=config.batch_size,
        evaluation=evaluation,
        checkpoint_every=resolved["checkpoint"],
        keep=config.keep,
        start=start,
        callbacks=list(measured.values()),
        best=best,
    )
    chosen = config.keep_best and best.best_step is not None
    if config.keep_best and not chosen:
        logging.warning(
            "No evaluation has a number as its %s: the run delivers its last weights.", prepared.task.score.title
        )
    delivered = best.deliver(model) if chosen else last
    if not start < last == delivered == resolved["total"]:
        measure_added(measured, model, rundir, delivered)
    if averaging(model.optimizer):
        swap_averages(model)
    return last, best.sentence(config.data.evaluation) if chosen else ""


def finish(prepared, model, rundir, setting, choice=""):
    """Evaluates, writes evaluation.json, report.html and, last, model.keras; returns (delivered model, measures).

    `choice` says how the weights were chosen.
    """
    data, strategy, task = prepared.config.data, rundir.strategy, prepared.task
    with strategy.scope():
        delivered = task.deliver(model)
    setting = dataclasses.replace(setting, model=delivered, data_dir=None, verbose=True)
    evaluation = task.evaluator().prepare(setting)()
    task.settle(delivered, evaluation)
    if strategy.chief:
        content = evaluation_content(data.source, data.evaluation, setting, evaluation)
        content |= {"choice": choice} if choice else {}
        rundir.write_json("evaluation.json", content)
        # A copy on one device: the report looks inside the model, in this process only.
        copy = delivered if strategy.engine is None else delivered.clone()
        broken_examples.add_others(rundir, setting.errors)  # for the report
        with stage("Writing the report and the model"):
            title = f"{data.source} {data.evaluation}"
            write_report(rundir.path, title, task, copy, setting, evaluation, rundir.metrics(), choice)
            save_model(copy, rundir.model)
    strategy.any(False)  # wait for the chief to write
    return delivered, evaluation.measures


def run(
    config: ConfigDict,
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    strategy: Strategy = _ONE_DEVICE,
    data_service: str | None = None,
    check_model: Callable[[keras.Model, ConfigDict, Strategy, int], None] = lambda *_: None,
) -> tuple[keras.Model, dict[str, Any]]:
    """Trains by `config`, resuming the run in `workdir` if there is one; returns (model, measures).

    Args:
        config: a ConfigDict like configs/lib/common.base().
        workdir: the run's directory, which this process owns until it returns.
        data_dir: folder of tensorflow-datasets' prepared data, and base of relative paths.
        strategy: a keras_vit.strategy.
        data_service: "grpc://host:port" of a tf.data service that prepares the training batches.
        check_model: called before the first step with the model, config, strategy and number of training examples;
            planning.memory.check_memory refuses a step too large for the memory.

    Raises:
        ValueError: if the config, the data and the run directory do not fit together, or another process owns it.
        OSError: if the run directory cannot be written to.
    """
    strategy.check_batch(config.batch_size)
    checked = check(config, strategy.replicas)
    task, rundir = checked.task, RunDirectory(workdir, strategy)
    with rundir.owned():
        fix_order_of_sums()
        with stage(f"Opening {config.data.source}"):
            prepared = checked.on(*open_data(config.data, data_dir))
        if strategy.chief:
            for sentence in (*prepared.notes(), *file_notes(prepared.train, config.data.eval_preprocess)):
                logging.warning("%s", sentence)
            if note := prepared.size_note():
                logging.info("%s", note)
        with stage(f"Loading {config.init}" if config.init else "Building the model"):
            model = prepared.model(strategy)
        check_model(model, config, strategy, prepared.train.size)
        start = _begin(prepared, model, rundir)
        with broken_examples.counted(config.data.broken_limit, rundir, start) as errors:
            if config.head == "probe" and not start:
                task.fit_head(model, prepared.train, strategy, errors)
            with strategy.scope():
                measured = task.deliver(model)  # shares `model`'s weights
            held_out = (prepared.held_out, config.data.eval_preprocess, task.select, errors)
            setting = Setting(measured, strategy, config.batch_size, data_dir, *held_out)
            steps, choice = _train(prepared, model, rundir, start, setting, data_service)
            model, measures = finish(prepared, model, rundir, setting, choice)
    if choice:
        logging.info("%s", choice)
    logging.info("%s: %s. Model: %s", config.data.evaluation, task.summary(measures), rundir.model)
    return model, {**measures, "training_examples": prepared.train.size, "steps": steps}
