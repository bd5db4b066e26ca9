"""Resolves a config once for training, dry runs, sweeps and plans.

    check(config)                        the task and the evaluators, without data: Checked
    check(config).on(train, held_out)    with data: the durations in steps, and the model: Prepared

Training opens its data with `open_data`. A plan has PlannedSplits from `planned_data`; it reads no images and no
checkpoint, and its model's weights have no values.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from keras_vit.checkpoints.describe import arguments_in, describe_checkpoint
from keras_vit.data import open_source
from keras_vit.data.batches import example_spec
from keras_vit.data.source_names import KINDS, with_kind
from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.data.sources.folder import folders_read_once
from keras_vit.data.sources.selection import example_names, read_names, without
from keras_vit.data.splits import overlap, split_name, split_range
from keras_vit.distribution import Strategy
from keras_vit.evaluation.registry import Evaluator, make_evaluator
from keras_vit.fit.model import Model
from keras_vit.io.json_files import read_json
from keras_vit.io.logs import log_once, quiet
from keras_vit.io.suggest import counted
from keras_vit.io.target_values import VOID
from keras_vit.models.finetuning import quantization_aware
from keras_vit.models.finetuning.whitening import first_layer
from keras_vit.models.without_values import without_values
from keras_vit.runs.config import check_config, odd_sizes, resolve
from keras_vit.runs.config_keys import is_packaged_task
from keras_vit.runs.optimizer import make_optimizer
from keras_vit.tasks import Task, find_task
from keras_vit.tasks.classification import model_arguments

_MUCH = 3  # times as many patches on a side: more than published fine-tunings resample


# Data


def open_data(data: ConfigDict, data_dir: str | None) -> tuple[Source, Source]:
    """The training and evaluation sources of config.data; ValueError if either is empty."""
    with folders_read_once():
        source = open_source(data.source, data.train, data_dir, data.shuffle_buffer)
        held_out = open_source(data.source, data.evaluation, data_dir)
    if data.exclude:
        source = without(source, read_names(data.exclude))
    for split, name in ((source, data.train), (held_out, data.evaluation)):
        if split.size < 1:
            raise ValueError(f"{data.source}, {name}, has no examples.")
    _warn_of_shared_images(data, source, held_out)
    if data.cache:
        source, held_out = source.cached(), held_out.cached()
    return source, held_out


def _of_scenes(split):
    return split.void is not None or split.most_objects is not None


def _shared_names(data, source, held_out):
    """Names of the images in both splits, sorted; [] where splits cannot share images, or these have no names."""

    def of_files(split):
        return isinstance(split, RandomAccess) and split.names is not None

    if not (of_files(source) and of_files(held_out)):
        return []
    # Annotation files and lists may state an image in two splits, and a slice in percent may meet one in numbers.
    mixed = split_name(data.train) == split_name(data.evaluation) and ("%" in data.train) != ("%" in data.evaluation)
    if not (_of_scenes(source) and _of_scenes(held_out) or mixed):
        return []
    return sorted(set(example_names(source)) & set(example_names(held_out)))


def _warn_of_shared_images(data, source, held_out):
    """Warns if the run is evaluated on images that it trains on."""
    if overlap(data.train, data.evaluation):
        what = "of the training images" if data.train == data.evaluation else "of its images"
        log_once(
            logging.WARNING,
            f"{data.source}: trained on {data.train} and evaluated on {data.evaluation}, which has some {what}: the"
            " measures say little about new images. Name splits that share none: --config.data.train=SPLIT"
            " --config.data.evaluation=SPLIT.",
        )
    elif shared := _shared_names(data, source, held_out):
        log_once(
            logging.WARNING,
            f"{data.source}: {counted(len(shared), 'image')} of {data.evaluation} {'is' if len(shared) == 1 else 'are'}"
            f" also in {data.train}, such as {shared[0]}: the measures say little about new images. Remove these from"
            f" {data.train}.",
        )


@dataclasses.dataclass(frozen=True)
class PlannedSplit:
    """A split's size and classes, for a plan."""

    size: int
    class_names: tuple
    counts: tuple | None = None  # per class, None if unknown
    void: int | None = VOID  # as of sources
    most_objects: int | None = 100  # as of sources; the detections that count per image, if unknown
    outlined: bool = True
    stuff: tuple = ()

    def class_counts(self) -> np.ndarray:
        """Examples per class, equal where unknown."""
        return (
            np.array(self.counts) if self.counts else np.full(len(self.class_names), self.size / len(self.class_names))
        )


