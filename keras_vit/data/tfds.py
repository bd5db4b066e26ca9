"""Datasets prepared by tensorflow-datasets, read as encoded records."""

from keras_vit.data.paths import options
from keras_vit.data.source import Records


def _feature(name, features, key, kind):
    """The feature `key`, of class `kind`.

    Raises:
        ValueError: if it is not there or is another, naming those that would do.
    """
    feature = features[key] if key in features else None
    if isinstance(feature, kind):
        return feature
    valid = [other for other in features if isinstance(features[other], kind)]
    found = f"is {type(feature).__name__}" if feature else "is not there"
    which = {"Image": "image", "ClassLabel": "label"}[kind.__name__]
    mend = f' Say "{name}?{which}={valid[0]}". Valid: {", ".join(valid)}.' if valid else " It has none: it cannot be used here."
    raise ValueError(f'"{name}": its feature "{key}" should be one {kind.__name__} an example, but {found}.{mend}')


def tfds(text, split="train", data_dir=None, buffer=10_000):
    """The source of a tensorflow-datasets dataset that has an image and one class label an example.

    Args:
        text: "cifar10", "imagenet2012:5.*.*", "my_dataset/config"...; the options image= and label= name features that are not called so.
        split: with slices: "train[:90%]".
        data_dir: where the prepared data is, also in a bucket; None for tensorflow-datasets' own place.
        buffer: records in the shuffle buffer.

    Raises:
        ValueError: if the dataset has not been prepared, or has no such split or features.
    """
    import tensorflow_datasets as lib

    name, keys = options(text, image="image", label="label")
    try:
        builder = lib.builder(name, data_dir=data_dir)
    except (lib.core.registered.DatasetNotFoundError, AssertionError) as error:
        raise ValueError(f'tensorflow-datasets has no "{name}" (data_dir={data_dir}): {error}') from None
    if not builder.info.splits:
        raise ValueError(
            f'"{name}" is not prepared in {builder.data_path}. Prepare it once, with network: '
            f"tfds build {name} --data_dir={data_dir or '~/tensorflow_datasets'}; or point --data_dir at it."
        )
    features, image, label = builder.info.features, keys["image"], keys["label"]
    _feature(name, features, image, lib.features.Image)
    class_label = _feature(name, features, label, lib.features.ClassLabel)
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        valid = ", ".join(builder.info.splits)
        raise ValueError(f'"{name}" has no split "{split}"; its splits: {valid}. ({error})') from None
    files = tuple((str(i.filename), int(i.skip), int(i.take if i.take >= 0 else i.examples_in_shard)) for i in instructions)

    def parse(record):
        example = features.deserialize_example(record, decoders={image: lib.decode.SkipDecoding()})
        return example[image], example[label]

    return Records(text, tuple(class_label.names), files, parse, buffer)
