"""Datasets prepared by tensorflow-datasets, read as encoded records."""

import dataclasses
import os

import tensorflow as tf

from keras_vit.data.objects import complete
from keras_vit.data.sources.base import Records
from keras_vit.data.sources.derived_labels import feature_at, parse_label, value_at
from keras_vit.data.sources.mask_files import records_of_masks
from keras_vit.data.sources.mask_sample import MEANINGS, look_into_records, report, understood
from keras_vit.data.sources.mask_tables import Table, find_table
from keras_vit.io.cache import cached_answer
from keras_vit.io.paths import locate, split_options
from keras_vit.io.suggest import nearest

# Keys of an example that options may fill, besides image and label.
_FURTHER = ("labels", "boxes", "crowd", "difficult", "area", "mask", "text", "id")


class NotPrepared(ValueError):
    """A dataset known to tensorflow-datasets whose data is missing."""


def _check_kind(name, features, key, path, kind):
    """Raises ValueError unless a feature is of class `kind`, naming those that are."""
    try:
        feature = feature_at(features, path)
    except ValueError:
        feature = None
    if isinstance(feature, kind):
        return
    valid = [other for other in features if isinstance(features[other], kind)]
    problem = f"is {type(feature).__name__}" if feature else "is not there"
    fix = (
        f' Write "{name}?{key}={valid[0]}". Valid: {", ".join(valid)}.'
        if valid
        else " The dataset has no feature of that kind."
    )
    raise ValueError(
        f'"{name}": its feature "{".".join(path)}" should be one {kind.__name__} per example, but {problem}.{fix}'
    )


def _further(name, features, chosen):
    """{key: path} of the options for further features. Raises ValueError for unknown features."""
    paths = {key: tuple(chosen[key].split(".")) for key in _FURTHER if chosen[key]}
    for key, path in paths.items():
        try:
            feature_at(features, path)
        except ValueError as error:
            raise ValueError(f'"{name}?{key}={chosen[key]}": {error}') from None
    return paths


def _label(name, features, text, further):
    """The Label of the option label=; None if the examples have other targets and no label was requested.

    Raises:
        ValueError: as derived_labels says.
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
    """Returns serialized record -> the example, a dict; image and mask stay encoded."""
    import tensorflow_datasets as lib

    encoded = [image, *(path[0] for key, path in further.items() if key == "mask" and len(path) == 1)]
    decoders = {key: lib.decode.SkipDecoding() for key in encoded}

    def parse(record):
        values = features.deserialize_example(record, decoders=decoders)
        example = {"image": values[image], **{key: value_at(values, path) for key, path in further.items()}}
        return example if label is None else {**example, "label": label.of(values)}

    return parse


def _class_feature(features, path):
    """The names of the classes in a mask's feature; None if it has no names."""
    import tensorflow_datasets as lib

    feature = feature_at(features, path)
    named = isinstance(feature, lib.features.LabeledImage) and feature.num_classes
    return Table("", tuple(feature.names)) if named else None


def _of_masks(source, known, chosen, data_dir, table):
    """`source` with masks of classes.

    Args:
        source: Records with masks as stored.
        known: the source of the split whose masks say what there is, train.
        chosen: the options.
        data_dir: the folder of files that these name.
        table: of the feature itself, or None.
    """
    given = find_table(data_dir or "", chosen["classes"], chosen["colors"], search=False) or table
    found = look_into_records(known, given)
    mapping = understood(source.name, given, chosen["values"], chosen["ignore"], found)
    report(source.name, source.size, "train" if known is not source else "these", mapping, found, given)
    return records_of_masks(source, mapping)


def _names_of_objects(features, further):
    """The names of the classes of labels=, if examples have boxes= too, and no mask; None for others."""
    import tensorflow_datasets as lib

    if not {"boxes", "labels"} <= further.keys() or "mask" in further:
        return None
    feature = feature_at(features, further["labels"])
    feature = getattr(feature, "feature", feature)  # of a sequence
    return tuple(feature.names) if isinstance(feature, lib.features.ClassLabel) else None


def _of_objects(source, names):
    """`source`, whose examples have boxes and labels, with all that detection takes; reads all records, once."""

    def most():
        counts = source.ordered().map(lambda example: tf.shape(example["labels"])[0]).ignore_errors()
        return int(counts.reduce(0, tf.maximum))

    paths = [path for path, _, _ in source.files]
    most_objects = cached_answer(f"objects of {source.name}, {source.files}", paths, most)
    parse = lambda record: complete(source.parse(record))  # noqa: E731
    return dataclasses.replace(source, class_names=names, parse=parse, most_objects=most_objects)


