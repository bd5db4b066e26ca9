"""A run's directory: config.json, checkpoints/, metrics.jsonl, tensorboard/, model.keras, report.html."""

import json
import re

from absl import logging
from etils import epath

from keras_vit.training import state
from keras_vit.training.files import write_bytes

_CHECKPOINT = re.compile(r"step_(\d+)\.safetensors")


class RunDirectory:
    """The files of one run, at a local path or in a bucket (gs://).

    Attributes:
        path: of the directory, which is made.
    """

    def __init__(self, path):
        self.path = epath.Path(path)
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / "checkpoints"):
            for left in folder.glob(".tmp-*"):  # what a killed run was writing
                left.rmtree() if left.is_dir() else left.unlink()

    @property
    def model(self):
        return self.path / "model.keras"

    def write_json(self, name, content):
        write_bytes(self.path / name, (json.dumps(content, indent=2, default=str) + "\n").encode())

    def checkpoints(self):
        """{step: path}, ascending."""
        found = ((_CHECKPOINT.fullmatch(p.name), p) for p in (self.path / "checkpoints").iterdir())
        return dict(sorted((int(match.group(1)), path) for match, path in found if match))

    def save(self, model, step, keep):
        """Writes the state at `step` and deletes all but the `keep` newest checkpoints."""
        path = self.path / "checkpoints" / f"step_{step:08d}.safetensors"
        write_bytes(path, state.to_bytes(state.collect(model)))
        for old in list(self.checkpoints().values())[:-keep]:
            old.unlink()

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
            except ValueError:  # the line that a killed run was writing
                continue
        return records

    def append_metrics(self, record):
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _forget_after(self, step):
        """Drops the metrics of steps that will be taken again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_bytes(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())
