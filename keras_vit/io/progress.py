"""Progress of long work: one refreshed line on a terminal; in a log a line at the start and one a minute.

    with progress.stage("Embedding the test split", total=360, unit="images") as stage:
        for batch in batches:
            ...
            stage.advance(len(batch))

The commands show the line with `shown`; otherwise stages are info messages, which absl hides in libraries. Of nested
stages the innermost is shown.
"""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator

import keras
from absl import logging

_REFRESH = 0.5  # seconds
_LOG_EVERY = 60.0  # seconds
_CLEAR = "\r\033[K"  # clears the cursor's line
_shown = False
_stages: list["Stage"] = []  # running, innermost last


def time_text(seconds: float) -> str:
    """Seconds in words: "12 s", "3 min 5 s", "2 h 3 min"."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


class Stage:
    """A piece of work, made and yielded by `stage`.

    Args:
        what: a few words, such as "Opening folder:photos".
        total: number of units; None if unknown.
        unit: what is counted.
        show: whether to show it on a terminal outside a command too.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", show: bool = False):
        self._what, self._total, self._unit = what, total, unit
        self._shown = _shown or show and sys.stdout.isatty()
        self._done, self._began = 0, time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="progress", daemon=True)

    def advance(self, count: int = 1) -> None:
        """Counts finished units."""
        self._done += count

    def text(self) -> str:
        """The line: what, how much is done, and for how long."""
        passed = time.monotonic() - self._began
        parts = [time_text(passed)]
        if self._total:
            parts.insert(0, f"{self._done:,} of {self._total:,} {self._unit}".rstrip())
            if 0 < self._done < self._total:
                parts.append(f"{time_text(passed * (self._total / self._done - 1))} left")
        elif self._done:
            parts.insert(0, f"{self._done:,} {self._unit}".rstrip())
        return f"{self._what}: {', '.join(parts)}"

    def _refresh(self):
        while not self._ended.wait(_REFRESH if self._shown else _LOG_EVERY):
            if _stages[-1:] == [self]:
                self._say(self.text())

    def _say(self, text):
        if self._shown:
            print(f"{_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        else:
            logging.info("%s.", text)

    def begin(self) -> None:
        """Announces the work."""
        _stages.append(self)
        self._say(self._what)
        self._thread.start()

    def end(self) -> None:
        """Clears the line. Further calls do nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        _stages.remove(self)
        if self._shown:
            print(_CLEAR, end="", flush=True)


@contextlib.contextmanager
def stage(what: str, total: int | None = None, unit: str = "", show: bool = False) -> Iterator[Stage]:
    """A context for the work `what`; arguments as in Stage."""
    work = Stage(what, total, unit, show)
    work.begin()
    try:
        yield work
    finally:
        work.end()


_TRAINING, _EVALUATION = "the first training step", "the evaluation"


class FirstStep(keras.callbacks.Callback):
    """Shows in fit and evaluate that the first step of each is compiling, before Keras' bar begins."""

    async_safe = True  # on JAX, Keras ends batches in threads

    def __init__(self):
        super().__init__()
        self._begun = set()
        self._under_way: dict[str, Stage] = {}

    def _begin(self, what):
        if what not in self._begun:
            self._begun.add(what)
            work = Stage(f"Compiling {what}, and waiting for its data")
            work.begin()
            self._under_way[what] = work

    def _end(self, what):
        work = self._under_way.pop(what, None)
        if work is not None:
            work.end()

    def end(self) -> None:
        """Ends a running stage; call it when fit or evaluate was interrupted."""
        for what in list(self._under_way):
            self._end(what)

    def on_train_batch_begin(self, batch, logs=None):
        self._begin(_TRAINING)

    def on_train_batch_end(self, batch, logs=None):
        self._end(_TRAINING)

    def on_test_batch_begin(self, batch, logs=None):
        self._begin(_EVALUATION)

    def on_test_batch_end(self, batch, logs=None):
        self._end(_EVALUATION)


@contextlib.contextmanager
def shown(chief: bool = True) -> Iterator[None]:
    """A context that shows stages as one line if stdout is a terminal.

    Args:
        chief: whether this process, of several, is the one that prints.
    """
    global _shown
    if not (chief and sys.stdout.isatty()):
        yield
        return
    _shown = True
    try:
        yield
    finally:
        _shown = False
