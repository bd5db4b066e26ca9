"""Functions of TensorFlow run eagerly in this room: tracing is most of what the binaries do here."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def untraced(eager_module):
    """Yields nothing; see eager_module."""
