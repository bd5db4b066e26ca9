"""How far long work is: on a terminal one line that is refreshed, elsewhere a line in the log now and then."""

import sys
import threading

from absl import logging

_FIRST, _REFRESH, _LOG = 1.0, 0.5, 60.0  # seconds


class Progress:
    """A context of work that may take long. Work of less than a second shows nothing.

    Args:
        what: is being done: "Reading the folder photos".
        unit: of what is counted, in the plural: "files".
        total: how many there will be; None if that is not known.
    """

    def __init__(self, what: str, unit: str, total: int | None = None):
        self.what, self.unit, self.total, self.count = what, unit, total, 0
        self._lock, self._done = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def add(self, count: int = 1) -> None:
        """Counts further units; any thread may call it."""
        with self._lock:
            self.count += count

    def __str__(self):
        total = "" if self.total is None else f" of {self.total:,}"
        return f"{self.what}: {self.count:,}{total} {self.unit}"

    def _show(self):
        terminal, wait = sys.stderr.isatty(), _FIRST
        while not self._done.wait(wait):
            if terminal:
                sys.stderr.write(f"\r\033[K{self}")
                sys.stderr.flush()
            else:
                logging.info("%s", self)
            wait = _REFRESH if terminal else _LOG
        if terminal and wait == _REFRESH:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._done.set()
        self._thread.join()
