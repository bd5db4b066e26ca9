"""SentencePiece's unigram models, files `spiece.model`, as the content of a tokenizer.json."""

import struct
from collections.abc import Iterator
from typing import Any

_UNIGRAM = 1  # model_type; 2 is BPE


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number of variable length, the place after it) in a protocol buffer."""
    number, shift = 0, 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a protocol buffer's message: integers, or bytes."""
    at, sizes = 0, {1: 8, 5: 4}
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if key & 7 == 2 else (sizes[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _pieces(messages: list[bytes]) -> list[tuple[str, float]]:
    """(text, log probability) of each piece of the vocabulary."""
    found = []
    for message in messages:
        fields = dict(_fields(message))
        score = struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0
        found.append((fields[1].decode("utf-8"), score))
    return found


def tokenizer_json(data: bytes) -> str:
    """The content of the tokenizer.json that splits texts as a SentencePiece model does.

    Args:
        data: content of the `.model` file, with the fields of sentencepiece_model.proto.

    Raises:
        ImportError: without the library tokenizers.
        ValueError: if it is not a unigram model.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    try:
        parts: dict[int, list] = {}
        for field, value in _fields(data):
            parts.setdefault(field, []).append(value)
        pieces = _pieces(parts[1])
        trainer, normaliser = (dict(_fields(parts.get(field, [b""])[0])) for field in (2, 3))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"This is not a SentencePiece model: {error!r}") from None
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise ValueError(
            "Only unigram models of SentencePiece are read. Hugging Face repositories of the model have a"
            " tokenizer.json: use that."
        )
    tokenizer = Tokenizer(models.Unigram(pieces, trainer.get(40, 0), False))
    table = [normalizers.Precompiled(normaliser[2])] if normaliser.get(2) else []
    tokenizer.normalizer = normalizers.Sequence([*table, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always")
    return tokenizer.to_str()
