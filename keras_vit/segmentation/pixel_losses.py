"""Losses for a class per pixel: masks y (b, h, w) and logits (b, h, w, k) -> one value per example, (b,).

Pixels with the mask `void` have no class and add nothing. Losses of pixels are summed over those with a class and
divided by h * w, all pixels, as in mmsegmentation: an image that is half void counts half as much, one that is all void
gives 0, and every example's loss is the same on any number of replicas.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vit.fit.losses import Loss, as_tensors, balanced_class_weights, checked_class_weights, concrete
from keras_vit.io.target_values import VOID
from keras_vit.layers.registration import serializable
from keras_vit.segmentation.mask_rules import MaskRules

ONE_CLASS = (
    "With one class, every pixel is that class, and the loss is always 0. Build the model with two classes or more,"
    ' such as "background" and "object".'
)


def pixel_class_weights(pixels: Sequence[int], kind: str = "balanced") -> tuple[float, ...]:
    """One factor per class by its number of pixels; 1 for a class without any.

    Args:
        pixels: number of pixels of each class in the training data.
        kind: "balanced", N / (k * pixels), with mean 1 over pixels, over the k classes that occur; or "log", milder
            where a class is rare: 1 / ln(1.02 + share) (ENet, arXiv 1606.02147, section 5.2), divided by its mean over
            pixels.

    Raises:
        ValueError: for another kind, negative numbers, or no pixels.
    """
    counts = [int(count) for count in pixels]
    found = [count for count in counts if count]
    if not found or min(counts) < 0:
        raise ValueError(f"Expected the number of pixels of each class, not all 0; got {list(pixels)}.")
    if kind == "balanced":
        factors = balanced_class_weights(found)
    elif kind == "log":
        raw = [1 / math.log(1.02 + count / sum(found)) for count in found]
        mean = sum(factor * count for factor, count in zip(raw, found)) / sum(found)
        factors = tuple(factor / mean for factor in raw)
    else:
        raise ValueError(f'Unknown class weights "{kind}". Valid: balanced, log.')
    each = iter(factors)
    return tuple(next(each) if count else 1.0 for count in counts)


class PixelLoss(Loss):
    """The base of losses on masks; a subclass defines `per_example`.

    y (b, h, w) or (b, h, w, 1): integers, a class below k or `void`. y_pred (b, h, w, k): logits. Other mask values
    raise a ValueError where they are known, and give a NaN loss inside compiled functions (keras_vit.Model checks them
    first). Examples of weight 0 may have any masks.
    """

    takes_logits = True

    def __init__(
        self, class_weights: Sequence[float] | None = None, void: int = VOID, name: str = "loss", **kwargs: Any
    ):
        super().__init__(name=name, **kwargs)
        self.class_weights, self.void = checked_class_weights(class_weights), void

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        """The loss of each example, (b,).

        Args:
            labels: (b, h, w) int32, 0 for void.
            counted: (b, h, w) float32, 0 for void, else 1.
            logits: (b, h, w, k) float32.
        """
        raise NotImplementedError

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = as_tensors(y_true, y_pred, sample_weight)
        if sample_weight is not None:
            y_true, sample_weight = ops.convert_to_tensor(y_true, self.dtype), ops.convert_to_tensor(sample_weight)
            if any(side != 1 for side in sample_weight.shape[1:]):
                raise ValueError(
                    f"{type(self).__name__} takes one weight per example, (b,), got weights of the shape"
                    f" {tuple(sample_weight.shape)}. To leave out pixels, write void, {self.void}, into their masks."
                )
            counts = ops.reshape(sample_weight, (-1, *[1] * (len(y_true.shape) - 1))) != 0  # (b, 1, 1)
            y_true = ops.where(counts, y_true, ops.cast(self.void, y_true.dtype))
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        return self.per_example(*self.labels(y_true, self._rules(logits.shape)), logits)

    def labels(self, y_true: Any, rules: MaskRules) -> tuple[Any, Any]:
        """`labels` and `counted` of `per_example`; ValueError for masks of another form or with other values."""
        if len(y_true.shape) == 4 and y_true.shape[-1] == 1:
            y_true = ops.squeeze(y_true, -1)
        rules.check_form(tuple(y_true.shape), "int32")
        values = concrete(y_true)
        if values is not None:
            rules.check(values.astype("int64"))
        labels = ops.cast(y_true, "int32")
        counted = ops.where(rules.are_wrong(labels), float("nan"), ops.cast(labels != self.void, "float32"))
        return ops.where(counted == 1, labels, 0), counted

    def _rules(self, shape):
        """The rules for masks, for logits of that shape."""
        name = type(self).__name__
        if len(shape) != 4:
            raise ValueError(f"{name} expects logits (b, h, w, classes), got the shape {tuple(shape)}.")
        if shape[-1] == 1:
            raise ValueError(ONE_CLASS)
        if self.class_weights is not None and len(self.class_weights) != shape[-1]:
            raise ValueError(f"class_weights has {len(self.class_weights)} values for {shape[-1]} classes.")
        return MaskRules(shape[-1], tuple(shape[1:3]), self.void)

    def target_rules(self, model: Any) -> MaskRules | None:
        """The rules for the masks of a model with this loss; None unless its one output is maps of logits."""
        if len(model.outputs) != 1 or len(model.outputs[0].shape) != 4:
            return None
        _, height, width, classes = model.outputs[0].shape
        return MaskRules(classes, (height, width), self.void)

    def factors(self, labels: Any) -> Any:
        """The weight of each pixel's class, (b, h, w); 1 without class weights."""
        if self.class_weights is None:
            return 1.0
        return ops.take(ops.convert_to_tensor(self.class_weights, "float32"), labels)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_weights": self.class_weights, "void": self.void}


