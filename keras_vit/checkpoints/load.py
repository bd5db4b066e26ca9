"""Load a model from any supported checkpoint, ready for another task: locate, read, parse, build, assign."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Unpack

import keras
import numpy as np
from absl import logging

from keras_vit.checkpoints import dual
from keras_vit.checkpoints.adapt import variables
from keras_vit.checkpoints.dense_models import (
    describe_adapted,
    encoder_options,
    head_variables,
    moved,
    stored_encoder,
    with_head,
)
from keras_vit.checkpoints.formats import mae, questions
from keras_vit.checkpoints.formats.evaluation_steps import for_channels
from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.locate import declared_labels, locate_checkpoint
from keras_vit.checkpoints.masked import masked_autoencoder
from keras_vit.checkpoints.parse import parsed_arrays
from keras_vit.checkpoints.reading import keras_file, metadata
from keras_vit.checkpoints.reading.files import read
from keras_vit.checkpoints.transfer import LoadOptions, adapt, adapted, describe
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.instances.instance_model import InstanceModel
from keras_vit.io.class_names import DATA_SETS
from keras_vit.io.logs import log_once
from keras_vit.io.suggest import did_you_mean, nearest
from keras_vit.io.tokenizer import Tokenizer
from keras_vit.layers.arguments import as_named_now
from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.fake_quantization import fake_quantizers
from keras_vit.models import Classifier, families
from keras_vit.models.headed import HeadedModel
from keras_vit.models.overrides import Answers

_ARGUMENTS = ("path", "image_size", "classes", "class_names", "head", "resample", "names", "key", "text", "tokenizer")
_HINTS = {
    "path": " The weights are those of `path`, the first argument.",
    "head": ' head="drop" gives a model without a head, head="reset" with classes=... one with a new head.',
}
_PROJECTION = (
    ". The output is the features before visual_projection; text=True loads both towers of a CLIPModel with their"
    " projections."
)


def _report(contents, parsed, dropped):
    """Warns about arrays left out, and about assumptions."""
    if dropped:
        hint = _PROJECTION if any(name.endswith("visual_projection.weight") for name in dropped) else ""
        logging.warning("%s: left out, unused by the image model: %s%s", contents.path, summary(dropped), hint)
    if contents.metadata is None and parsed.assumptions:
        log_once(
            logging.WARNING,
            f'{contents.path}: {" ".join(parsed.assumptions)} A copy saved by keras_vit.save(model, "model.keras")'
            " states it, without a warning.",
        )


def _preprocessing(contents, parsed, located, own, wanted, channels):
    """The checkpoint's evaluation preprocessing as text, or None.

    Args:
        own, wanted: pixels (height, width): the checkpoint's size, and the one to load for.
        channels: of the images to load for.

    Raises:
        ValueError: for implausible sizes in the config next to the file.
    """
    text = located.preprocessing if wanted == own else None
    if text is None and parsed.preprocessing is not None and contents.metadata is None:
        text = parsed.preprocessing(*wanted)
        metadata.check_preprocessing(text, own, f'The config next to "{contents.path}"')
    return for_channels(text, channels)


def _from_parsed(parsed, config, path, options, described):
    """The model in a file of arrays, changed as in `transfer`; `config` holds the file's own constructor arguments,
    and is `described` where metadata holds them.
    """
    dense = parsed.dense if parsed.dense is not None and options.keeps_head(parsed.dense.classes) else None
    arrays, name_map = parsed.arrays, parsed.name_map
    if dense is not None:
        arrays, name_map = {**arrays, **dense.arrays}, {**name_map, **dense.name_map}
    with metadata.built_from(path):
        values = sum(array.size for array in arrays.values()) if described else None
        metadata.check_size(config["variant"], config, len(arrays), values, path)
    adaptation = adapted(config, options if dense is None else encoder_options(options))
    with metadata.built_from(path, adaptation.changes_model):
        model = families.build(**adaptation.target)
        targets = variables(model)
        if dense is not None:
            model = with_head(model, dense, options)
            targets |= head_variables(model)
    if dense is not None:
        describe_adapted(model, options, config["image_size"], config["preprocessing"])
    adaptation.assign(adaptation.unpack(name_map, arrays, targets, path), targets)
    model.activation = parsed.activation if options.head == "keep" else None
    return model


def _changes(options, parsed, config, path):
    """The changes to the file's model, without values with which it was read; ValueError for those without effect."""
    changes = dict(options.changes)
    for name in questions.MEANINGS:
        if name in changes and np.array_equal(getattr(config["variant"], name, None), changes[name]):
            del changes[name]
    for_decoder = [name for name in mae.DECODER if changes.pop(name, None) is not None]
    if for_decoder and parsed.decoder is None:
        raise ValueError(f'{", ".join(for_decoder)} has no effect: "{path}" has no decoder of masked patches.')
    return changes


