"""Malformed checkpoints: each is refused quickly, with a ValueError that helps; nothing is executed, written or left
over.

The cases are in malformed.py (bytes), malformed_models.py (arrays and metadata) and malformed_folders.py (configs,
folders, .keras).
"""

import contextlib
import re
import resource
import shutil
import signal
import sys
import zlib

import malformed_folders  # noqa: F401, adds its cases
import numpy as np
import pytest
from golden_files import golden_arrays
from malformed import CASES, FORMS, damaged, good, put
from malformed_models import written

import keras_vit
from keras_vit.models import families

# Python's own messages, which show that a value was used unchecked.
INTERNALS = re.compile(
    r"NoneType|unhashable|has no attribute|object is not|not subscriptable|unexpected keyword|positional argument|out"
    r" of range"
    r"|KeyError|IndexError|TypeError|AttributeError|invalid literal|could not convert|not supported between"
)


@contextlib.contextmanager
def limits():
    """20 seconds and 500 MB."""

    def stop(*_):
        raise TimeoutError("load hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert kilobytes / (1024 if sys.platform == "darwin" else 1) < 500_000


@pytest.fixture(scope="module")
def models():
    """{constructor and arguments: model}: the same few models are built for hundreds of files."""
    return {}


@pytest.fixture
def built_once(models, monkeypatch):
    """`load` builds each model once; a refused file never returns it."""

    def once(constructor):
        def build(*config, **arguments):
            key = (constructor, repr([sorted(given.items()) for given in (*config, arguments)]))
            if key not in models:
                models[key] = constructor(*config, **arguments)
            return models[key]

        return build

    monkeypatch.setattr(families, "build", once(families.build))
    for family in families.FAMILIES.values():
        monkeypatch.setattr(family.model, "from_config", once(family.model.from_config))


def tree(folder):
    return sorted((str(path), path.lstat().st_size) for path in folder.rglob("*"))


def same_models(one, other):
    return one.spec == other.spec and all(
        np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights(), strict=True)
    )


SORTS = sorted({name.split()[0] for name in CASES})


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("sort", SORTS)
def test_is_refused(sort, tmp_path, monkeypatch, built_once):
    for name in CASES:
        if name.split()[0] == sort:
            folder = tmp_path / str(zlib.crc32(name.encode()))
            folder.mkdir()
            monkeypatch.chdir(folder)  # a payload with a relative path would show here
            try:
                with limits():
                    assert_refused(name, folder)
            except Exception as error:
                raise AssertionError(name) from error
            shutil.rmtree(folder)


def assert_refused(name, folder):
    path = CASES[name](folder, np.random.default_rng(zlib.crc32(name.encode())))
    before = tree(folder)
    with pytest.raises(ValueError) as caught:
        keras_vit.load(path)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert str(folder) in message and len(message.replace(str(folder), "")) > 30
    assert not INTERNALS.search(message), message
    assert tree(folder) == before


def test_there_are_cases_of_every_sort():
    assert len(CASES) >= 100
    some = "truncated zip_bomb object_array shape metadata_config setting index keras_call no_file"
    assert set(some.split()) <= set(SORTS)


@pytest.mark.extended
@pytest.mark.parametrize("form", [*FORMS, "bit", "bit keras"])
def test_the_files_are_good_before_they_are_damaged(form, tmp_path):
    """So a refusal is due to the damage: the intact files load, after one as well."""
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        keras_vit.load(damaged(form, tmp_path, lambda data: data[:-100]))
    assert keras_vit.load(put(tmp_path, good(form))).classes == 5


@pytest.mark.parametrize("form", FORMS)
def test_random_damage_is_refused_or_harmless(form, tmp_path):
    """Some bytes of an archive do not matter to us (dates, permissions); every other change is noticed."""
    rng = np.random.default_rng(0)
    whole = keras_vit.load(put(tmp_path, good(form)))
    refused = 0
    for _ in range(16):

        def damage(data):
            offset = rng.integers(len(data) - 8)
            return data[:offset] + rng.bytes(rng.integers(1, 8)) + data[offset + 8 :]

        try:
            assert same_models(whole, keras_vit.load(damaged(form, tmp_path, damage)))
        except ValueError as error:
            assert isinstance(error, ValueError) and str(tmp_path) in str(error)
            refused += 1
    assert refused >= 12


@pytest.mark.parametrize("name", ["vit_token", "timm_vit"])
def test_double_precision_is_not_damage(name, tmp_path):
    arrays = golden_arrays(name)
    (tmp_path / "double").mkdir()
    single = keras_vit.load(written(name, tmp_path, arrays))
    assert same_models(
        single, keras_vit.load(written(name, tmp_path / "double", {n: a.astype("float64") for n, a in arrays.items()}))
    )


@pytest.mark.parametrize("files", [{}, {"config.json": {}}, {"weights.bin": b"1"}])
def test_a_folder_without_weights(files, tmp_path):
    folder = tmp_path / "model.npz"
    folder.mkdir()
    for name, content in files.items():
        put(folder, {name: content})
    with pytest.raises(FileNotFoundError, match="model.safetensors") as caught:
        keras_vit.load(folder)
    assert str(folder) in str(caught.value)
