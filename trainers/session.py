"""A training run from a config: what pretrain and finetune share. They differ in the model that they start from."""

import contextlib
import functools
import json
import math
import platform

import keras
from absl import logging

from keras_vit.data import Broken, evaluation_batches, open_source, training_batches
from keras_vit.data.excluding import read_names, without
from keras_vit.training import resolve_steps
from keras_vit.training.callbacks import swap_averages
from keras_vit.training.determinism import fix_order_of_sums
from keras_vit.training.files import save_model, write_bytes
from keras_vit.training.loop import train
from keras_vit.training.rundir import RunDirectory
from keras_vit.training.strategy import Strategy
from keras_vit.training.wrapping import averaging

from . import few_shot
from .assemble import prepare
from .evaluate import evaluate, write_report

_ONE_DEVICE = Strategy()


def spec_overrides(config):
    """The ViTSpec fields that the config sets."""
    own = ("variant", "image_size", "channels", "remat")
    return {name: value for name, value in config.model.items() if name not in own and value is not None}


def open_data(config, data_dir):
    """The training and evaluation sources of the config.

    Raises:
        ValueError: if their classes differ.
    """
    data = config.data
    source = open_source(data.source, data.train, data_dir, data.shuffle_buffer)
    if data.get("exclude", ""):
        source = without(source, read_names(data.exclude))
    held_out = open_source(data.source, data.evaluation, data_dir)
    if source.class_names != held_out.class_names:
        raise ValueError(
            f"The classes of {data.train} and {data.evaluation} differ: {source.class_names}, {held_out.class_names}."
        )
    if source.size < 1:
        raise ValueError(f"{data.source}, {data.train}, has no examples.")
    if data.get("cache", False):
        source, held_out = source.cached(), held_out.cached()
    return source, held_out


def resolve(config, source):
    """The config as a plain dict with every duration in steps."""
    plain = json.loads(config.to_json_best_effort())
    batch, examples = config.batch_size, source.size
    total = resolve_steps(config.total, batch, examples)
    steps = lambda text: resolve_steps(text, batch, examples, total)  # noqa: E731
    plain["total"] = total
    for key in ("evaluate", "checkpoint"):
        plain[key] = max(1, min(steps(config[key]), total))
    for key in ("warmup", "cooldown"):
        plain["schedule"][key] = steps(config.schedule[key])
    if config.optimizer.swa != "":
        plain["optimizer"]["swa"] = max(1, steps(config.optimizer.swa))
    plain["few_shot"]["every"] = few_shot.resolve_every(config.few_shot.every, steps, total, plain["evaluate"])
    return plain