def split_size(name: str, split: str, splits: dict[str, int]) -> int:
    """The size of a split such as "train[:98%]+validation", from {split: examples}; ValueError if unknown."""
    total = 0
    for part in split.split("+"):
        whole = split_name(part.strip())
        if whole not in splits:
            raise ValueError(f'"{name}" has no split "{whole}"; its splits: {", ".join(splits)}.')
        start, stop = split_range(part.strip(), splits[whole])
        total += stop - start
    return total


def _counted(source):
    """The PlannedSplit of an open source; reads no images."""
    labelled = isinstance(source, RandomAccess) and source.labels is not None
    counts = tuple(source.class_counts().tolist()) if labelled else None
    targets = (source.void, source.most_objects, source.outlined, source.stuff)
    return PlannedSplit(source.size, tuple(source.class_names), counts, *targets)


def planned_data(
    data: ConfigDict,
    datasets: dict[str, Any],
    examples: int | None = None,
    classes: int | None = None,
    data_dir: str | None = None,
) -> tuple[PlannedSplit, PlannedSplit | None]:
    """(training split, evaluation split or None) of a config: given, counted in local data, or from a table.

    Args:
        data: config.data.
        datasets: {name: (classes, {split: examples})} of well-known datasets.
        examples, classes: int or None. Of the training split; they override known sizes.
        data_dir: base of relative paths.

    Raises:
        ValueError: for an unknown dataset without examples and classes, or local data that cannot be opened.
    """
    name, _, path = with_kind(data.source, data_dir).partition("?")[0].partition(":")
    # PATH is a recipe's placeholder.
    # Local data are counted by reading names, tables or indices.
    if name in KINDS and path != "PATH" and "://" not in path and not (examples and classes):
        train, held_out = map(_counted, open_data(data, data_dir))
        return dataclasses.replace(train, size=examples or train.size), held_out
    known = datasets.get(data.source) or datasets.get(name)
    if known is None and not (examples and classes):
        hint = "" if ":" in data.source else f" Known: {', '.join(datasets)}."
        raise ValueError(
            f'The size of "{data.source}" is not known without its data: pass --examples=N (of the training split) and'
            f" --classes=N.{hint}"
        )
    names = tuple(map(str, range(classes or known[0])))
    train = PlannedSplit(examples or split_size(name, data.train, known[1]), names)
    return train, PlannedSplit(split_size(name, data.evaluation, known[1]), names) if known else None


# Without data


