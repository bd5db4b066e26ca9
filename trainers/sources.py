"""A config's data source, as far as its text tells. Imports no engine."""

_PLACEHOLDERS = {
    "folder": ("PHOTOS", "a folder with one subfolder of images per class"),
    "images": ("PHOTOS", "a folder of images"),
    "csv": ("FILE.csv", "a table of images and labels"),
    "jsonl": ("FILE.jsonl", "a table of images and labels"),
    "tfrecord": ("FOLDER", "TFRecord files, as keras-vit-prepare writes them"),
}


def check_source(values):
    """Refuses a source that only says which kind of data a recipe takes, such as "folder:PATH".

    Args:
        values: the flags. A plan needs no source if it is told the numbers of examples and classes.

    Raises:
        ValueError: saying what to give.
    """
    if values.dry_run and values.examples and values.classes:
        return
    kind, _, path = str(values.config.data.source).partition("?")[0].partition(":")
    if kind in _PLACEHOLDERS and path in ("", "PATH"):
        name, what = _PLACEHOLDERS[kind]
        raise ValueError(f"This config needs data of yours: --config.data.source={kind}:{name}, {what}.")
