"""Datasets prepared by tensorflow-datasets, read as encoded records."""

import dataclasses
import os

import tensorflow as tf

from keras_vit.data.objects import complete
from keras_vit.data.sources.base import Records
from keras_vit.data.sources.derived_labels import feature_at, parse_label, value_at
from keras_vit.data.sources.mask_sample import MEANINGS, with_class_masks
from keras_vit.data.sources.mask_tables import Table, find_table
from keras_vit.io.cache import cached_answer
from keras_vit.io.paths import locate, split_options
from keras_vit.io.suggest import nearest

# Keys of an example that options may set, besides image and label.
_FURTHER = ("labels", "boxes", "crowd", "difficult", "area", "mask", "text", "id")


class NotPrepared(ValueError):
    """A tensorflow-datasets dataset without prepared data."""


def _check_kind(name, features, key, path, kind):
    """Raises ValueError unless a feature has the class `kind`; the message names valid features."""
    try:
        feature = feature_at(features, path)
    except ValueError:
        feature = None
    if isinstance(feature, kind):
        return
    valid = [other for other in features if isinstance(features[other], kind)]
    problem = type(feature).__name__ if feature else "no such feature"
    fix = (
        f' Write "{name}?{key}={valid[0]}". Valid: {", ".join(valid)}.'
        if valid
        else " The dataset has no feature of this kind."
    )
    raise ValueError(
        f'"{name}": expected the feature "{".".join(path)}" to be one {kind.__name__} per example, got {problem}.{fix}'
    )


def _further(name, features, options):
    """Parses the options for further features into {key: path}. Raises ValueError for unknown features."""
    paths = {key: tuple(options[key].split(".")) for key in _FURTHER if options[key]}
    for key, path in paths.items():
        try:
            feature_at(features, path)
        except ValueError as error:
            raise ValueError(f'"{name}?{key}={options[key]}": {error}') from None
    return paths


def _label(name, features, text, further):
    """Returns the Label of the option label=; None if the examples have other targets and no label was requested.

    Raises:
        ValueError: see derived_labels.py.
    """
    import tensorflow_datasets as lib

    if not text and further and not ("label" in features and isinstance(features["label"], lib.features.ClassLabel)):
        return None
    text = text or "label"
    if text.isidentifier():
        _check_kind(name, features, "label", (text,), lib.features.ClassLabel)
    try:
        return parse_label(text, features)
    except ValueError as error:
        raise ValueError(f'"{name}": {error}') from None


def _parser(features, image, label, further):
    """Returns a function from a serialized record to the example, a dict; image and mask stay encoded."""
    import tensorflow_datasets as lib

    encoded = [image, *(path[0] for key, path in further.items() if key == "mask" and len(path) == 1)]
    decoders = {key: lib.decode.SkipDecoding() for key in encoded}

    def parse(record):
        values = features.deserialize_example(record, decoders=decoders)
        example = {"image": values[image], **{key: value_at(values, path) for key, path in further.items()}}
        return example if label is None else {**example, "label": label.compute(values)}

    return parse


def _class_feature(features, path):
    """Returns the Table of a mask feature's class names; None without names."""
    import tensorflow_datasets as lib

    feature = feature_at(features, path)
    named = isinstance(feature, lib.features.LabeledImage) and feature.num_classes
    return Table("", tuple(feature.names)) if named else None


def _names_with_objects(features, further):
    """Returns the class names of labels= if the examples also have boxes= and no mask; otherwise None."""
    import tensorflow_datasets as lib

    if not {"boxes", "labels"} <= further.keys() or "mask" in further:
        return None
    feature = feature_at(features, further["labels"])
    feature = getattr(feature, "feature", feature)  # of a sequence
    return tuple(feature.names) if isinstance(feature, lib.features.ClassLabel) else None


def _with_objects(source, names):
    """Completes a source of boxes and labels for detection; reads all records once."""

    def most():
        counts = source.ordered().map(lambda example: tf.shape(example["labels"])[0]).ignore_errors()
        return int(counts.reduce(0, tf.maximum))

    paths = [path for path, _, _ in source.files]
    most_objects = cached_answer(f"objects of {source.name}, {source.files}", paths, most)

    def parse(record):
        return complete(source.parse(record))

    return dataclasses.replace(source, class_names=names, parse=parse, most_objects=most_objects)


