"""Evaluation of segmentation models: mIoU, accuracies, boundaries, and pictures of examples."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from keras_vit.answers import check_answers
from keras_vit.data import ExampleErrors, evaluation_batches, image_and_label
from keras_vit.data.sources.selection import subset
from keras_vit.evaluation.boundaries import TOLERANCE, BoundaryScores, f_scores
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import check_preprocessing, metrics_runner
from keras_vit.evaluation.matched_classes import matched_masks
from keras_vit.evaluation.own_size import count
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.inspection.mask_comparison import comparison, palette, side_by_side, with_legend
from keras_vit.io.target_values import void_value
from keras_vit.segmentation.pixel_losses import SegmentationCrossEntropy
from keras_vit.segmentation.scores import SegmentationScores, class_scores, mean_where, scores
from keras_vit.segmentation.segment import Segmenter

_TITLES = ("image", "truth", "prediction", "wrong")


def image_and_mask(example: dict[str, Any]) -> tuple:
    """(image (h, w, c), mask (h, w)) of an example; ValueError if it has no mask."""
    if "mask" not in example:
        raise ValueError(
            'The examples have no "mask" with a class for every pixel: use a source of images and masks, such as'
            " masks:FOLDER."
        )
    return example["image"], example["mask"][..., 0]


def _spread(source, count):
    """Positions of at most `count` examples, spread over a source."""
    return np.unique(np.linspace(0, source.size - 1, min(count, source.size)).astype(int)).tolist()


def spread_examples(source: Any, preprocess: str, select: Callable, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(images (n, h, w, c) uint8, masks (n, h, w)) of at most `count` readable examples, spread over a source."""
    places = _spread(source, count)
    batches = evaluation_batches(subset(source, places), preprocess, len(places), select=select)
    [(images, masks, weights)] = batches.as_numpy_iterator()
    return images[weights > 0].astype("uint8"), masks[weights > 0]


def example_rows(images: np.ndarray, masks: np.ndarray, predicted: np.ndarray, names: Any, colors: Any) -> np.ndarray:
    """A picture (height, width, 3) uint8 with a row per example: image, truth, prediction and error, and a legend.

    Args:
        images: (n, h, w, c) uint8.
        masks, predicted: (n, h, w). Classes.
        names, colors: names and colours of the classes.
    """
    rows = []
    for i, (image, mask, found) in enumerate(zip(images, masks, predicted)):
        row = side_by_side(*comparison(image, mask, found, colors), titles=() if i else _TITLES)
        rows += [row, np.full((8, row.shape[1], 3), 255, "uint8")]
    shown = np.concatenate([masks.ravel(), predicted.ravel()])
    return with_legend(np.concatenate(rows), names, colors, shown)


def _rounded(values, defined):
    """The values as a list, None where undefined."""
    return [float(value) if there else None for value, there in zip(values, defined)]


def _without_auxiliary(setting):
    """The setting's model, without auxiliary heads."""
    model = setting.model
    if not hasattr(model, "without_auxiliary"):
        return model
    with setting.strategy.scope():
        alone = model.without_auxiliary()
    if alone is not model:
        alone.jit_compile = model.jit_compile
    return alone


