"""Progress: nothing for quick work, one line that is refreshed on a terminal, log lines elsewhere."""

import io
import logging
import threading

from keras_vit.io import progress
from keras_vit.io.progress import Progress


class Terminal(io.StringIO):
    """What is shown, and a flag that is set as soon as something is."""

    def __init__(self):
        super().__init__()
        self.shown = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        super().write(text)
        self.shown.set()


def test_quick_work_shows_nothing(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    with Progress("Reading", "files") as work:
        work.add(3)
    assert progress.sys.stderr.getvalue() == ""


def test_on_a_terminal_one_line_is_refreshed_and_cleared(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    with Progress("Reading the folder x", "files", total=2000) as work:
        assert progress.sys.stderr.shown.wait(10)
        work.add(1234)
        assert str(work) == "Reading the folder x: 1,234 of 2,000 files"
    text = progress.sys.stderr.getvalue()
    assert text.startswith("\r\033[KReading the folder x: 0 of 2,000 files") and text.endswith("\r\033[K") and "\n" not in text


def test_elsewhere_it_is_logged(monkeypatch, caplog):
    logging.getLogger("absl").propagate = True
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    logged = threading.Event()
    monkeypatch.setattr(progress.logging, "info", lambda *args: logged.set())
    with Progress("Reading", "files"):
        assert logged.wait(10)