def _unknown(name, data_dir, error=None):
    """Returns the message for an unknown dataset, with the nearest names or the file of that name."""
    import tensorflow_datasets as lib

    path = locate(name, data_dir)
    known = lib.list_builders(with_community_datasets=False)
    if name.partition(":")[0].partition("/")[0] in known:  # such as an unknown version: its own message is short
        return f'tensorflow-datasets has no "{name}" (data_dir={data_dir}): {error}'
    near = nearest(name, known, 3)
    text = f'tensorflow-datasets has no "{name}"' + (f" in {data_dir}" if data_dir else "")
    if os.path.isfile(path):
        return f"{text}, but a file has this name. Open a table as csv:{name}; unpack an archive and open folder:PATH."
    return f"{text}." + (f" Did you mean {' or '.join(near)}?" if near else "") + " Open a folder as folder:PATH."


def _builder(name, data_dir):
    """Returns tensorflow-datasets' builder `name`. Raises ValueError if it does not exist."""
    import tensorflow_datasets as lib

    if os.path.isfile(locate(name, data_dir)) or not name[:1].isidentifier():  # a path
        raise ValueError(_unknown(name, data_dir))
    try:
        return lib.builder(name, data_dir=data_dir)
    except (lib.core.registered.DatasetNotFoundError, AssertionError) as error:
        raise ValueError(_unknown(name, data_dir, error)) from None
    except ValueError as error:  # for an invalid name, or an unknown config of the dataset
        if not os.path.isdir(locate(name, data_dir)):
            raise
        raise ValueError(
            f'"{name}" is a folder: write folder:{name} to open its images. As a dataset: {error}'
        ) from None


def _records(name, text, builder, split, parse, class_names, buffer):
    """Returns the Records of a split. Raises ValueError for unknown splits."""
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        valid = ", ".join(builder.info.splits)
        raise ValueError(f'"{name}" has no split "{split}". Valid: {valid}. ({error})') from None
    files = tuple(
        (str(i.filename), int(i.skip), int(i.take if i.take >= 0 else i.examples_in_shard)) for i in instructions
    )
    return Records(text, class_names, files, parse, buffer)


def tfds(text: str, split: str = "train", data_dir: str | os.PathLike | None = None, buffer: int = 10_000) -> Records:
    """Opens a tensorflow-datasets dataset.

    Args:
        text: str. "cifar10", "imagenet2012:5.*.*", "my_dataset/config"... Options image= and label= name the image and
            class features, by default "image" and "label"; label= may also derive the class (derived_labels.py).
            labels=, boxes=, mask=, text= and id= name further features, nested ones like objects.bbox, and make the
            label optional; without a feature "label", that called "text" is the text. boxes= and labels= select
            objects, for which crowd=, difficult= and area= name further features. classes=, colors=, values=,
            ignore= or palette= (masks.py) select class masks instead of labels.
        split: str. A split, with or without a slice: "train[:90%]".
        data_dir: str. Folder of the prepared data, local or in a bucket; None for tensorflow-datasets' default.
        buffer: int. Size of the shuffle buffer, in records.

    Raises:
        ValueError: if the dataset is not prepared, or lacks the split or a feature.
    """
    import tensorflow_datasets as lib

    name, options = split_options(text, image="image", label="", **dict.fromkeys((*_FURTHER, *MEANINGS), ""))
    builder = _builder(name, data_dir)
    if not builder.info.splits:
        raise NotPrepared(
            f'"{name}" is not prepared in {builder.data_path}. Prepare it once, with network access: '
            f"tfds build {name} --data_dir={data_dir or '~/tensorflow_datasets'}; or point --data_dir at it."
        )
    features = builder.info.features
    _check_kind(name, features, "image", (options["image"],), lib.features.Image)
    if not any(options[key] for key in ("label", *_FURTHER)) and "label" not in features:
        options["text"] = "text" if "text" in features and isinstance(features["text"], lib.features.Text) else ""
    further = _further(name, features, options)
    table = _class_feature(features, further["mask"]) if "mask" in further else None
    of_masks = any(options[key] for key in MEANINGS) or (table is not None and "label" not in features)
    if of_masks and ("mask" not in further or options["label"]):
        fix = "name the masks' feature with mask=" if "mask" not in further else "remove label="
        raise ValueError(f'"{text}": {", ".join(f"{key}=" for key in MEANINGS)} are for class masks: {fix}.')
    label = None if of_masks else _label(name, features, options["label"], further)
    class_names = () if label is None else label.class_names
    parse = _parser(features, options["image"], label, further)
    source = _records(name, text, builder, split, parse, class_names, buffer)
    names = _names_with_objects(features, further) if label is None else None
    if names is not None:
        return _with_objects(source, names)
    if not of_masks:
        return source
    known = _records(name, text, builder, "train", parse, (), buffer) if "train" in builder.info.splits else source
    table = find_table(os.fspath(data_dir or ""), options["classes"], options["colors"], search=False) or table
    return with_class_masks(source, known, table, options)
