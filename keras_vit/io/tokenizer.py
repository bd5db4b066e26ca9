"""Texts to token ids, as CLIP, SigLIP and SigLIP 2 were trained, by the library Hugging Face tokenizers."""

import os
import pathlib
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.io.sentencepiece import tokenizer_json

FILE = "tokenizer.json"
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _without_punctuation(text: str) -> str:
    """Lower case, without ASCII punctuation and repeated spaces: SigLIP's text in training and evaluation."""
    return re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()


def _lower_first(tokenizer):
    """Makes a tokenizer lower the case before its own normalisation; SigLIP 2's files do not say so."""
    from tokenizers import normalizers

    parts = [normalizers.Lowercase(), *filter(None, [tokenizer.normalizer])]
    tokenizer.normalizer = normalizers.Sequence(parts)


def _unchanged(value):
    return value


class Kind(NamedTuple):
    """How a family of models reads texts.

    Attributes:
        start, end, pad: tokens before and after a text, and after that up to the full length; start may be None.
        clean: a function from text to text, before the file's own normalisation.
        prepare: a function that changes the library's tokenizer in place.
    """

    start: str | None
    end: str
    pad: str
    clean: Callable[[str], str] = _unchanged
    prepare: Callable[[Any], Any] = _unchanged


# A file's kind is the first with its end in the vocabulary. CLIP's files normalise by themselves.
KINDS = {
    "clip": Kind("<|startoftext|>", "<|endoftext|>", "<|endoftext|>"),
    "siglip2": Kind(None, "<eos>", "<pad>", prepare=_lower_first),
    "siglip": Kind(None, "</s>", "</s>", clean=_without_punctuation),
}


def _library():
    try:
        import tokenizers
    except ImportError:
        raise ImportError("Texts need tokenizers, which is not installed: pip install tokenizers.") from None
    return tokenizers


class Tokenizer:
    """Texts to token ids (b, length), as the model's authors do: canonicalised, cut, ended and padded.

    Args:
        data: the content of a tokenizer.json.
        length: tokens per text, start and end included.

    Attributes:
        kind: a row of KINDS, by the vocabulary.
        size: number of different tokens.
        start: ids of the tokens before a text, one or none.
        end, pad: ids of the token after a text, and of those up to the full length.

    Names of special tokens in a text, such as "</s>", count as these tokens.

    Raises:
        ImportError: without the library tokenizers.
        ValueError: for data of another kind.
    """

    def __init__(self, data: str, length: int):
        library = _library()
        try:
            self._tokenizer = library.Tokenizer.from_str(data)
        except Exception as error:  # the library raises only this class
            raise ValueError(f"This is not the content of a {FILE}: {error}") from None
        find = self._tokenizer.token_to_id
        self.kind = next((name for name, kind in KINDS.items() if find(kind.end) is not None), None)
        if self.kind is None:
            ends = ", ".join(kind.end for kind in KINDS.values())
            raise ValueError(f"The tokenizer is not CLIP's, SigLIP's or SigLIP 2's: its vocabulary has none of {ends}.")
        kind = KINDS[self.kind]
        self.data, self.length, self._clean = data, length, kind.clean
        kind.prepare(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        start = [] if kind.start is None else [find(kind.start)]
        pad = find(kind.pad)
        self.start, self.end = start, find(kind.end)
        self.pad = self.end if pad is None else pad
        self.size = self._tokenizer.get_vocab_size()

    @classmethod
    def load(cls, path: str | os.PathLike, length: int) -> "Tokenizer":
        """The tokenizer of a tokenizer.json, of SentencePiece's `.model` (SigLIP), or of a folder with the first.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: for another file.
        """
        place = pathlib.Path(path).expanduser()
        place = place / FILE if place.is_dir() else place
        if not place.is_file():
            raise FileNotFoundError(
                f'There is no file "{place}". Hugging Face repositories of the model have it;'
                " keras_vit.Tokenizer.train makes one of your own texts."
            )
        _library()
        try:
            data = place.read_bytes()
            return cls(tokenizer_json(data) if place.suffix == ".model" else data.decode("utf-8"), length)
        except ValueError as error:
            raise ValueError(f'"{place}": {error}') from None

    @classmethod
    def train(cls, texts: Iterable[str], size: int, length: int) -> "Tokenizer":
        """A new tokenizer of SigLIP's kind, with byte pairs of `texts`, for a text encoder with random weights.

        Args:
            texts: such as the captions of the training images.
            size: number of tokens, 258 or more; fewer if the texts are few.
            length: as above.

        Raises:
            ValueError: for a smaller size.
        """
        _library()
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        letters = pre_tokenizers.ByteLevel.alphabet()
        special = ["<unk>", KINDS["siglip"].end]
        if size < len(letters) + len(special):
            raise ValueError(
                f"size={size}: expected {len(letters) + len(special)} or more, bytes and the end of texts."
            )
        made = Model(models.BPE(unk_token=special[0]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=letters, show_progress=False
        )
        made.train_from_iterator(map(KINDS["siglip"].clean, texts), trainer)
        return cls(made.to_str(), length)

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """The token ids of texts: (b, length) int32; (1, length) for one text.

        Raises:
            ValueError: for anything but texts.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"Expected texts, got {wrong[0]!r}.")
        found = self._tokenizer.encode_batch([self._clean(text) for text in texts], add_special_tokens=False)
        numbers = np.full((len(texts), self.length), self.pad, "int32")
        for row, encoding in zip(numbers, found):
            kept = encoding.ids[: self.length - len(self.start) - 1]
            text = [*self.start, *kept, self.end]
            row[: len(text)] = text
        return numbers

    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer.json into a folder, which is created if necessary."""
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        pathlib.Path(folder, FILE).write_text(self.data, "utf-8")
