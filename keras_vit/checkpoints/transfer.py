"""Adapt a trained model to another task: another resolution, head or number of channels."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import keras

from keras_vit.checkpoints.adapt import Adaptation, model_weights
from keras_vit.checkpoints.formats.evaluation_steps import for_channels
from keras_vit.checkpoints.resample import adapt_constants
from keras_vit.fit.model import Model, describe_input
from keras_vit.io.class_names import DATA_SETS
from keras_vit.io.suggest import check_known
from keras_vit.layers.dense import dense_config
from keras_vit.layers.embedding.patches import grid_size, pair
from keras_vit.layers.fake_quantization import check_plain as check_no_fake_quantization
from keras_vit.layers.fake_quantization import copy_fake_quantization, fake_quantizers
from keras_vit.models import Classifier, families, taps
from keras_vit.models.checks import check_count, plain_names, preprocessing_or_none
from keras_vit.models.fields import WEIGHTS, named
from keras_vit.models.overrides import Changes

HEADS = ("keep", "reset", "drop")
# Arguments that can change.
_CHANGEABLE = ("image_size", "head", "classes", "class_names", "channels", "remat", "dtype", "name", "preprocessing")


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """What a loaded model should become.

    Attributes:
        image_size, classes, class_names, head, resample: as in `transfer`; resample None for the file's method.
        changes: {argument of the constructor: value}.
    """

    image_size: int | tuple[int, int] | None = None
    classes: int | None = None
    class_names: Any = None
    head: str = "keep"
    resample: str | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def keeps_head(self, own: int | None) -> bool:
        """Whether the head of a model with `own` classes stays."""
        return self.head == "keep" and self.classes in (None, own)

    @property
    def keeps_layers(self) -> bool:
        """Whether the new model has the same layers and weights, computed in another way."""
        changes = self.changes.keys() <= {"dtype", "remat", "preprocessing", "name"}
        return changes and self.keeps_head(None) and self.image_size is None


def rounded_as(model: Model, change: Callable[[Model], Model]) -> Model:
    """What `change` makes of a model with fake quantisation without it, with that of the model."""
    from keras_vit.models.finetuning.quantization_aware import without_fake_quantization  # loads when needed

    new = change(without_fake_quantization(model))
    copy_fake_quantization(model, new)
    return new


def check_plain(model: Classifier, purpose: str) -> None:
    """Refuses a model with kernels that are not plain floating-point matrices.

    Args:
        model: a ViT or BiT.
        purpose: what needs plain kernels, the start of the message.

    Raises:
        ValueError: if it is quantised, also for training, or has unmerged LoRA, with the remedy.
    """
    check_no_fake_quantization(model, purpose)
    adapted = dense_config(model)
    if "quantization" in adapted:
        raise ValueError(
            f'{purpose} needs weights in floating point, and "{model.name}" is quantised'
            f" ({len(adapted['quantization'])} layers). Do it with the model that you quantised, and quantise the"
            " result; .keras files and exports keep quantised models."
        )
    if "lora" in adapted:
        raise ValueError(
            f'{purpose} needs plain kernels, and "{model.name}" has LoRA ({len(adapted["lora"])} layers). Write'
            " model.merge_lora() first, or merge a copy, model.clone(); .keras files and exports keep LoRA as it is."
        )


def _classifier_in(model, head):
    """The ViT or BiT to adapt: `model`, the encoder inside, or a headless copy of one built into it.

    ValueError if the head to keep is not a ViT's or BiT's, or without one ViT or BiT inside.
    """
    if isinstance(model, Classifier):
        return model
    inner = families.any_name()
    if head == "keep" or not isinstance(model, Model):
        raise ValueError(
            f'"{model.name}" is of class {type(model).__name__}, built on a {inner}; loading with changes cannot keep'
            " its head."
            f' head="drop" loads the {inner} inside it, head="reset" with classes=... gives it a new head; or rebuild'
            f" the model on a {inner} that was loaded with these changes."
        )
    model = model.get_encoder()
    holder = model if isinstance(model, Classifier) else taps.encoder_in(model)[0]
    if isinstance(holder, Classifier):
        return holder
    if model.spec is None or model.image_size is None:
        raise ValueError(f'"{model.name}" is not built on one {inner} that takes its images.')
    check_plain(holder, f"Taking a {inner} out of a model")
    same = {name: getattr(model, name) for name in ("image_size", "channels", "preprocessing")}
    bare = families.build(model.spec, classes=None, dtype=model.dtype_policy, **same)
    for layer in bare.layers:
        if layer.weights:
            layer.set_weights(holder.get_layer(layer.name).get_weights())
    return bare


def _check_head(head, classes, old):
    check_known(head, "head", HEADS)
    if head != "reset" and classes is not None and classes != old:
        raise ValueError(f'head="{head}" cannot have {classes} classes: the model has {old}. Use head="reset".')
    if head == "reset" and classes is None:
        raise ValueError('head="reset" needs classes, the number of classes of the new task.')


def read_class_names(names: Any) -> Any:
    """A list of names; those of a data set for a key of DATA_SETS, the lines of a file for its path.

    Raises:
        ValueError: for any other text, since its letters would be the names.
    """
    if not isinstance(names, (str, os.PathLike)):
        return names
    if names in DATA_SETS:
        return DATA_SETS[names]()
    from keras_vit.io.paths import locate, read_text

    try:
        lines = read_text(locate(os.fspath(names))).splitlines()
    except FileNotFoundError:
        quoted = ", ".join(f'"{known}"' for known in DATA_SETS)
        raise ValueError(
            f"class_names should be a list with one name per class, a file with one per line, or one of {quoted}, got"
            f' "{names}", and there is no such file.'
        ) from None
    return tuple(line.strip() for line in lines if line.strip())


def _check_fixed(spec, changes):
    """Refuses changes of fields that the weights determine: ValueError with each, and those that can change."""
    family = families.find(spec)
    fields = {name: changes[name] for name in family.fields if name in changes}
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    wanted = {name: value for name, value in fields.items() if spec.fixes(name, value)}
    if wanted:
        own = ", ".join(f"{name}={getattr(spec, name)!r}" for name in wanted)
        changeable = [*_CHANGEABLE, *(name for name in family.fields if name not in named(type(spec), WEIGHTS))]
        raise ValueError(
            f"{', '.join(f'{name}={value!r}' for name, value in wanted.items())}: the weights fix {own}, which loading"
            f" cannot change. What can change: {', '.join(changeable)}. For another architecture create a new model,"
            f" keras_vit.{family.name}(...)."
        )


def _check_patches(config, target):
    """Refuses a patch grid, or a grey image, that the weights cannot be adapted to: ValueError."""
    spec = config["variant"]
    if target["channels"] == 1 != config["channels"] and getattr(spec, "pre_norm", False):
        if spec.stem is None and not spec.conv_stem and not spec.patch_norm:
            raise ValueError(
                f"channels=1: patches without a bias (pre_norm={spec.pre_norm}) cannot take on the normalisation of"
                f" {config['channels']} channels. Repeat the grey channel instead."
            )
    if not spec.has_tokens:
        return
    old, new = (grid_size(c["image_size"], c["variant"].strides[0]) for c in (config, target))
    kind = getattr(spec, "positions", None)
    if (kind == "relative" and old != new) or (kind == "sincos1d" and old[1] != new[1]):
        raise ValueError(
            f'positions="{kind}" count patches along the rows of a grid of {old[0]}x{old[1]}, and'
            f" mean other places on one of {new[0]}x{new[1]}: they cannot be resampled. Keep the number of"
            " patches, or train with other positions."
        )


def adapted(config: Mapping[str, Any], options: LoadOptions) -> Adaptation:
    """The change from the model with the constructor arguments `config` to the one that `transfer` makes of it.

    Args:
        config: with the model's spec under "variant".

    Raises:
        ValueError: as `transfer`.
    """
    spec, head, changes = config["variant"], options.head, dict(options.changes)
    _check_head(head, options.classes, config["classes"])
    class_names = read_class_names(options.class_names)
    size = config["image_size"] if options.image_size is None else pair(options.image_size, "image_size")
    new = {**config, "image_size": size}
    if head == "reset":
        spec = spec.with_new_head(changes)
        new.update(classes=options.classes, class_names=class_names)
    _check_fixed(spec, changes)
    if head == "drop":
        new.update(classes=None, class_names=None)
    elif head == "keep" and class_names is not None:
        new.update(class_names=class_names)
    if tuple(size) != tuple(config["image_size"]):
        new["preprocessing"] = None  # it is for the old size
    if "channels" in changes:
        new["preprocessing"] = for_channels(new["preprocessing"], changes["channels"])
    for name in ("remat", "preprocessing", "name", "dtype", "channels"):
        new[name] = changes.pop(name, new[name])
    new["preprocessing"] = preprocessing_or_none(new["preprocessing"])
    if new["channels"] != config["channels"]:
        if getattr(spec, "palette", None) is not None:
            raise ValueError(
                f"channels={new['channels']}: the palette's colours have {config['channels']} values. Leave channels"
                " out."
            )
        for name in ("mean", "std"):
            changes.setdefault(name, adapt_constants(getattr(spec, name), new["channels"]))
    if "pool" in changes and spec.has_tokens:
        changes["class_token"] = spec.class_token  # another pooling leaves the tokens as they are
    target = {**new, "variant": families.find(spec).make_spec(spec, **changes)}
    _check_patches(config, target)
    return Adaptation(config, target, head, options.resample or "google")


def describe(
    model: Model, class_names: Sequence[str] | str | os.PathLike | None = None, **preprocessing: str | None
) -> None:
    """Sets a model's class names or evaluation preprocessing in place; neither is part of its graph.

    Args:
        class_names: as in `transfer`; None leaves them.
        **preprocessing: `preprocessing=...`, text or None; left out, it stays.

    Raises:
        ValueError: if the number of names differs from the classes, or for invalid preprocessing.
    """
    if class_names is not None:
        names = plain_names(read_class_names(class_names))
        check_count(names, model.classes)
        model.class_names = names
    if preprocessing:
        model.preprocessing = preprocessing_or_none(**preprocessing)
        describe_input(model.input, model.spec, model.preprocessing, model.dtype_policy)  # for models built on it


def adapt(model: keras.Model, options: LoadOptions) -> Classifier:
    """`transfer` with its options together."""
    model = _classifier_in(model, options.head)
    if options.keeps_layers and fake_quantizers(model):
        return rounded_as(model, lambda plain: adapt(plain, options))
    named = [name for name in ("image_size", "classes", "class_names") if getattr(options, name) is not None]
    named += [*(["head"] if options.head != "keep" else []), *options.changes]
    check_plain(model, f"Another {', '.join(named)}" if named else "A transfer")
    new = adapted({**model.arguments(), "variant": model.spec}, options).build(model_weights(model))
    new.activation = model.activation if options.head == "keep" else None
    return new


def transfer(
    model: Classifier,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    resample: str = "google",
    **changes: Unpack[Changes],
) -> Classifier:
    """A new model with the weights of `model`.

    Args:
        model: a ViT or BiT; with head="reset" or "drop" also a keras_vit.Model built on one, which loses its own head.
        image_size: pixels, a number or (height, width). Positions are resampled, the patch size stays; None for the
            model's.
        classes, class_names: of the new head; with the old head, class_names names its classes. Names may be a file
            with one per line, or "imagenet" for ImageNet-1k's 1000, "cifar10", "cifar100" or "coco" (91).
        head: "keep"; "reset" for a new zero head instead of the old one and pre_logits; "drop" for a model that returns
            features.
        resample: a row of resample.METHODS. How to resample positions.
        **changes: constructor arguments, such as dropout, drop_path, remat, dtype; channels (RGB weights are summed for
            1 channel, repeated for more); patch_size (the kernel is resampled as in FlexiViT). What the weights
            determine cannot change.

    Raises:
        ValueError: for a change that the weights do not allow; a quantised model or LoRA; weights without a value,
            values without a weight, or different shapes, all listed.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"transfer takes a {families.any_name()}, got a {type(model).__name__}. keras_vit.load loads and"
            " transfers a file."
        )
    return adapt(model, LoadOptions(image_size, classes, class_names, head, resample, changes))
