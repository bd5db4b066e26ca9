"""What tests of sources share: a cache folder, and the messages."""

import logging

import pytest


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """The file's own cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_VIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def told(caplog):
    """A function: the messages so far."""
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", logger="absl")
    return lambda: [record.getMessage() for record in caplog.records]
