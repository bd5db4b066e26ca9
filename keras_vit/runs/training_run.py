"""A training run from a config, from its first step or from where it was stopped."""

import dataclasses
import functools
import math
import os
import platform
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from keras_vit.checkpoints.save import save_model
from keras_vit.data import evaluation_batches, image_and_label, open_source, training_batches
from keras_vit.data.batches import example_spec
from keras_vit.data.sources.selection import read_names, without
from keras_vit.distribution import Strategy
from keras_vit.evaluation import Setting
from keras_vit.io.progress import stage
from keras_vit.models import whiten
from keras_vit.optim.wrapper import averaging
from keras_vit.runs import broken_examples, evals
from keras_vit.runs.config import check_config, check_same_run, odd_sizes, resolve
from keras_vit.runs.evaluate import evaluation_content
from keras_vit.runs.loop.determinism import fix_order_of_sums
from keras_vit.runs.loop.train import train
from keras_vit.runs.optimizer import make_optimizer
from keras_vit.runs.report import write_report
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.tasks import find_task
from keras_vit.training import Model
from keras_vit.training.averages import swap_averages
from keras_vit.training.state import KEY as TRAINING
from keras_vit.version import __version__

_ONE_DEVICE = Strategy()


def open_data(data, data_dir):
    """The training and evaluation sources of config.data.

    Raises:
        ValueError: if there are no examples to train or evaluate on.
    """
    source = open_source(data.source, data.train, data_dir, data.shuffle_buffer)
    if data.exclude:
        source = without(source, read_names(data.exclude))
    held_out = open_source(data.source, data.evaluation, data_dir)
    for split, name in ((source, data.train), (held_out, data.evaluation)):
        if split.size < 1:
            raise ValueError(f"{data.source}, {name}, has no examples.")
    if data.cache:
        source, held_out = source.cached(), held_out.cached()
    return source, held_out


def make_model(config, task, source, resolved, strategy):
    """The compiled model, created in the scope of the strategy; the seeds make it the same in every process."""
    with strategy.scope():
        keras.utils.set_random_seed(config.seed)
        model = task.model(source)
        if not isinstance(model, Model):
            raise ValueError(
                f"{type(task).__name__}.build returned a {type(model).__name__}, not a keras_vit.Model: return"
                " keras_vit.Model(inputs, outputs)."
            )
        compile_model(model, task, source, resolved, make_optimizer(resolved))
    return model


def compile_model(model, task, source, resolved, optimizer):
    """Compiles a task's model as its run trains it."""
    model.mixing = task.mixing(model)
    model.micro_batches = resolved["micro_batches"]
    model.compile(
        optimizer,
        task.loss(source),
        weighted_metrics=task.metrics(model),
        jit_compile=resolved["jit_compile"]
        or keras.backend.backend() == "jax",  # where a step that is not compiled runs op by op
        steps_per_execution=resolved["steps_per_execution"],
    )
    model.optimizer.build(model.trainable_variables)


def _image_alone(example):
    return example["image"], tf.constant(0)


