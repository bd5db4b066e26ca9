"""Evaluation of depth models: errors of held-out images, and pictures of examples."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.answers import check_answers
from keras_vit.data import image_and_label
from keras_vit.depth.depth_losses import DepthL1, DepthScores, as_depth, known_depths
from keras_vit.depth.depth_map import depth_picture, depth_range, in_colors, known, scale_bar
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import check_preprocessing, metrics_runner
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.evaluation.segmentation_scores import spread_examples
from keras_vit.inspection.mask_comparison import rgb, side_by_side

_TITLES = ("image", "truth", "prediction", "error")


def image_and_depth(example: dict[str, Any]) -> tuple:
    """(image (h, w, c), depth (h, w)) of an example; ValueError if it has no depth."""
    if "depth" not in example:
        raise ValueError(
            'The examples have no "depth" for every pixel: use a source of images and depth maps, such as depth:FOLDER.'
        )
    return example["image"], example["depth"][..., 0]


def example_row(image: np.ndarray, truth: np.ndarray, found: np.ndarray, titled: bool) -> np.ndarray:
    """An image, its true depth, the predicted one and the error, void black, with scales in metres: (h', w', 3) uint8.

    Args:
        image: (h, w, c) uint8.
        truth, found: (h, w) metres, of which `truth` is void where not above 0.
        titled: whether to write titles above.
    """
    there, limits, width = known(truth), depth_range(truth), image.shape[1]
    error = np.where(there, np.abs(found - truth), 0)
    largest = float(error.max())
    errors = np.where(there[..., None], in_colors(error, 0, largest), 0).astype("uint8")
    scale = scale_bar(*limits, width)
    drawn = [(rgb(image), np.full_like(scale, 255)), (depth_picture(truth, *limits), scale)]
    drawn += [(depth_picture(found, *limits), scale), (errors, scale_bar(0, largest, width))]
    return side_by_side(*map(np.concatenate, drawn), titles=_TITLES if titled else ())


@register("depth")
@dataclasses.dataclass(frozen=True)
class Depth(OnSource):
    """Absolute relative error, RMSE in metres and share of pixels within 25% (delta1), means over images.

    Measures at the model's image size. A relative model's output is scaled and shifted to the truth's inverse depth,
    image by image.

    Attributes:
        source, split, preprocess: as in OnSource; the source has depths.
        pictures: number of examples to draw, spread over the source.
        farthest: metres, the largest depth of a relative model's aligned output.
    """

    score: ClassVar[str] = "abs_rel"
    higher_is_better: ClassVar[bool] = False
    caption: ClassVar[str] = (
        "Each row shows an image, its true depth, the predicted one in the same colours, and the error, with scales in"
        " metres. Pixels without a true depth are black in the truth and the error, and do not count."
    )

    pictures: int = 4
    farthest: float = 80.0

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        model = setting.model
        check_answers(model, "depth")
        select = image_and_depth if setting.select is image_and_label else setting.select
        setting = dataclasses.replace(setting, select=select)
        check_preprocessing(preprocess, source, model, select)
        examples = spread_examples(source, preprocess, select, self.pictures) if self.pictures else None
        relative = getattr(model, "kind", "metric") == "relative"
        with setting.strategy.scope():
            loss, scores = DepthL1(align=relative), DepthScores(relative, self.farthest)
        measure = metrics_runner(setting, loss, [scores])

        def evaluate():
            evaluation = Evaluation(measure(source, preprocess))
            if examples is None or not len(examples[0]):
                return evaluation
            return dataclasses.replace(evaluation, pictures={"examples": self._drawn(model, relative, *examples)})

        return evaluate

    def _drawn(self, model, relative, images, truths):
        """A row for each image (n, h, w, c), with its true depth (n, h, w)."""
        found = model.predict(images, batch_size=8, verbose=0)[..., 0]
        if relative:
            truth, values, there = known_depths(truths, found)
            found = keras.ops.reshape(as_depth(values, truth, there, self.farthest), found.shape)  # (n, h * w)
            found = keras.ops.convert_to_numpy(found)
        rows = [example_row(*row, titled=i == 0) for i, row in enumerate(zip(images, truths, found))]
        return np.concatenate(rows)
