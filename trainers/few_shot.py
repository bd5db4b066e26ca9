"""Few-shot evaluation in the binaries: which examples it takes, their features, and the callback that config.few_shot asks for."""

import functools
import math

import numpy as np
from absl import logging

import keras_vit
from keras_vit.data import evaluation_batches, open_source
from keras_vit.data.broken import Broken
from keras_vit.evaluation import extract, few_shot
from keras_vit.evaluation.features import labels_of, subset
from keras_vit.evaluation.few_shot import L2, SEEDS, draw
from keras_vit.training.periodic import Periodic


def preprocessing(model):
    """The text that the model carries, or big_vision's for its size: resized to 8/7 of it (256 for 224), the middle taken."""
    height, width = model.image_size
    larger = [round(side * 8 / 7) for side in (height, width)]
    resize = f"resize({larger[0]})" if height == width else f"resize({larger[0]}, {larger[1]})"
    return model.preprocessing or f"decode({model.channels})|{resize}|central_crop({height}, {width})"


def numbers(text, flag):
    """'1,5,10' -> (1, 5, 10).

    Raises:
        ValueError: for other text, naming the flag or config key.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f'{flag}="{text}": expected whole numbers above 0, such as 1,5,10,25.')
    return tuple(int(part) for part in parts)


def open_pair(name, train, test, data_dir):
    """The sources of two splits.

    Raises:
        ValueError: if their classes differ.
    """
    sources = open_source(name, train, data_dir), open_source(name, test, data_dir)
    if sources[0].class_names != sources[1].class_names:
        raise ValueError(f"{name}: the classes of {train} and {test} differ.")
    return sources


class Embedder:
    """A source -> (features (n, d), labels (n,)) of a model, whose weights are those at the call. Images that are broken are left out.

    Raises:
        ValueError: if the preprocessing does not give images of the model's size, or more than 100 images are broken.
    """

    def __init__(self, model, preprocess, batch_size, dtype="float32"):
        self._extractor = keras_vit.Model(model.input, model.features)
        self._extractor.jit_compile = model.jit_compile
        self._preprocess, self._batch_size, self._dtype = preprocess, batch_size, dtype

    def __call__(self, source):
        broken = Broken()
        batches = evaluation_batches(source, self._preprocess, self._batch_size, broken=broken)
        given, expected = tuple(batches.element_spec[0].shape[1:]), tuple(self._extractor.input_shape[1:])
        if given != expected:
            raise ValueError(f'The preprocessing "{self._preprocess}" gives images of {given}, the model takes {expected}.')
        with broken.raised():
            return extract(self._extractor, batches, self._dtype)


class Task:
    """A few-shot evaluation whose examples are drawn.

    Attributes:
        train, test: sources.
        shots: numbers of examples a class.
        draws: for each seed the positions (classes, largest number of shots) in `train`.
        needed: positions that some draw has, ascending.

    Raises:
        ValueError: if a class of the training split has too few examples.
    """

    def __init__(self, train, test, shots, seeds=SEEDS):
        self.train, self.test, self.shots = train, test, shots
        labels = labels_of(train)
        self.draws = [draw(labels, train.class_names, max(shots), seed) for seed in seeds]
        self.needed = np.unique(self.draws)

    def embed(self, embedder):
        """Features and labels of the training examples that are needed, and of all test examples."""
        return *embedder(subset(self.train, self.needed)), *embedder(self.test)

    def of_all(self, features, labels):
        """The features and labels that are needed, of those of the whole training split."""
        self._check(labels, self.train.size)
        return features[self.needed], labels[self.needed]

    def evaluate(self, train_features, train_labels, test_features, test_labels, l2=L2, validation=None):
        """What evaluation.few_shot gives, of what `embed` gave."""
        self._check(train_labels, len(self.needed))
        draws = [np.searchsorted(self.needed, drawn) for drawn in self.draws]
        return few_shot(
            train_features, train_labels, test_features, test_labels, self.shots, l2=l2, validation=validation, draws=draws
        )

    def _check(self, labels, expected):
        if len(labels) != expected:
            raise ValueError(
                f"{expected - len(labels)} training images of {self.train.name} are broken, which the warnings name; a draw has to be "
                "complete. Mend or remove them."
            )


def _measure(task, embedder, files, about, step):
    """The mean accuracies as {"few_shot/5": ...}; few_shot.json gets all."""
    results = task.evaluate(*task.embed(embedder))
    files.write_json("few_shot.json", {"step": step, **about, "few_shot": results})
    told = ", ".join(f"{shots} a class {found['mean']:.2%}" for shots, found in results.items())
    logging.info("Few-shot accuracy at step %d: %s.", step, told)
    return {f"few_shot/{shots}": found["mean"] for shots, found in results.items()}


def callbacks(plain, model, files, data_dir, start):
    """The callbacks that a resolved config asks for: none, or a Periodic that measures few-shot accuracy.

    Args:
        plain: the resolved config.
        model: of the run, made in the scope of `files.strategy`.
        files: the RunDirectory.
        data_dir: of tensorflow-datasets.
        start: the step that the model is at.

    Raises:
        ValueError: before training, for shots that are no numbers or that the data lacks.
    """
    options = plain["few_shot"]
    if not options["source"]:
        return []
    shots = numbers(options["shots"], "few_shot.shots")
    task = Task(*open_pair(options["source"], options["train"], options["test"], data_dir), shots)
    preprocess = options["preprocess"] or preprocessing(model)
    with files.strategy.scope():
        embedder = Embedder(model, preprocess, plain["batch_size"])
    about = {"source": options["source"], "train": options["train"], "test": options["test"], "preprocess": preprocess}
    measure = functools.partial(_measure, task, embedder, files, about)
    return [Periodic(measure, options["every"], plain["total"], start)]


def resolve_every(text, steps, total, evaluate):
    """few_shot.every in steps, rounded up to whole evaluations; `total` for "".

    Args:
        text: the duration, or "".
        steps: a duration -> steps.
        total: the run's last step.
        evaluate: steps between evaluations.
    """
    return total if text == "" else evaluate * max(1, math.ceil(steps(text) / evaluate))
