"""Functions of TensorFlow run eagerly in this room: tracing is most of evaluations of so few images."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def untraced(eager_module):
    """Yields nothing; see eager_module."""
