"""Every test has its log lines, and does not count pixels unless it asks for `shares`."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    """The lines that opening a source logs."""
    lines = []
    for module in ("annotations.opening", "sources.classes_file"):
        monkeypatch.setattr(f"keras_vit.data.{module}.log_once", lambda level, text: lines.append(text))
    return lines


@pytest.fixture(autouse=True)
def without_shares(own_cache, request, monkeypatch):
    """Leaves out the share of each class, which takes a second, unless the test asks for `shares`."""
    if "shares" not in request.fixturenames:

        def none(source):
            return (0, np.zeros(len(source.class_names) + 1, "int64"))

        monkeypatch.setattr("keras_vit.data.annotations.mask_source._class_shares", none)


@pytest.fixture
def shares():
    pass