def _flat(tree, path=""):
    """Nested dicts as {"a.b": value}."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name, part in tree.items() for k, v in _flat(part, f"{path}.{name}" if path else name).items()}


_MAY_CHANGE = set(
    "total evaluate checkpoint keep schedule micro_batches steps_per_execution jit_compile few_shot sweep expected "
    "data.dev_train data.dev_evaluation data.broken_limit data.cache".split()
)


def check_same_run(files, plain):
    """Refuses to go on with a run that was started with another config; its length and schedule may change.

    Raises:
        ValueError: naming what changed.
    """
    path = files.path / "config.json"
    if not files.checkpoints() or not path.exists():
        return
    before, now = _flat(json.loads(path.read_text())), _flat(json.loads(json.dumps(plain)))
    # Keys that either lacks are of another version of the package, not of another run.
    keys = [k for k in now if k in before and not {k, k.split(".")[0]} & _MAY_CHANGE]
    changed = [f"{k} was {before[k]!r}, is {now[k]!r}" for k in keys if before[k] != now[k]]
    if changed:
        raise ValueError(f"{files.path} holds a run with another config: {'; '.join(changed)}. Use a new --workdir.")


def _announce(model, plain, source, held_out, start):
    logging.info(
        "%s: %s parameters, %s trained. %s training and %s evaluation examples, %d classes. %d steps of %d, from step %d.",
        model.name,
        f"{model.count_params():,}",
        f"{sum(math.prod(v.shape) for v in model.trainable_variables):,}",
        f"{source.size:,}",
        f"{held_out.size:,}",
        len(source.class_names),
        plain["total"],
        plain["batch_size"],
        start,
    )


def finish(model, held_out, config, files, broken=None):
    """Evaluates the trained model and writes evaluation.json, report.html and, last, model.keras; returns the measures."""
    batch_size = config.batch_size
    measures, images, logits, labels = evaluate(model, held_out, config.data.eval_preprocess, batch_size, broken=broken)
    if files.strategy.chief:
        # A copy on one device: what follows looks inside the model, one process by itself.
        model = model if files.strategy.engine is None else model.clone()
        files.write_json("evaluation.json", {"split": config.data.evaluation, "classes": held_out.class_names, **measures})
        write_report(
            files.path, f"{config.data.source} {config.data.evaluation}", model, measures, images, logits, labels, files.metrics()
        )
        save_model(model, files.model)
    files.strategy.any(False)  # nobody leaves while the chief writes
    return measures


def make(config, source, build, plain, layout):
    """The compiled model, made in the scope of the strategy; the seeds make it the same in every process."""
    with layout.scope():
        keras.utils.set_random_seed(config.seed)
        model = build(config, source)
        prepare(model, plain, source)
    return model


def _agree(layout, number):
    """Whether `number` is the same in all processes, found out bit by bit by what a strategy offers."""
    return not any(layout.any(number >> i & 1) and layout.any(not number >> i & 1) for i in range(40))


def resume(files, model, layout):
    """Restores the newest checkpoint that is whole, in every process; returns its step.

    Raises:
        ValueError: if the processes see different ones.
    """
    start = files.resume(model)
    if not _agree(layout, start):
        raise ValueError(
            f"{files.path}: the processes do not read the same newest checkpoint (here step {start}). All of them need the same directory: "
            "a shared file system or a bucket."
        )
    return start


@contextlib.contextmanager
def _leaving_out(config, files):
    """A Broken for what is read inside; afterwards its examples are counted in a warning and named in broken_examples.txt."""
    broken = Broken(config.data.get("broken_limit", 100))
    try:
        with broken.raised():
            yield broken
    finally:
        if broken.names and files.strategy.chief:
            path = files.path / "broken_examples.txt"
            write_bytes(path, broken.report().encode())
            logging.warning("%d examples could not be used and were left out: %s", len(broken.names), path)


def _batches(config, source, held_out, layout, data_service, broken):
    """(a step -> the training dataset from that step on, the evaluation dataset)."""
    data = config.data
    options = {"service": data_service, "broken": broken, "deterministic": data.get("deterministic", True)}

    def training(step):
        batches = functools.partial(training_batches, source, data.train_preprocess, config.batch_size, config.seed, step)
        return layout.distribute(lambda shard, replicas: batches(shard, replicas, **options))

    def evaluation(shard, replicas):
        return evaluation_batches(held_out, data.eval_preprocess, config.batch_size, shard, replicas, broken)

    return training, layout.distribute(evaluation)


def run(config, workdir, build, data_dir=None, layout=_ONE_DEVICE, data_service=None):
    """Trains as `config` says, resuming what is in `workdir`; returns (model, measures).

    Args:
        config: a ConfigDict like configs/lib/common.base().
        workdir: the run's directory.
        build: (config, source) -> the ViT to start from.
        data_dir: of tensorflow-datasets.
        layout: a keras_vit.strategy.
        data_service: "grpc://host:port" of a tf.data service for the training batches.
    """
    layout.check_batch(config.batch_size)
    fix_order_of_sums()
    source, held_out = open_data(config, data_dir)
    plain = resolve(config, source)
    model = make(config, source, build, plain, layout)
    files = RunDirectory(workdir, layout)
    check_same_run(files, plain)
    start = resume(files, model, layout)
    versions = {"keras": keras.__version__, "backend": keras.backend.backend(), "python": platform.python_version()}
    laid_out = {"strategy": layout.name, "replicas": layout.replicas, "hosts": layout.hosts}
    files.write_json("config.json", {**plain, "model_spec": model.get_config(), "versions": versions, "layout": laid_out})
    _announce(model, plain, source, held_out, start)

    with _leaving_out(config, files) as broken:
        training, evaluation = _batches(config, source, held_out, layout, data_service, broken)
        train(
            model,
            training,
            files,
            total=plain["total"],
            every=plain["evaluate"],
            batch_size=config.batch_size,
            evaluation=evaluation,
            checkpoint_every=plain["checkpoint"],
            keep=config.keep,
            start=start,
            callbacks=few_shot.callbacks(plain, model, files, data_dir, start),
        )
        if averaging(model.optimizer):
            swap_averages(model)
        measures = finish(model, held_out, config, files, broken)
    logging.info("%s top-1 %.2f%% of %d. Model: %s", config.data.evaluation, 100 * measures["top1"], held_out.size, files.model)
    return model, measures
