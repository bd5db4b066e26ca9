"""The directory of a run: config.json, checkpoints/, metrics.jsonl, tensorboard/, model.keras, report.html."""

import json
import os
import re
from typing import Any

import keras
from absl import logging
from etils import epath

from keras_vit.distribution.strategy import Strategy
from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_text import json_text
from keras_vit.runs.saving import state
from keras_vit.runs.saving.state import Diverged

_CHECKPOINT = re.compile(r"step_(\d+)\.safetensors")
_ONE_DEVICE = Strategy()


class RunDirectory:
    """The directory of one run, at a local path or in a bucket (gs://).

    Attributes:
        path: the directory, which is created.
        strategy: only its chief process writes; in the others, methods that write do nothing.
    """

    def __init__(self, path: os.PathLike | str, strategy: Strategy = _ONE_DEVICE):
        self.path, self.strategy = epath.Path(path), strategy
        self._unwritten = []  # records of metrics that could not be written yet
        self._damaged = set()  # paths of checkpoints that could not be read
        if not strategy.chief:
            return
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self._checkpoints):
            for leftover in folder.glob(".tmp-*"):  # of a run that was killed while writing
                leftover.rmtree() if leftover.is_dir() else leftover.unlink()

    @property
    def model(self) -> epath.Path:
        """The path of the trained model."""
        return self.path / "model.keras"

    @property
    def _checkpoints(self):
        return self.path / "checkpoints"

    def _write(self, path, data):
        if self.strategy.chief:
            write_bytes(path, data)

    def write_json(self, name: str, content: Any) -> None:
        """Writes a JSON file into the directory."""
        self._write(self.path / name, (json_text(content) + "\n").encode())

    def checkpoints(self) -> dict[int, epath.Path]:
        """{step: path} of all checkpoints, in ascending order."""
        paths = self._checkpoints.iterdir() if self._checkpoints.exists() else ()
        matches = ((_CHECKPOINT.fullmatch(p.name), p) for p in paths)
        return dict(sorted((int(match.group(1)), path) for match, path in matches if match))

    def checkpoint(self, step: int) -> epath.Path:
        """The path of the checkpoint of a step."""
        return self._checkpoints / f"step_{step:08d}.safetensors"

    def last_checkpoint(self) -> str:
        """A sentence that names the newest checkpoint that is not damaged."""
        good = [(step, path) for step, path in self.checkpoints().items() if path not in self._damaged]
        return "The last good checkpoint is {1} (step {0}).".format(*good[-1]) if good else "There is no checkpoint yet."

    def save(self, step: int, arrays: state.Arrays, keep: int) -> None:
        """Writes the state at `step`, as returned by state.collect; then deletes all but the `keep` newest checkpoints.

        Raises:
            Diverged: if the state is not finite; nothing is written.
            OSError: if it cannot be written; the existing checkpoints remain.
        """
        if not self.strategy.chief:
            return
        names = state.not_finite(arrays)
        if names:
            what = f"At step {step}, {len(names)} of {len(arrays)} arrays are not finite, including {names[0]}."
            raise Diverged(what, self.last_checkpoint())
        self._write(self.checkpoint(step), state.to_bytes(arrays))
        self._damaged.discard(self.checkpoint(step))
        paths = self.checkpoints()
        # Checkpoints of later steps must be damaged: otherwise the run would have resumed from them.
        kept = [other for other in paths if other <= step][-keep:]
        for other, path in paths.items():
            if other not in kept:
                path.unlink()

    def resume(self, model: keras.Model) -> int:
        """Restores the newest checkpoint that is intact and returns its step, or 0 if there is none. Warns of damaged ones.

        Raises:
            ValueError: if the checkpoint belongs to a different configuration.
        """
        for step, path in reversed(self.checkpoints().items()):
            try:
                arrays = state.from_bytes(path.read_bytes(), path)
            except ValueError as error:
                logging.warning("%s Trying the previous one.", error)
                self._damaged.add(path)
                continue
            state.restore(model, arrays)
            self._forget_after(step)
            return step
        self._forget_after(0)
        return 0

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, oldest first."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:  # half a line, from a process that was killed while appending
                continue
        return records + self._unwritten

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Adds a record to metrics.jsonl. If it cannot be written, warns and keeps the record in memory for the next time."""
        self._unwritten.append(record)
        self.flush_metrics()

    def flush_metrics(self) -> None:
        """Tries again to write the records that are still in memory."""
        if not self._unwritten:
            return
        try:
            self._write_metrics(self.metrics())
        except OSError as error:
            logging.warning("metrics.jsonl could not be written: %s. Records kept in memory: %d.", error, len(self._unwritten))
        else:
            self._unwritten = []

    def _write_metrics(self, records):
        # Rewriting the whole file never leaves half a line; it is small compared to a checkpoint.
        self._write(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())

    def _forget_after(self, step):
        """Drops the metrics of steps that will be repeated."""
        self._write_metrics([record for record in self.metrics() if record["step"] <= step])
