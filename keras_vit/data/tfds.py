"""Datasets prepared by tensorflow-datasets, read as encoded records."""

from keras_vit.data.source import Records


def tfds(name, split="train", data_dir=None, buffer=10_000):
    """The source of a tensorflow-datasets dataset that has features "image" and "label".

    Args:
        name: "cifar10", "imagenet2012:5.*.*", "my_dataset/config"...
        split: with slices: "train[:90%]".
        data_dir: where the prepared data is; None for tensorflow-datasets' own place.
        buffer: records in the shuffle buffer.

    Raises:
        ValueError: if the dataset has not been prepared, or has no such split or features.
    """
    import tensorflow_datasets as lib

    try:
        builder = lib.builder(name, data_dir=data_dir)
    except lib.core.registered.DatasetNotFoundError as error:
        raise ValueError(f'tensorflow-datasets has no "{name}" (data_dir={data_dir}): {error}') from None
    if not builder.info.splits:
        raise ValueError(
            f'"{name}" is not prepared in {builder.data_path}. Prepare it once, with network: '
            f"tfds build {name} --data_dir={data_dir or '~/tensorflow_datasets'}; or point --data_dir at it."
        )
    features = builder.info.features
    if not {"image", "label"} <= set(features):
        raise ValueError(f'"{name}" has features {sorted(features)}; "image" and "label" are needed.')
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        valid = ", ".join(builder.info.splits)
        raise ValueError(f'"{name}" has no split "{split}"; its splits: {valid}. ({error})') from None
    files = tuple((str(i.filename), int(i.skip), int(i.take if i.take >= 0 else i.examples_in_shard)) for i in instructions)

    def parse(record):
        example = features.deserialize_example(record, decoders={"image": lib.decode.SkipDecoding()})
        return example["image"], example["label"]

    return Records(name, tuple(features["label"].names), files, parse, buffer)