def whiten_first_layer(config, model, source, strategy):
    """Gives the first layer of a new model its filters from the first `config.whiten` images of the training, in every
    process the same ones.
    """
    count, size = config.whiten, min(config.whiten, 64)
    batches = training_batches(source, config.data.train_preprocess, size, config.seed, select=_image_alone).take(
        -(-count // size)
    )
    images = np.concatenate([images for images, _ in batches.as_numpy_iterator()])[:count]
    with strategy.scope():
        whiten(model, images)


def _agree(strategy, number):
    """Whether `number` is the same in all processes; bit by bit, because `strategy.any` combines only booleans."""
    return not any(strategy.any(number >> i & 1) and strategy.any(not number >> i & 1) for i in range(40))


def resume(rundir, model, strategy):
    """Restores the newest intact checkpoint in every process; returns its step.

    Raises:
        ValueError: if the processes see different checkpoints.
    """
    start = rundir.resume(model)
    if not _agree(strategy, start):
        raise ValueError(
            f"{rundir.path}: the processes do not see the same newest checkpoint (here step {start}). All of them need"
            " the same directory: a shared file system or a bucket."
        )
    return start


def check_length(rundir, start, total):
    """Refuses a run that is already past its end.

    Raises:
        ValueError: naming both steps.
    """
    if start > total:
        raise ValueError(
            f"{rundir.path} holds a run at step {start:,}, beyond the {total:,} steps that --config.total asks for."
            " Give a longer total, or use a new --workdir."
        )


def _count(number, noun):
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _announce(model, resolved, source, held_out, start):
    logging.info(
        "%s: %s parameters, %s trained. %s and %s. %s with batches of %d, starting at step %d.",
        model.name,
        f"{model.count_params():,}",
        f"{sum(math.prod(v.shape) for v in model.trainable_variables):,}",
        _count(source.size, "training example"),
        _count(held_out.size, "evaluation example"),
        _count(resolved["total"], "step"),
        resolved["batch_size"],
        start,
    )


def _batches(config, task, source, held_out, strategy, data_service, errors):
    """(a function: step -> the training dataset that begins at that step, the evaluation dataset)."""
    data = config.data
    options = {"service": data_service, "errors": errors, "deterministic": data.deterministic, "select": task.select}

    def training(step):
        batches = functools.partial(
            training_batches, source, data.train_preprocess, config.batch_size, config.seed, step
        )
        return strategy.distribute(lambda shard, replicas: batches(shard, replicas, **options))

    def evaluation(shard, replicas):
        return evaluation_batches(
            held_out, data.eval_preprocess, config.batch_size, shard, replicas, errors, select=task.select
        )

    return training, strategy.distribute(evaluation)


def check_images(config, model, training_source, evaluation_source, select=image_and_label):
    """Refuses preprocessing whose images do not have the model's size. It is traced; no data is read.

    Args:
        config: the run's.
        model: the model.
        training_source, evaluation_source: the sources that are preprocessed, or stand-ins.
        select: the task's; of what it gives to the model only images (b, h, w, c) are checked.

    Raises:
        ValueError: naming both shapes, or as the preprocessing says.
    """
    data, inputs = config.data, keras.tree.flatten(model.input)
    specs = {
        "train_preprocess": example_spec(training_source, data.train_preprocess, select, seed=config.seed),
        "eval_preprocess": example_spec(evaluation_source, data.eval_preprocess, select, training=False),
    }
    for name, (x, *_) in specs.items():
        for given, taken in zip(keras.tree.flatten(x), inputs):
            shape, expected = tuple(given.shape), tuple(taken.shape)[1:]
            if len(shape) == len(expected) == 3 and shape != expected:
                raise ValueError(
                    f'The preprocessing "{data[name]}" gives images of {shape}, the model takes {expected}: change'
                    f" --config.data.{name} or --config.model.image_size, so that both say the same."
                )


def finish(config, task, model, held_out, rundir, errors):
    """Evaluates the trained model and writes evaluation.json, report.html and, last, model.keras; returns (what it
    delivers, the measures).
    """
    strategy = rundir.strategy
    with strategy.scope():
        delivered = task.deliver(model)
    setting = Setting(
        delivered,
        strategy,
        config.batch_size,
        None,
        held_out,
        config.data.eval_preprocess,
        task.select,
        errors,
        verbose=True,
    )
    evaluation = task.evaluator().prepare(setting)()
    if strategy.chief:
        content = evaluation_content(config.data.source, config.data.evaluation, setting, evaluation)
        rundir.write_json("evaluation.json", content)
        # A copy on one device: the report looks inside the model, in this process only.
        model = delivered if strategy.engine is None else delivered.clone()
        title = f"{config.data.source} {config.data.evaluation}"
        broken_examples.add_others(rundir, errors)  # for the report
        with stage("Writing the report and the model"):
            write_report(rundir.path, title, task, model, setting, evaluation, rundir.metrics())
            save_model(model, rundir.model)
    strategy.any(False)  # no process leaves while the chief writes
    return delivered, evaluation.measures


def _check_room(rundir, model, config, resolved, examples):
    """Warns of what is allowed and will surprise."""
    if rundir.strategy.chief:
        for sentence in odd_sizes(config, resolved, examples):
            logging.warning("%s", sentence)
    rundir.check_space(model, config.keep)


def _has_batch_statistics(model):
    """Whether a layer that trains normalises by the batch: then the parts of a batch are not the whole."""
    return any(
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in model._flatten_layers()
    )


def _describe(rundir, resolved, task, model, source):
    """What config.json holds: the resolved config with all of the task's options, the model's spec, the size of the
    data, versions, and the strategy.
    """
    strategy = rundir.strategy
    objective = dataclasses.asdict(task.options)
    versions = {
        "keras_vit": __version__,
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "python": platform.python_version(),
    }
    used = {"name": strategy.name, "replicas": strategy.replicas, "hosts": strategy.hosts}
    spec = {name: value for name, value in model.get_config().items() if name != TRAINING}
    about = {
        "objective": objective,
        "model_spec": spec,
        "training_examples": source.size,
        "versions": versions,
        "strategy": used,
    }
    return {**resolved, **about}


def run(
    config: ConfigDict,
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    strategy: Strategy = _ONE_DEVICE,
    data_service: str | None = None,
) -> tuple[keras.Model, dict[str, Any]]:
    """Trains as `config` says, resuming the run in `workdir` if there is one; returns (model, measures).

    Args:
        config: a ConfigDict like configs/lib/common.base().
        workdir: the run's directory, which this process owns until it returns.
        data_dir: the folder of tensorflow-datasets' prepared data, and the base of relative paths.
        strategy: a keras_vit.strategy.
        data_service: "grpc://host:port" of a tf.data service that prepares the training batches.

    Raises:
        ValueError: for a config, data or a run directory that do not fit together, or a run directory that another
            process owns.
        OSError: for a run directory that cannot be written to.
    """
    strategy.check_batch(config.batch_size)
    check_config(config, strategy.replicas)
    task = find_task(config.task)(config)
    task.check_config()
    evals.evaluators(config.evals)  # refuses unknown ones; a task's file may register its own
    rundir = RunDirectory(workdir, strategy)
    with rundir.owned():
        return _run(config, task, rundir, data_dir, data_service)


def _run(config, task, rundir, data_dir, data_service):
    """`run`, in a directory that is the process's own."""
    strategy = rundir.strategy
    fix_order_of_sums()
    with stage(f"Opening {config.data.source}"):
        source, held_out = open_data(config.data, data_dir)
    task.check_data(source, held_out)
    resolved = resolve(config, source.size)
    with stage(f"Loading {config.init}" if config.init else "Building the model"):
        model = make_model(config, task, source, resolved, strategy)
    content = _describe(rundir, resolved, task, model, source)
    check_same_run(rundir, content, _has_batch_statistics(model))
    with stage("Looking for a checkpoint"):
        start = resume(rundir, model, strategy)
    check_length(rundir, start, resolved["total"])
    check_images(
        config, model, source, held_out, task.select
    )  # from now on `select` may read the model, which is the run's own
    if config.whiten and not start:
        with stage("Whitening the first layer"):
            whiten_first_layer(config, model, source, strategy)
    _check_room(rundir, model, config, resolved, source.size)
    rundir.begin(content)
    _announce(model, resolved, source, held_out, start)

    with broken_examples.counted(config.data.broken_limit, rundir, start) as errors:
        training, evaluation = _batches(config, task, source, held_out, strategy, data_service, errors)
        with strategy.scope():
            measured = task.deliver(model)  # which has the weights of `model`
        own_data = {
            "source": held_out,
            "preprocess": config.data.eval_preprocess,
            "select": task.select,
            "errors": errors,
        }
        periodics = evals.periodics(resolved, measured, rundir, data_dir, start, **own_data)
        train(
            model,
            training,
            rundir,
            total=resolved["total"],
            every=resolved["evaluate"],
            batch_size=config.batch_size,
            evaluation=evaluation,
            checkpoint_every=resolved["checkpoint"],
            keep=config.keep,
            start=start,
            callbacks=list(periodics.values()),
        )
        if start == resolved["total"]:
            evals.measure_added(periodics, model, rundir, start)
        if averaging(model.optimizer):
            swap_averages(model)
        model, measures = finish(config, task, model, held_out, rundir, errors)
    logging.info("%s: %s. Model: %s", config.data.evaluation, task.summary(measures), rundir.model)
    return model, {**measures, "training_examples": source.size, "steps": resolved["total"]}
