"""Token ids: those of transformers, for small tokenizers of CLIP's, SigLIP's and SigLIP 2's forms."""

import base64
import functools
import json
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.io.sentencepiece import tokenizer_json
from keras_vit.io.tokenizer import KINDS, Tokenizer

pytest.importorskip("tokenizers")
FILE = pathlib.Path(__file__).parent / "tokenizers.json"  # written by original_tokenizers.py
LENGTHS = {"clip": 77, "siglip2": 64, "siglip": 64}


@functools.cache
def golden():
    return json.loads(FILE.read_text())


@functools.cache
def tokenizer(kind, length=None):
    data = golden()["files"][kind]
    data = tokenizer_json(base64.b64decode(data)) if kind == "siglip" else data
    return Tokenizer(data, length or LENGTHS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_transformers(kind):
    texts, expected = golden()["texts"], golden()["numbers"][kind]
    found = tokenizer(kind)(texts)
    assert tokenizer(kind).kind == kind and found.dtype == np.int32 and found.shape == (len(texts), LENGTHS[kind])
    for text, row, numbers in zip(texts, found, expected):
        assert row[: len(numbers)].tolist() == numbers, repr(text)


@pytest.mark.parametrize(("kind", "end", "pad"), [("siglip", 1, 1), ("siglip2", 1, 0), ("clip", None, None)])
def test_texts_are_padded_to_the_full_length(kind, end, pad):
    made = tokenizer(kind)
    end = made.size - 1 if end is None else end
    pad = end if pad is None else pad
    empty, long = made(["", "a " * 300])
    place = int(np.argmax(empty == end))
    assert place <= 1 and set(empty[place + 1 :].tolist()) == {pad}
    assert long[-1] == end


def test_case_and_punctuation_are_each_models_own():
    siglip, siglip2, clip = (tokenizer(kind) for kind in ("siglip", "siglip2", "clip"))
    for made in (siglip, siglip2, clip):
        np.testing.assert_array_equal(made("A Photo"), made("a photo"))
    np.testing.assert_array_equal(siglip("a photo."), siglip("a, photo!"))
    for made in (siglip2, clip):
        assert (made("a photo.") != made("a photo")).any()


def test_files_are_read_by_their_kind(tmp_path):
    (tmp_path / "tokenizer.json").write_text(golden()["files"]["clip"])
    (tmp_path / "spiece.model").write_bytes(base64.b64decode(golden()["files"]["siglip"]))
    assert Tokenizer.load(tmp_path, 77).kind == "clip"
    assert Tokenizer.load(tmp_path / "spiece.model", 64).kind == "siglip"
    tokenizer("clip").save(tmp_path)
    np.testing.assert_array_equal(Tokenizer.load(tmp_path, 77)("a cat"), tokenizer("clip")("a cat"))


@pytest.mark.extended
def test_dual_encoders_keep_their_tokenizer(tmp_path):
    size = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    image = keras_vit.ViT("B/8", image_size=16, classes=None, **size)
    text = keras_vit.TextEncoder("CLIP-B", vocabulary=tokenizer("clip").size, end=tokenizer("clip").size - 1, **size)
    model = keras_vit.DualEncoder(image, text, projection=512, tokenizer=tokenizer("clip"))
    keras_vit.save(model, tmp_path / "model.keras")
    expected = model.encode_text("a photo of a cat.")
    for copy in (keras_vit.load(tmp_path / "model.keras"), keras.saving.load_model(tmp_path / "model.keras")):
        np.testing.assert_array_equal(copy.encode_text("a photo of a cat."), expected)


def test_other_files_and_texts_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        Tokenizer.load(tmp_path, 64)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not the content of a tokenizer.json"):
        Tokenizer.load(tmp_path, 64)
    (tmp_path / "a.model").write_bytes(b"\x0a")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        Tokenizer.load(tmp_path / "a.model", 64)
    with pytest.raises(ValueError, match="Expected texts, got 3"):
        tokenizer("siglip")([3])