@register("segmentation")
@dataclasses.dataclass(frozen=True)
class Segmentation(OnSource):
    """mIoU, pixel accuracy, mean accuracy and boundary F-score of predicted masks.

    Measures at the model's image size or, with a `window`, at each image's original size, as in `segment`.
    Classes are matched by name (matched_classes.py); means are over the classes that the data has.

    Attributes:
        source, split, preprocess: as in OnSource; the source has masks.
        tolerance: boundary tolerance as a share of the image's diagonal; None leaves the boundary score out.
        pictures: number of examples to draw, spread over the source.
        window: "whole" or "slide" as in `SegmentationModel.segment`, at the images' original size and without a loss;
            None for the model's size.
        overlap, scale, flips: as in `segment`, with a window.
    """

    score: ClassVar[str] = "miou"
    caption: ClassVar[str] = (
        "Each row shows an image, its true classes, the predicted ones, and the errors in magenta. Pixels without a"
        " true class are black in the last picture and do not count."
    )

    tolerance: float | None = TOLERANCE
    pictures: int = 4
    window: str | None = None
    overlap: float = 1 / 3
    scale: float | None = None
    flips: bool = False

    def __post_init__(self):
        if self.tolerance is not None and not 0 < self.tolerance < 0.1:
            raise ValueError(
                f"segmentation: tolerance={self.tolerance!r}: expected a share of the diagonal above 0, below 0.1."
            )
        if not isinstance(self.pictures, int) or self.pictures < 0:
            raise ValueError(f"segmentation: pictures={self.pictures!r}: expected a whole number, 0 or more.")
        if self.window is None and (self.flips or self.scale is not None):
            raise ValueError('segmentation: flips and scale need a window: window="whole" or window="slide".')
        if self.window is not None and self.preprocess is not None:
            raise ValueError("segmentation: preprocess has no effect with a window: leave out one of them.")

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        model = _without_auxiliary(setting)
        select = image_and_mask if setting.select is image_and_label else setting.select
        setting = dataclasses.replace(setting, model=model, select=select)
        source, scored = matched_masks(model, source)
        if self.window is not None:
            return self._at_own_size(setting, source, scored)
        check_preprocessing(preprocess, source, model, select)
        examples = spread_examples(source, preprocess, select, self.pictures) if self.pictures else None
        measured = self._measurer(setting, source, scored, preprocess)

        def evaluate():
            evaluation = measured()
            if examples is None or not len(examples[0]):
                return evaluation
            logits = model.predict(examples[0], batch_size=setting.batch_size, verbose=0)
            return _with_picture(evaluation, model, source, *examples, logits.argmax(-1))

        return evaluate

    def _measurer(self, setting, source, scored, preprocess):
        """A function that returns the Evaluation without pictures; its graph is traced once."""
        classes, void = len(source.class_names), _void(source)
        with setting.strategy.scope():
            counted, loss = SegmentationScores(classes, void), SegmentationCrossEntropy(void=void)
            edges = None if self.tolerance is None else BoundaryScores(classes, void, self.tolerance)
        measure = metrics_runner(setting, loss, [counted] if edges is None else [counted, edges])

        def measured():
            measures = measure(source, preprocess)
            boundaries = None if edges is None else edges.counts()
            evaluation = _evaluation(measures, source, scored, counted.counts(), boundaries)
            if edges is not None:
                pixels = self.tolerance * math.hypot(*setting.model.output_shape[1:3])
                evaluation.details["tolerance_pixels"] = pixels
            return evaluation

        return measured

    def _at_own_size(self, setting, source, scored):
        """A function that returns the Evaluation at the images' original size."""
        model, void, how = setting.model, _void(source), (self.window, self.overlap, self.scale, self.flips)
        check_answers(model, "masks")
        if setting.strategy.hosts > 1:
            raise ValueError("segmentation: a window works only in a single process: leave it out.")
        segmenter, shown = Segmenter(model, *how, batch_size=setting.batch_size), _spread(source, self.pictures)

        def evaluate():
            errors = setting.errors or ExampleErrors()
            with errors.raised():
                found = count(segmenter, source, void, self.tolerance, shown, errors)
            if not found.images:
                raise ValueError(f"No example of {source.name} can be used: the warnings say why.")
            evaluation = _evaluation({"examples": found.images}, source, scored, found.confusion, found.boundaries)
            evaluation.details.update(window=self.window, overlap=self.overlap, scale=self.scale, flips=self.flips)
            if not found.examples:
                return evaluation
            return _with_picture(evaluation, model, source, *map(np.stack, zip(*found.examples)))

        return evaluate


def _void(source):
    return void_value(len(source.class_names)) if source.void is None else source.void


def _evaluation(measures, source, scored, confusion, boundaries):
    """Evaluation from a confusion matrix (k, k), boundary counts (k, 4) or None, and other measures.

    `scored` (k,) bool says which classes the means are over.
    """
    if not confusion.sum():
        raise ValueError(f"None of the pixels of {source.name} has a class: all are void, {_void(source)}.")
    measures = {**measures, **{name: float(value) for name, value in scores(confusion).items()}}
    iou, _, found, _ = class_scores(confusion)
    measures["miou"] = float(mean_where(iou, found & scored))
    rows = _per_class(source.class_names, scored, confusion)
    if boundaries is not None:
        f, defined = f_scores(boundaries)
        defined = defined & scored
        measures["boundary_f"] = float(mean_where(f, defined))
        rows = [{**row, "boundary_f": value} for row, value in zip(rows, _rounded(f, defined))]
    details = {"classes": list(source.class_names), "confusion": confusion.tolist(), "per_class": rows}
    return Evaluation(measures, details)


def _per_class(names, scored, confusion):
    """[{"name", "iou", "accuracy", "share"}] of each class; None where a score is undefined."""
    iou, accuracy, found, labelled = class_scores(confusion)
    shares = confusion.sum(axis=1) / confusion.sum()
    columns = zip(names, _rounded(iou, found & scored), _rounded(accuracy, labelled), shares.tolist())
    return [dict(zip(("name", "iou", "accuracy", "share"), row)) for row in columns]


def _with_picture(evaluation, model, source, images, masks, predicted):
    """The evaluation with a picture of these examples."""
    colors = getattr(model, "colors", None) or getattr(source, "colors", None) or palette(len(source.class_names))
    rows = example_rows(images, masks, predicted, source.class_names, colors)
    return dataclasses.replace(evaluation, pictures={"examples": rows})