def _from_arrays(contents, located, options, names=None, key=None):
    """A model from a file of arrays: parse, build, assign."""
    image_size = located.image_size if options.image_size is None else options.image_size
    answers = {**options.changes, "head": options.head}
    contents, parsed, config, left_out = parsed_arrays(contents, located, image_size, names, key, answers)
    changes = _changes(options, parsed, config, contents.path)
    own, wanted = (
        pair(config["image_size"] if s is None else s, "image_size") for s in (located.image_size, image_size)
    )
    text = _preprocessing(contents, parsed, located, own, wanted, changes.get("channels", config["channels"]))
    changes = changes if text is None else {"preprocessing": text, **changes}
    resample = options.resample or located.resample or parsed.resample
    options = dataclasses.replace(options, image_size=image_size, resample=resample, changes=changes)
    _report(contents, parsed, left_out)
    if parsed.decoder is not None and options.keeps_head(None) and options.class_names is None:
        sized = changes if image_size is None else {**changes, "image_size": image_size}
        return masked_autoencoder(parsed, config, contents.path, sized)
    return _from_parsed(parsed, config, contents.path, options, contents.metadata is not None)


def _from_keras(path, options, names, key):
    """The model of a .keras file, adapted if anything is to change."""
    if names is not None:
        raise ValueError(f'"{path}" is a .keras file, which knows its names: leave names out.')
    model = keras_file.load(path)
    if key is not None:
        if key not in model.parts:
            valid = f"its parts are {', '.join(model.parts)}" if model.parts else "it has one model, without parts"
            raise ValueError(f'"{path}" has no part key="{key}": {valid}.')
        model = model.parts[key]
    if fake_quantizers(model) and not options.keeps_layers:
        from keras_vit.models.finetuning.quantization_aware import in_floats  # loads when needed

        model = in_floats(model, path)
    keeps = options.keeps_head(model.classes)
    if keeps and options.image_size is None:
        if options.class_names is None and not options.changes:
            return model
        is_named = options.class_names is None or model.classes is not None
        if is_named and options.changes.keys() <= {"preprocessing"} and model.get_encoder() is model:
            describe(model, options.class_names, **options.changes)  # in place: also quantised, or with a custom head
            return model
    if isinstance(model, HeadedModel):
        if keeps:
            return moved(model, options)
        if options.head != "keep":
            config, weights = stored_encoder(model, path, options.head)
            return adapted(config, options).build(weights)
    return adapt(model, options)


def _check_text(text, tokenizer, **others):
    """Refuses arguments without effect: ValueError for a tokenizer without `text`, or with it for {name: value}."""
    if not text and tokenizer is not None:
        raise ValueError("tokenizer has no effect without text=True.")
    extra = [name for name, value in others.items() if value is not None]
    if text and extra:
        raise ValueError(
            f"{', '.join(extra)} cannot be used with text=True, which loads both encoders without a head: for a"
            " classifier call model.classifier(labels), or leave text=True out."
        )


def _with_text(contents, located, options, tokenizer):
    """The DualEncoder of a file; the options are for its image encoder. ValueError for other files."""
    if contents.kind == "keras":
        model = keras_file.load(contents.path)
        if not isinstance(model, DualEncoder) or options.image_size is not None or options.changes:
            raise ValueError(
                f'"{contents.path}" contains a {type(model).__name__}: text=True loads a DualEncoder, which a .keras'
                " file returns as it is."
            )
        if tokenizer is not None:
            model.tokenizer = dual.read_tokenizer(tokenizer, model.text_encoder.text_spec.length)
        return model
    contents, parsed = dual.split(contents)
    image = _from_arrays(contents, located, options)
    return dual.join(image, parsed, contents.path, tokenizer)


def _check_arguments(changes):
    """Refuses unknown arguments before anything is read: ValueError with the nearest name, or our word for it."""
    arguments = [name for name in metadata.ARGUMENTS if name != "variant"]
    valid = tuple(dict.fromkeys([*_ARGUMENTS, *arguments, *families.fields(), *mae.DECODER]))
    for name in changes:
        if name not in valid:
            meant = nearest(name, valid)
            hint = _HINTS.get(meant[0], "") if meant else ""
            raise ValueError(
                f'load has no argument "{name}".{did_you_mean(name, valid)}{hint} Valid: {", ".join(valid)}.'
            )


