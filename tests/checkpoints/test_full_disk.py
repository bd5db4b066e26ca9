"""A disk that is full while a model is written: an OSError, in every format, and what was there is as it was."""

import os
import resource

import pytest

import keras_vit


@pytest.fixture
def full(capsys):
    """Files may have no more than 10 bytes while full(True), as many as they like after full(False)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(on):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 if on else before[0], before[1]))

    yield limit
    limit(False)


@pytest.mark.parametrize(
    ("name", "format"), [("m.keras", "keras"), ("m.npz", "google"), ("m", "timm"), ("m", "huggingface")]
)
def test_nothing_is_lost(tiny, tmp_path, full, name, format):
    model = tiny(image_size=(8, 8))
    keras_vit.save(model, tmp_path / name, format)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    full(True)
    try:
        with pytest.raises(OSError):
            keras_vit.save(model, tmp_path / name, format)
    finally:
        full(False)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert os.listdir(tmp_path) == [name]
