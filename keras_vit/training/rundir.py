"""A run's directory: config.json, checkpoints/, metrics.jsonl, tensorboard/, model.keras, report.html."""

import json
import re

from absl import logging
from etils import epath

from keras_vit.training import state
from keras_vit.training.faults import Diverged
from keras_vit.training.files import write_bytes
from keras_vit.training.strategy import Strategy

_CHECKPOINT = re.compile(r"step_(\d+)\.safetensors")
_ONE_DEVICE = Strategy()


class RunDirectory:
    """The files of one run, at a local path or in a bucket (gs://).

    Attributes:
        path: of the directory, which is made.
        strategy: whose chief process alone writes; in the others, what writes does nothing.
    """

    def __init__(self, path, strategy=_ONE_DEVICE):
        self.path, self.strategy = epath.Path(path), strategy
        self._unwritten = []  # records of metrics that the disk has refused
        self._damaged = set()  # paths of checkpoints that could not be read
        if not strategy.chief:
            return
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self._checkpoints):
            for left in folder.glob(".tmp-*"):  # what a killed run was writing
                left.rmtree() if left.is_dir() else left.unlink()

    @property
    def model(self):
        return self.path / "model.keras"

    @property
    def _checkpoints(self):
        return self.path / "checkpoints"

    def _write(self, path, data):
        if self.strategy.chief:
            write_bytes(path, data)

    def write_json(self, name, content):
        self._write(self.path / name, (json.dumps(content, indent=2, default=str) + "\n").encode())

    def checkpoints(self):
        """{step: path}, ascending."""
        paths = self._checkpoints.iterdir() if self._checkpoints.exists() else ()
        found = ((_CHECKPOINT.fullmatch(p.name), p) for p in paths)
        return dict(sorted((int(match.group(1)), path) for match, path in found if match))

    def checkpoint(self, step):
        """The path of the checkpoint of a step."""
        return self._checkpoints / f"step_{step:08d}.safetensors"

    def last_checkpoint(self):
        """A sentence that names the newest checkpoint, but for damaged ones."""
        good = [(step, path) for step, path in self.checkpoints().items() if path not in self._damaged]
        return "The last good checkpoint is {1} (step {0}).".format(*good[-1]) if good else "There is no checkpoint yet."

    def save(self, step, arrays, keep):
        """Writes the state at `step`, which state.collect gives; then deletes all but the `keep` newest checkpoints.

        Raises:
            Diverged: if the state is not finite; nothing is written.
            OSError: if it cannot be written; what was there stays.
        """
        if not self.strategy.chief:
            return
        broken = state.not_finite(arrays)
        if broken:
            what = f"At step {step}, {len(broken)} of {len(arrays)} arrays are not finite, {broken[0]} among them."
            raise Diverged(what, self.last_checkpoint())
        self._write(self.checkpoint(step), state.to_bytes(arrays))
        self._damaged.discard(self.checkpoint(step))
        found = self.checkpoints()
        # Newer ones are left from before: damaged, or the run would have gone on from them.
        kept = [other for other in found if other <= step][-keep:]
        for other, path in found.items():
            if other not in kept:
                path.unlink()

    def resume(self, model):
        """Restores the newest checkpoint that is whole; returns its step, or 0. Damaged ones are named in a warning.

        Raises:
            ValueError: if the checkpoint is of another configuration.
        """
        for step, path in reversed(self.checkpoints().items()):
            try:
                arrays = state.from_bytes(path.read_bytes(), path)
            except ValueError as error:
                logging.warning("%s Trying the one before.", error)
                self._damaged.add(path)
                continue
            state.restore(model, arrays)
            self._forget_after(step)
            return step
        self._forget_after(0)
        return 0

    def metrics(self):
        """The records of metrics.jsonl, oldest first."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:  # half a line, of a program that was killed while it appended
                continue
        return records + self._unwritten

    def append_metrics(self, record):
        """Adds a record to metrics.jsonl, or warns that the disk refuses it and keeps it in memory for the next time."""
        self._unwritten.append(record)
        self.flush_metrics()

    def flush_metrics(self):
        """Tries again to write the records that wait in memory."""
        if not self._unwritten:
            return
        try:
            self._write_metrics(self.metrics())
        except OSError as error:
            logging.warning(
                "metrics.jsonl could not be written: %s. Records that wait in memory: %d.", error, len(self._unwritten)
            )
        else:
            self._unwritten = []

    def _write_metrics(self, records):
        # The whole file, for that leaves no torn line; it is small beside one checkpoint.
        self._write(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())

    def _forget_after(self, step):
        """Drops the metrics of steps that will be taken again."""
        self._write_metrics([record for record in self.metrics() if record["step"] <= step])
