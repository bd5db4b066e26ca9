"""The directory of a run: config.json, checkpoints/, metrics.jsonl, tensorboard/, model.keras, report.html."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from absl import logging
from etils import epath

from keras_vit.distribution.strategy import Strategy
from keras_vit.io.atomic import remove_leftovers, write_bytes
from keras_vit.io.json_files import json_text
from keras_vit.io.lock import owned
from keras_vit.io.paths import locate, os_errors, paths_in
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.run_state import Diverged

MODEL = "model.keras"
FINISHED = "finished.json"  # marks a complete run; written by runs/seeds.py
_CHECKPOINT = re.compile(r"step_(\d+)\.safetensors")
_BEST = re.compile(r"best_(\d+)\.safetensors")
_ONE_DEVICE = Strategy()


class RunDirectory:
    """A run's directory, at a local path or in a bucket (gs://). Readers change nothing; a run owns it.

    Attributes:
        path: the directory.
        strategy: only its chief process writes; in the others, methods that write do nothing.
        running: RunningMetrics of the checkpoint that `resume` restored, or None.
    """

    def __init__(self, path: os.PathLike | str, strategy: Strategy = _ONE_DEVICE):
        self.path, self.strategy = epath.Path(locate(os.fspath(path))), strategy
        self.running: run_state.RunningMetrics | None = None
        self._lock = None
        self._unwritten = []  # metrics records still to be written
        self._damaged = set()  # paths of unreadable checkpoints

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """A context in which no other process writes to the directory. Every worker enters it; the chief owns it.

        Raises:
            ValueError, OSError: in every worker, if another run is using it, or it cannot be written to.
        """
        with contextlib.ExitStack() as stack:
            error = None
            if self.strategy.chief:
                try:
                    self._lock = stack.enter_context(owned(self.path))
                except (ValueError, OSError) as reason:
                    error = reason
            if self.strategy.any(error is not None):
                raise error or ValueError(f"The first worker cannot write to {self.path}: see its message.")
            if self.strategy.chief:
                self._remove_leftovers()
            try:
                yield
            finally:
                self._lock = None

    def _remove_leftovers(self):
        """Removes half-written files of killed runs; in checkpoints/ only the owner writes."""
        if "://" in str(self.path):  # buckets contain no half-written files
            return
        remove_leftovers(self.path)
        for leftover in paths_in(self._checkpoints, ".tmp-"):
            leftover.unlink()

    @property
    def model(self) -> epath.Path:
        """The path of the trained model."""
        return self.path / MODEL

    @property
    def _checkpoints(self):
        return self.path / "checkpoints"

    @property
    def pictures(self) -> epath.Path:
        """The folder of the evaluators' pictures."""
        return self.path / "pictures"

    def _write(self, path, data):
        if not self.strategy.chief:
            return
        if self._lock is not None:
            self._lock.check()
        write_bytes(path, data)

    def write_json(self, name: str, content: Any) -> None:
        """Writes a JSON file into the directory."""
        self._write(self.path / name, (json_text(content) + "\n").encode())

    @os_errors()
    def begin(self, config: dict[str, Any]) -> None:
        """Writes config.json (OSError if it cannot), and removes a shorter earlier run's outdated finished.json."""
        if self.strategy.chief:
            if self._lock is not None:
                self._lock.check()
            (self.path / FINISHED).unlink(missing_ok=True)
        self.write_json("config.json", config)

    def _steps(self, pattern):
        """{step: path} of the files in checkpoints/ with a matching name, in ascending order."""
        paths = self._checkpoints.iterdir() if self._checkpoints.exists() else ()
        matches = ((pattern.fullmatch(p.name), p) for p in paths)
        return dict(sorted((int(match.group(1)), path) for match, path in matches if match))

    @os_errors()
    def checkpoints(self) -> dict[int, epath.Path]:
        """{step: path} of all checkpoints, in ascending order."""
        return self._steps(_CHECKPOINT)

    @os_errors()
    def best(self) -> dict[int, epath.Path]:
        """{step: path} of the weights saved for the best evaluation so far and earlier ones, in ascending order."""
        return self._steps(_BEST)

    @os_errors()
    def save_best(self, step: int, weights: run_state.Arrays) -> None:
        """Writes the weights of the best evaluation, and deletes earlier ones that no resumed run would need."""
        self._write(self._checkpoints / f"best_{step:08d}.safetensors", run_state.to_bytes(weights))
        paths, covered = self.best(), max(self.checkpoints(), default=0)
        needed = max((other for other in paths if other <= covered), default=0)
        for other, path in paths.items():
            if other < needed:
                path.unlink()

    @os_errors()
    def load_best(self, step: int) -> dict[str, np.ndarray]:
        """The weights that `save_best` wrote at a step; ValueError if the file is damaged."""
        path = self.best()[step]
        return run_state.from_bytes(path.read_bytes(), path)

    def checkpoint(self, step: int) -> epath.Path:
        """The path of the checkpoint of a step."""
        return self._checkpoints / f"step_{step:08d}.safetensors"

    def last_checkpoint(self) -> str:
        """A sentence that names the newest undamaged checkpoint."""
        try:
            good = [(step, path) for step, path in self.checkpoints().items() if path not in self._damaged]
        except OSError as error:  # the sentence is for messages about other errors
            return f"{self._checkpoints} cannot be read now ({error})."
        return (
            "The last good checkpoint is {1} (step {0}).".format(*good[-1]) if good else "There is no checkpoint yet."
        )

    @os_errors()
    def save(
        self, step: int, arrays: run_state.Arrays, keep: int, running: run_state.RunningMetrics | None = None
    ) -> None:
        """Writes the state at `step`, then deletes all but the `keep` newest checkpoints.

        Args:
            arrays: the state, from run_state.collect.
            running: RunningMetrics at that step, or None.

        Raises:
            Diverged: if the state is not finite; nothing is written.
            OSError: if it cannot be written; the existing checkpoints remain.
        """
        if not self.strategy.chief:
            return
        names = run_state.not_finite(arrays)
        if names:
            what = f"At step {step}, {len(names)} of {len(arrays)} arrays are not finite, including {names[0]}."
            raise Diverged(what, self.last_checkpoint())
        self._write(self.checkpoint(step), run_state.to_bytes(arrays, running))
        self._damaged.discard(self.checkpoint(step))
        paths = self.checkpoints()
        # Checkpoints of later steps must be damaged: otherwise the run would have resumed from them.
        kept = [other for other in paths if other <= step][-keep:]
        for other, path in paths.items():
            if other not in kept:
                path.unlink()

    def resume(self, model: keras.Model) -> int:
        """Restores the newest intact checkpoint and returns its step, 0 without any; warns about damaged ones.

        Raises:
            ValueError: if the checkpoint belongs to a different configuration, or if none of several is intact.
            OSError: if it cannot be read, or metrics.jsonl cannot be written.
        """
        checkpoints = self.checkpoints()
        for step, path in reversed(checkpoints.items()):
            with os_errors():
                data = path.read_bytes()
            try:
                arrays = run_state.from_bytes(data, path)
            except ValueError as error:
                logging.warning("%s Trying the previous one.", error)
                self._damaged.add(path)
                continue
            run_state.restore(model, arrays)
            self.running = run_state.running_in(data)
            self._forget_after(step)
            return step
        if checkpoints:
            raise ValueError(
                f"All checkpoints of {self.path} are damaged: {', '.join(path.name for path in checkpoints.values())}."
                f" Restore one from a backup. To start again from step 0, remove {self._checkpoints} or use a new"
                " --workdir."
            )
        self._forget_after(0)
        return 0

    def check_space(self, model: keras.Model, keep: int) -> None:
        """Warns if the disk has no room for a compiled model's checkpoints; buckets have room."""
        if not self.strategy.chief or "://" in str(self.path):
            return
        size = run_state.size(model)
        needed = size * (keep + 1 - min(keep, len(self.checkpoints())))  # the oldest is deleted after the new write
        free = shutil.disk_usage(self.path).free
        if free < needed:
            logging.warning(
                "%s: %.1f MB of disk space are free, and the checkpoints need %.1f MB (%d of %.1f MB, and one being"
                " written). Free some space, or keep fewer: --config.keep=1.",
                *(self.path, free / 1e6, needed / 1e6, keep, size / 1e6),
            )

    @os_errors()
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, oldest first."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        records = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # half a line, from a process that was killed while appending
                continue
            if isinstance(record, dict) and "step" in record:
                records.append(record)
        return records + self._unwritten

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Adds a record to metrics.jsonl; if it cannot be written, warns and keeps it for the next time."""
        self._unwritten.append(record)
        self.flush_metrics()

    def add_measures(self, step: int, measures: dict[str, float]) -> None:
        """Adds measures to the record of that step in metrics.jsonl, or as a new record if there is none."""
        records = self.metrics()
        if not any(record["step"] == step for record in records):
            records.append({"step": step})
        next(record for record in reversed(records) if record["step"] == step).update(measures)
        try:
            self._write_metrics(records)
        except OSError as error:
            logging.warning("metrics.jsonl could not be written: %s. Not in it: %s.", error, measures)
        else:
            self._unwritten = []

    def flush_metrics(self) -> None:
        """Retries writing the records still in memory."""
        if not self._unwritten:
            return
        try:
            self._write_metrics(self.metrics())
        except OSError as error:
            logging.warning(
                "metrics.jsonl could not be written: %s. Records kept in memory: %d.", error, len(self._unwritten)
            )
        else:
            self._unwritten = []

    def _write_metrics(self, records):
        # Rewriting the file, small next to a checkpoint, never leaves half a line.
        self._write(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())

    def _forget_after(self, step):
        """Drops the metrics and best weights of steps that will be repeated."""
        records = self.metrics()
        kept = [record for record in records if record["step"] <= step]
        if len(kept) < len(records):  # a directory in which nothing has run stays empty
            self._write_metrics(kept)
        for later, path in self.best().items():
            if later > step and self.strategy.chief:
                path.unlink()