def _per_pixel(losses, counted):
    """The sum over pixels that count, divided by all pixels: (b, h, w) twice -> (b,)."""
    return ops.mean(losses * counted, axis=(1, 2))


def _minus_log_likelihood(labels, logits):
    """-log softmax(logits)[label]: (b, h, w)."""
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def _check_share(name, value):
    if value is not None and not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is a probability above 0, at most 1; got {value!r}.")


@serializable
class SegmentationCrossEntropy(PixelLoss):
    """Softmax cross-entropy of every pixel with a class.

    Online hard example mining (OHEM) keeps the pixels with a probability of their class below `ohem_thresh`, and at
    least the `ohem_min_kept` pixels of an image with the lowest, as mmsegmentation's OHEMPixelSampler(thresh, min_kept)
    does with a batch of one image. The others add nothing, and the sum is still divided by all pixels.

    Args:
        label_smoothing: share of the label spread evenly over all classes.
        class_weights: one factor per class for the loss of its pixels, None for 1; see `pixel_class_weights`.
        ohem_thresh: probability; None, with `ohem_min_kept`, keeps just those pixels.
        ohem_min_kept: number of pixels per image; None for 0. Without both, every pixel counts.
        void: value of pixels without a class.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        ohem_thresh: float | None = None,
        ohem_min_kept: int | None = None,
        void: int = VOID,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(class_weights, void, name, **kwargs)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}.")
        _check_share("ohem_thresh", ohem_thresh)
        if ohem_min_kept is not None and (not isinstance(ohem_min_kept, int) or ohem_min_kept < 1):
            raise ValueError(f"ohem_min_kept is a number of pixels, 1 or more; got {ohem_min_kept!r}.")
        self.label_smoothing, self.ohem_thresh, self.ohem_min_kept = label_smoothing, ohem_thresh, ohem_min_kept

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        own = _minus_log_likelihood(labels, logits)
        losses = own
        if self.label_smoothing:
            mean = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)  # of -log softmax over the classes
            losses = (1.0 - self.label_smoothing) * own + self.label_smoothing * mean
        if self.ohem_thresh is not None or self.ohem_min_kept is not None:
            losses = losses * self._hard(own, counted)
        return _per_pixel(losses * self.factors(labels), counted)

    def _hard(self, own, counted):
        """1 for the pixels that OHEM keeps, else 0: (b, h, w)."""
        chances = ops.stop_gradient(ops.exp(-own))  # (b, h, w)
        counts, least = counted == 1, self.ohem_min_kept or 0
        ranked = ops.sort(ops.reshape(ops.where(counts, chances, 2.0), (ops.shape(own)[0], -1)), axis=-1)  # (b, h * w)
        n = ops.sum(ops.cast(counts, "int32"), axis=(1, 2))  # (b,)
        place = ops.minimum(least, n - 1) if self.ohem_thresh is not None else ops.minimum(least, n) - 1
        limit = ops.take_along_axis(ranked, ops.maximum(place, 0)[:, None], axis=-1)[..., None]  # (b, 1, 1)
        if self.ohem_thresh is None:
            return ops.cast(chances <= limit, "float32")
        return ops.cast(chances < ops.maximum(limit, self.ohem_thresh), "float32")


@serializable
class DiceLoss(PixelLoss):
    """The mean over classes of 1 - (2 sum(p t) + smooth) / (sum(p^exponent) + sum(t) + smooth), for each image.

    p are softmax probabilities, t is 1 where the mask has the class; sums are over the image's pixels with a class
    (V-Net, arXiv 1606.04797, equation 3). A class that the image lacks adds what p gives it.

    Args:
        smooth: above 0, so that a class that is nowhere has the loss 0.
        exponent: 2, as in the paper, or 1.
        class_weights: one factor per class for its term; the sum is divided by the number of classes.
        void: value of pixels without a class.
    """

    def __init__(
        self,
        smooth: float = 1.0,
        exponent: float = 2.0,
        class_weights: Sequence[float] | None = None,
        void: int = VOID,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(class_weights, void, name, **kwargs)
        if not smooth > 0 or not exponent >= 1:
            raise ValueError(f"Expected smooth above 0 and exponent of at least 1, got {smooth} and {exponent}.")
        self.smooth, self.exponent = smooth, exponent

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        counted, classes = counted[..., None], logits.shape[-1]
        p = ops.softmax(logits, axis=-1)  # (b, h, w, k)
        true = ops.cast(ops.one_hot(labels, classes), "float32") * counted
        overlap = ops.sum(p * true, axis=(1, 2))  # (b, k)
        powers = p if self.exponent == 1 else ops.square(p) if self.exponent == 2 else ops.power(p, self.exponent)
        sizes = ops.sum(powers * counted + true, axis=(1, 2))
        terms = 1.0 - (2.0 * overlap + self.smooth) / (sizes + self.smooth)
        return ops.mean(terms * self.factors(ops.arange(classes)), axis=-1)


@serializable
class FocalLoss(PixelLoss):
    """-(1 - p)^gamma log p, with p the softmax probability of the pixel's class (arXiv 1708.02002, over k classes).

    Args:
        gamma: 0 or more; 0 is cross-entropy.
        class_weights: one factor per class for the loss of its pixels: the paper's alpha.
        void: value of pixels without a class.
    """

    def __init__(
        self,
        gamma: float = 2.0,
        class_weights: Sequence[float] | None = None,
        void: int = VOID,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(class_weights, void, name, **kwargs)
        if not gamma >= 0:
            raise ValueError(f"gamma must be 0 or more, got {gamma}.")
        self.gamma = gamma

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        losses = _minus_log_likelihood(labels, logits)
        if self.gamma:
            # Not below 1e-7: the gradient of a power below 1 is infinite at 0.
            losses = ops.power(ops.maximum(-ops.expm1(-losses), 1e-7), self.gamma) * losses
        return _per_pixel(losses * self.factors(labels), counted)


@serializable
class SegmentationLoss(PixelLoss):
    """A weighted sum of cross-entropy, dice and focal loss.

    Args:
        cross_entropy, dice, focal: weight of each; 0 leaves it out.
        label_smoothing, ohem_thresh, ohem_min_kept: of SegmentationCrossEntropy.
        smooth, exponent: of DiceLoss.
        gamma: of FocalLoss.
        class_weights, void: of each.
    """

    def __init__(
        self,
        cross_entropy: float = 1.0,
        dice: float = 0.0,
        focal: float = 0.0,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        ohem_thresh: float | None = None,
        ohem_min_kept: int | None = None,
        smooth: float = 1.0,
        exponent: float = 2.0,
        gamma: float = 2.0,
        void: int = VOID,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(class_weights, void, name, **kwargs)
        if min(cross_entropy, dice, focal) < 0 or not any((cross_entropy, dice, focal)):
            raise ValueError(
                f"Expected weights of at least 0, not all 0; got cross_entropy={cross_entropy}, dice={dice},"
                f" focal={focal}."
            )
        self.cross_entropy, self.dice, self.focal = cross_entropy, dice, focal
        self.label_smoothing, self.ohem_thresh, self.ohem_min_kept = label_smoothing, ohem_thresh, ohem_min_kept
        self.smooth, self.exponent, self.gamma = smooth, exponent, gamma
        terms = (
            (cross_entropy, SegmentationCrossEntropy(label_smoothing, class_weights, ohem_thresh, ohem_min_kept, void)),
            (dice, DiceLoss(smooth, exponent, class_weights, void)),
            (focal, FocalLoss(gamma, class_weights, void)),
        )
        self._terms = [(weight, loss) for weight, loss in terms if weight]

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        return sum(weight * loss.per_example(labels, counted, logits) for weight, loss in self._terms)
