"""The images that a run trained on and those that it held out, for measuring its model later."""

import dataclasses
import os
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import digest_of_files, example_names
from keras_vit.data.usual_splits import FILES
from keras_vit.io.paths import locate
from keras_vit.io.suggest import counted
from keras_vit.runs.prepare import open_data


@dataclasses.dataclass(frozen=True)
class OwnData:
    """The data of a run.

    Attributes:
        run: the run directory, for messages.
        data: its config.data.
        files: {"training", "evaluation"}: digests of the files that it used; {} if it did not record them.
    """

    run: str
    data: dict[str, Any]
    files: dict[str, str]

    @property
    def splits(self) -> tuple[str, str]:
        """Its splits for training and evaluation."""
        return self.data["train"], self.data["evaluation"]

    def is_source(self, text: str, data_dir: str | None) -> bool:
        """Whether `text` names the run's source, however it writes the path."""
        return _place(self.data["source"], data_dir) == _place(text, data_dir)


def file_digests(train: Source, held_out: Source) -> dict[str, Any]:
    """The entry "files" of a run's config.json: digests of its images' names, None for data that is not files."""
    return {"training": digest_of_files(train), "evaluation": digest_of_files(held_out)}


def _place(text, data_dir):
    """A source's text with a real path."""
    text = with_kind(text, data_dir)
    kind, _, path = text.partition(":")
    if kind not in FILES or "://" in path:
        return text
    path, mark, options = path.partition("?")
    return f"{kind}:{os.path.realpath(locate(path, data_dir))}{mark}{options}"


def check_held_out(own: OwnData, text: str, split: str, source: Source, data_dir: str | None, asked: bool) -> None:
    """Warns if images to measure were trained on, or if that cannot be known.

    Args:
        own: the data of the measured model's run.
        text, split: the images to measure, from the run's source.
        source: the opened split.
        data_dir: base of relative paths.
        asked: whether the user chose the split.

    Raises:
        ValueError: if the split is the run's own, and now contains other images.
    """
    found = digest_of_files(source)
    if found is None or (split == own.splits[1] and found == own.files.get("evaluation")):
        return
    options = {"shuffle_buffer": 1, "exclude": "", **own.data, "source": text, "cache": False}
    training, _ = open_data(ConfigDict(options), data_dir)
    if digest_of_files(training) == own.files.get("training"):
        shared = len(set(example_names(source)) & set(example_names(training)))
        if shared:
            logging.warning(
                "%s was trained on %s of the %s of %s, %s: the measures say nothing about new images.",
                *(own.run, f"{shared:,}", counted(source.size, "image"), text, split),
            )
        return
    why = (
        f"Files of {text} were added, removed or renamed since {own.run} was trained"
        if own.files.get("training")
        else f"{own.run} was trained by a version of keras_vit that split {text} in another way"
    )
    doubt = f"{why}, so {split} may contain images that it was trained on."
    if not asked:
        raise ValueError(
            f"{doubt} Pass other images with --data, or name the split to measure it anyway, with a warning."
        )
    logging.warning("%s", doubt)