def _unknown(name, data_dir, error=None):
    """The message about an unknown dataset, with the nearest names, and a folder or file of that name."""
    import tensorflow_datasets as lib

    path = locate(name, data_dir)
    known = lib.list_builders(with_community_datasets=False)
    if name.partition(":")[0].partition("/")[0] in known:  # such as an unknown version: its own message is short
        return f'tensorflow-datasets has no "{name}" (data_dir={data_dir}): {error}'
    near = nearest(name, known, 3)
    text = f'tensorflow-datasets has no "{name}"' + (f" in {data_dir}" if data_dir else "")
    if os.path.isfile(path):
        return (
            f"{text}, but it is a file: a table is csv:{name}; an archive has to be unpacked, and is then folder:PATH."
        )
    return f"{text}." + (f" Did you mean {' or '.join(near)}?" if near else "") + " A folder of images is folder:PATH."


def _builder(name, data_dir):
    """tensorflow-datasets' builder `name`. Raises ValueError if there is none."""
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
            f'"{name}" is a folder: write folder:{name} if you mean its images. As a dataset: {error}'
        ) from None


def _records(name, text, builder, split, parse, class_names, buffer):
    """The Records of a split. Raises ValueError for unknown ones."""
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        valid = ", ".join(builder.info.splits)
        raise ValueError(f'"{name}" has no split "{split}"; its splits: {valid}. ({error})') from None
    files = tuple(
        (str(i.filename), int(i.skip), int(i.take if i.take >= 0 else i.examples_in_shard)) for i in instructions
    )
    return Records(text, class_names, files, parse, buffer)


def tfds(text: str, split: str = "train", data_dir: str | os.PathLike | None = None, buffer: int = 10_000) -> Records:
    """The source of a tensorflow-datasets dataset.

    Args:
        text: "cifar10", "imagenet2012:5.*.*", "my_dataset/config"... Options image= and label= name the image and class
            features, by default "image" and "label"; label= may also derive the class, see derived_labels.py. labels=,
            boxes=, mask=, text= and id= name further features, nested ones as objects.bbox; with any of these the label
            is optional. With boxes= and labels= examples are of objects, for which crowd=, difficult= and area= name
            features, too. With classes=, colors=, values= or ignore= (see masks.py) masks are of classes, and there are
            no labels.
        split: with slices: "train[:90%]".
        data_dir: the prepared data, also in a bucket; None for tensorflow-datasets' default.
        buffer: records in the shuffle buffer.

    Raises:
        ValueError: if the dataset is not prepared, or lacks the split or features.
    """
    import tensorflow_datasets as lib

    name, chosen = split_options(text, image="image", label="", **dict.fromkeys((*_FURTHER, *MEANINGS), ""))
    builder = _builder(name, data_dir)
    if not builder.info.splits:
        raise NotPrepared(
            f'"{name}" is not prepared in {builder.data_path}. Prepare it once, with network: '
            f"tfds build {name} --data_dir={data_dir or '~/tensorflow_datasets'}; or point --data_dir at it."
        )
    features = builder.info.features
    _check_kind(name, features, "image", (chosen["image"],), lib.features.Image)
    further = _further(name, features, chosen)
    table = _class_feature(features, further["mask"]) if "mask" in further else None
    of_masks = any(chosen[key] for key in MEANINGS) or (table is not None and "label" not in features)
    if of_masks and ("mask" not in further or chosen["label"]):
        fix = "name their feature with mask=" if "mask" not in further else "leave out label="
        raise ValueError(f'"{text}": {", ".join(f"{key}=" for key in MEANINGS)} are of masks of classes: {fix}.')
    label = None if of_masks else _label(name, features, chosen["label"], further)
    class_names = () if label is None else label.class_names
    parse = _parser(features, chosen["image"], label, further)
    source = _records(name, text, builder, split, parse, class_names, buffer)
    names = _names_of_objects(features, further) if label is None else None
    if names is not None:
        return _of_objects(source, names)
    if not of_masks:
        return source
    known = _records(name, text, builder, "train", parse, (), buffer) if "train" in builder.info.splits else source
    return _of_masks(source, known, chosen, data_dir, table)