@contextlib.contextmanager
def naming_evaluator(name: str) -> Iterator[None]:
    """A context in which ValueErrors name the evaluator and how to leave it out."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"config.evals.{name}: {error} (Without this evaluator: --config.evals.{name}=None.)"
        ) from error


def evaluators(evals: Any) -> dict[str, Evaluator]:
    """{name: evaluator} of a config's `evals`; ValueError for an unknown evaluator or option, or anything but a
    section.

    In `config.evals.NAME = {"every": ..., options}`, NAME is an evaluator, or any name if the key "evaluator" names
    one. `every` is a duration, None to evaluate at the end only.
    """
    result = {}
    for name, options in evals.items():
        if not hasattr(options, "items"):
            raise ValueError(f"config.evals.{name} is an evaluator, a section of its options, got {options!r}.")
        fields = {key: value for key, value in options.items() if key not in ("every", "evaluator")}
        result[name] = make_evaluator(options.get("evaluator", name), fields)
        with naming_evaluator(name):
            result[name].check_options()
    return result


@dataclasses.dataclass(frozen=True)
class Checked:
    """A config that is valid for any data.

    Attributes:
        config: a ConfigDict like configs/lib/common.base().
        task: its Task.
        evaluators: {name: evaluator} of config.evals.
    """

    config: ConfigDict
    task: Task
    evaluators: dict[str, Evaluator]

    def on(self, train: Any, held_out: Any) -> "Prepared":
        """The config on its data.

        Args:
            train, held_out: sources or PlannedSplits; held_out may be None if unknown.

        Raises:
            ValueError: for data that the task cannot learn from, or durations that do not fit together.
        """
        if held_out is not None:
            self.task.check_data(train, held_out)
        return Prepared(self.config, self.task, self.evaluators, train, held_out, resolve(self.config, train.size))


def check(config: ConfigDict, replicas: int = 1) -> Checked:
    """Checks a config without its data.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        replicas: int. Devices that share a batch.

    Raises:
        ValueError: for a config that is invalid for any data, with the key.
    """
    check_config(config, replicas)
    task = find_task(config.task)(config)
    task.check_config()
    return Checked(config, task, evaluators(config.evals))  # after the task: its file may register evaluators


# With data


def _described(init, answers):
    """(the arguments of the ViT or BiT in `init`, or None; a remark), from its header."""
    path = os.path.join(os.path.expanduser(init), "config.json")
    described = read_json(path).get("model_spec") if os.path.exists(path) else None  # of a run, finished or not
    return (arguments_in(described), "") if described else describe_checkpoint(init, **answers)


def _size_and_flag(size):
    """("96x96", the flag that sets this image size)."""
    height, width = size
    flag = f"--image_size={height}" if height == width else f"--config.model.image_size='({height}, {width})'"
    return f"{height}x{width}", flag


def _much_resampled(init, described, arguments):
    """A sentence if a model is to have many more or fewer patches than it was trained on."""
    if not described["variant"].has_tokens:
        return
    sizes = [described["image_size"], arguments["image_size"]]
    strides = [made["variant"].strides[0] for made in (described, arguments)]
    grids = [[side // stride for side, stride in zip(size, pair)] for size, pair in zip(sizes, strides)]
    ratios = [new / old for old, new in zip(*grids)]
    if max(ratios) > _MUCH or min(ratios) < 1 / _MUCH:
        (old, flag), (new, _) = map(_size_and_flag, sizes)
        before, after = (f"{a}x{b}" for a, b in grids)
        yield (
            f"{init} was trained on images of {old} pixels, {before} patches; here they are {new}, {after} patches, and"
            f" its positions are resampled. The size of its training is probably better: {flag}."
        )


def _image(example):
    return example["image"], 0


@dataclasses.dataclass(frozen=True)
class Prepared(Checked):
    """A run before it starts, or a planned one.

    Attributes:
        train, held_out: sources or PlannedSplits; held_out may be None if unknown.
        resolved: dict. The config with every duration in steps.
    """

    train: Any
    held_out: Any
    resolved: dict[str, Any]

    def compile(self, model: Model, optimizer: keras.optimizers.Optimizer, **changes: Any) -> None:
        """Compiles the task's model as a run trains it, with `changes` to `resolved`."""
        options = {**self.resolved, **changes}
        model.mixing = self.task.mixing(model)
        model.micro_batches = options["micro_batches"]
        model.compile(
            optimizer,
            self.task.loss(self.train),
            weighted_metrics=self.task.metrics(model),
            # Uncompiled, JAX runs a step op by op.
            jit_compile=options["jit_compile"] or keras.backend.backend() == "jax",
            steps_per_execution=options["steps_per_execution"],
        )
        model.optimizer.build(model.trainable_variables)

    def model(self, strategy: Strategy) -> Model:
        """The compiled model, created in the strategy's scope; the same in every process, thanks to the seeds."""
        with strategy.scope():
            keras.utils.set_random_seed(self.config.seed)
            model = self.task.model(self.train)
            if not isinstance(model, Model):
                raise ValueError(
                    f"{type(self.task).__name__}.build returned a {type(model).__name__}, not a keras_vit.Model: return"
                    " keras_vit.Model(inputs, outputs)."
                )
            if self.config.get("quantization"):
                quantization_aware.prepare(model)
            self.compile(model, make_optimizer(self.resolved))
        return model

    def model_without_values(self) -> keras.Model:
        """The uncompiled model without values, if a run accepts it; with config.init use `without_checkpoint` first."""
        with quiet(logging.ERROR), without_values():
            model = self.task.model(self.train)
            self.task.loss(self.train)
            self.task.mixing(model)
            if self.config.get("whiten"):
                first_layer(model)
            if self.config.get("quantization"):
                quantization_aware.check(model)
        return model

    def without_checkpoint(self) -> tuple["Prepared", str]:
        """(the run without config.init, a remark about the model); the config describes the model in `init`'s header.

        Raises:
            ValueError: if the task cannot start from that model.
        """
        init, task, copy = self.config.init, self.task, self.config.copy_and_resolve_references()
        if not init:
            return self, ""
        copy.init = ""
        if type(task).load is Task.load and is_packaged_task(copy.task):
            task.load(self.train)  # refuses init
        described, remark = _described(init, model_arguments(self.config))
        arguments = described and task.adapted(described, self.train)
        if arguments:
            with copy.unlocked(), copy.ignore_type():
                copy.model = ConfigDict({name: arguments[name] for name in ("variant", "image_size", "channels")})
                copy.model.remat = self.config.model.remat
        if not arguments:
            remark = f"; the model in {init} may be another" + (f": {remark}" if remark else "")
        else:
            remark = f", as {init}" + (f" {remark}" if remark else "")
        return dataclasses.replace(self, config=copy, task=type(task)(copy)), remark

    def notes(self) -> Iterator[str]:
        """Warnings about valid but surprising settings, one sentence each."""
        yield from odd_sizes(self.config, self.resolved, self.train.size)
        if self._start:
            yield from _much_resampled(self.config.init, *self._start)

    @functools.cached_property
    def _start(self):
        """(arguments of the model in config.init, of the one that it becomes); None without init, or if unknown."""
        if not self.config.init or type(self.task).load is Task.load:
            return None
        described, _ = _described(self.config.init, model_arguments(self.config))
        arguments = described and self.task.adapted(described, self.train)
        return (described, arguments) if arguments else None

    def size_note(self) -> str:
        """A sentence if config.init is for images of another size; else ""."""
        own, size = (tuple(made["image_size"]) for made in self._start) if self._start else ((), ())
        if own == size:
            return ""
        (old, flag), (new, _) = _size_and_flag(own), _size_and_flag(size)
        return f"{self.config.init} is for images of {old} pixels, and this run trains at {new}. {flag} keeps its size."

    def example(self, training: bool = True, select: Any = None) -> tuple:
        """An example's specs (x, y) or (x, y, weights), by tracing: no data is read.

        Args:
            training: bool. Whether to preprocess for training or evaluation.
            select: function of the preprocessed example; None for the task's.
        """
        data, split = self.config.data, self.train if training else self.held_out or self.train
        if isinstance(split, PlannedSplit):
            image = tf.zeros((8, 8, 1), tf.uint8) if data.source == "digits" else tf.constant("")
            labels = np.zeros(1, "int64") if split.class_names else None
            features = {"image": image, **tf.nest.map_structure(tf.constant, self.task.placeholders())}
            split = RandomAccess("plan", split.class_names, labels, lambda i: features, count=1)
        text, seed = (data.train_preprocess, self.config.seed) if training else (data.eval_preprocess, None)
        return example_spec(split, text, select or self.task.select, training, seed)

    def check_images(self, model: keras.Model) -> None:
        """Refuses preprocessing that does not give the model's image size; checks only inputs (b, h, w, c).

        Raises:
            ValueError: with both shapes, or from the preprocessing.
        """
        data, inputs = self.config.data, keras.tree.flatten(model.input)
        for training, key in ((True, "train_preprocess"), (False, "eval_preprocess")):
            try:
                x, *_ = self.example(training)
            except (KeyError, ValueError):
                if not isinstance(self.train, PlannedSplit):
                    raise
                x, *_ = self.example(training, _image)  # a plan's examples may have nothing else
            for given, taken in zip(keras.tree.flatten(x), inputs):
                shape, expected = tuple(given.shape), tuple(taken.shape)[1:]
                if len(shape) == len(expected) == 3 and shape != expected:
                    raise ValueError(
                        f'The preprocessing "{data[key]}" gives images of {shape}, the model takes {expected}: change'
                        f" --config.data.{key} or --config.model.image_size, so that they agree."
                    )
