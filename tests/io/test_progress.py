"""What long work says: one line on a terminal, few lines in a log, and nothing runs into a bar."""

import logging

import pytest

from keras_vit.io import progress
from keras_vit.io.progress import FirstStep, stage


@pytest.fixture
def messages(caplog):
    """The messages so far: messages()."""
    logging.getLogger("absl").propagate = True
    with caplog.at_level("INFO", "absl"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_log_has_a_line_at_the_beginning_and_then_few(messages, monkeypatch, capsys):
    with stage("Opening folder:photos"):
        assert messages() == ["Opening folder:photos."]
    monkeypatch.setattr(progress, "_LOG_EVERY", 0.01)
    with stage("Embedding", 4, "images") as work:
        work.advance(3)
        while len(messages()) < 3:
            pass
    assert messages()[2].startswith("Embedding: 3 of 4 images, 0 s, 0 s left") and capsys.readouterr() == ("", "")


def test_a_terminal_has_one_line_that_is_cleared_in_the_end(messages, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_shown", True)
    with stage(
        "Loading a model with a name that is much longer than the terminal is wide, as names of files sometimes are"
    ):
        pass
    printed = capsys.readouterr().out
    assert printed.startswith("\r\033[KLoading a model") and printed.endswith("\r\033[K") and "\n" not in printed
    assert len(printed) < 90 and messages() == []


def test_of_stages_within_each_other_the_innermost_speaks(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_shown", True)
    monkeypatch.setattr(progress, "_REFRESH", 0.01)
    with stage("Measuring"):
        with stage("Embedding"):
            capsys.readouterr()
            while "Embedding: 0 s" not in (printed := capsys.readouterr().out):
                pass
            assert "Measuring" not in printed
        while "Measuring: 0 s" not in capsys.readouterr().out:
            pass


def test_compiling_the_first_step_is_said_once(messages):
    first = FirstStep()
    for _ in range(2):
        first.on_train_batch_begin(0)
        first.on_train_batch_end(0)
        first.on_test_batch_begin(0)
        first.on_test_batch_end(0)
    first.on_train_batch_begin(1)
    first.end()
    said = [f"Compiling {what}, and waiting for its data." for what in ("the first training step", "the evaluation")]
    assert messages() == said and progress._stages == []