def _name_classes(model, located, contents):
    """Names the classes of a well-known data set, if the catalogue or the file names it as the training data."""
    if model.class_names is not None or not isinstance(model, (Classifier, DetectionModel, InstanceModel)):
        return
    labels = located.class_names
    if labels is None and contents.metadata is None and contents.kind != "keras":
        labels = declared_labels(contents.path, contents.config, model.classes)
    if labels and len(names := DATA_SETS[labels]()) == model.classes:
        model.class_names = names


def load(
    path: str | os.PathLike,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    resample: str | None = None,
    names: Sequence[tuple[str, str | None]] | None = None,
    key: str | None = None,
    text: bool = False,
    tokenizer: str | os.PathLike | Tokenizer | None = None,
    **changes: Unpack[Answers],
) -> keras.Model:
    """Loads a ViT or BiT from any supported checkpoint, or a keras_vit.Model built on one from its `.keras` file.

    The format is recognised automatically: a `.keras` file or run directory of this package; Google's .npz (2020,
    AugReg, big_vision, hybrids, BiT); safetensors, `.pth`, `.pt` or `.ckpt` of timm and vit-pytorch; a Hugging Face
    folder; a `.keras` or `.h5` file of a ViT of Keras' own layers. GELU's form, epsilon, normalisation and position
    convention come from the checkpoint. One error asks for all values that it does not show, with a line to paste;
    published files need none. Published ImageNet-1k models know their class names.

    Args:
        path: file, folder, name in the catalogue (`keras_vit.list_models()`), or address: https://, gs://,
            hf://owner/name.
        image_size, classes, class_names, head: see checkpoints.transfer.
        resample: "google", "timm", "bicubic", "bilinear" or "flexivit". How to resample positions; None for the method
            of the checkpoint's own code.
        names: rules for a state dict with custom names, applied in order: (pattern, replacement) as for re.sub, towards
            the names listed in docs/checkpoints.md, or (pattern, None) to leave arrays out; [] if no rule is needed.
            Requires what the arrays do not show: heads, mean, std, norm_first, mlp_activation, pool and epsilon.
        key: which state dict of several in the file, such as "model_ema", "state_dict.teacher", or the start of the
            names of one of several models; of a MultiModel's file the name of a part. None for all there is.
        text: load the text encoder, too: a DualEncoder, of the files of SigLIP, SigLIP 2 and CLIP.
        tokenizer: of its texts: a Tokenizer, or the path of a tokenizer.json or its folder; None for a file next to
            the weights.
        **changes: see checkpoints.transfer: dropout, dtype, channels, patch_size... `heads`, `mean`, `std`, `pool`...
            also supply values that a file does not state; so do `decoder_heads`, `normalise_targets` and `mask_ratio`
            for a masked autoencoder's decoder.

    Raises:
        FileNotFoundError: for an unknown file or name.
        ConnectionError: if the download fails.
        PermissionError: for a gated repository of the Hugging Face hub without access.
        ValueError: if the file is damaged or not a supported model, or as in transfer.
    """
    changes = as_named_now(changes)
    _check_arguments(changes)
    if not isinstance(key, str | None):
        raise ValueError(f'key should be text, such as key="model_ema", got {key!r}.')
    replaced = None if head == "keep" else head
    _check_text(text, tokenizer, classes=classes, class_names=class_names, head=replaced, names=names)
    located = locate_checkpoint(path)
    arguments = {**located.fields, **changes}
    arguments = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    options = LoadOptions(image_size, classes, class_names, head, resample, arguments)
    contents = read(located.path, key)
    try:
        if text:
            return _with_text(contents, located, options, tokenizer)
        if contents.kind == "keras":
            model = _from_keras(contents.path, options, names, key)
        else:
            model = _from_arrays(contents, located, options, names, key)
    except questions.Unanswered as error:
        call = {"image_size": image_size, "classes": classes, "class_names": class_names, "head": replaced}
        call |= {"resample": resample, "names": names, "key": key, "text": text or None, "tokenizer": tokenizer}
        call = {name: value for name, value in call.items() if value is not None} | changes
        raise error.for_call(os.fsdecode(path), call) from None
    if class_names is None and head == "keep":
        _name_classes(model, located, contents)
    if head == "keep" and model.has_zero_head():
        model.refuses_zero_head = True
        logging.warning(
            '%s: the head is all zeros, as in the ImageNet-21k files of 2020. Load it with head="reset" to fine-tune,'
            ' or with head="drop" for features; predict is refused.',
            contents.path,
        )
    return model
