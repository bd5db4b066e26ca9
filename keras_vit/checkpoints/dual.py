"""Dual encoders from files of both towers: the image encoder takes the way of any other ViT."""

import dataclasses
import pathlib
from typing import Any

from keras_vit.checkpoints.adapt import assign_file
from keras_vit.checkpoints.formats import google_text, huggingface_text
from keras_vit.checkpoints.formats.parsed_text import ParsedText
from keras_vit.checkpoints.reading.files import FileContents
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.io.tokenizer import FILE, Tokenizer
from keras_vit.models import Classifier, TextEncoder, make_text_spec


def split(contents: FileContents) -> tuple[FileContents, ParsedText]:
    """(the contents with the image encoder's arrays alone, the rest).

    Raises:
        ValueError: if the file does not contain both encoders.
    """
    form = next((form for form in (google_text, huggingface_text) if form.matches(contents.arrays)), None)
    if form is None:
        raise ValueError(
            f'"{contents.path}" does not contain a text encoder next to the image encoder: leave text=True out.'
            " Supported: big_vision's SigLIP and SigLIP 2, Hugging Face's SiglipModel, Siglip2Model and CLIPModel."
        )
    try:
        parsed = form.parse(contents)
    except ValueError as error:
        raise ValueError(f'"{contents.path}": {error}') from None
    return dataclasses.replace(contents, arrays=dict(parsed.image), left_out=[]), parsed


def read_tokenizer(source: Any, length: int, folder: pathlib.Path = pathlib.Path()) -> Tokenizer | None:
    """The tokenizer `source`, or that in the file at this path; None for the one in `folder`, or for none."""
    if isinstance(source, Tokenizer):
        return source
    if source is not None:
        return Tokenizer.load(source, length)
    return Tokenizer.load(folder, length) if (folder / FILE).is_file() else None


def join(image: Classifier, parsed: ParsedText, path: pathlib.Path, tokenizer: Any) -> DualEncoder:
    """The dual encoder of a loaded image encoder and the rest of its file.

    Args:
        path: of the file.
        tokenizer: a Tokenizer, the path of its file, or None for the one next to the weights.

    Raises:
        FileNotFoundError: for a tokenizer that does not exist.
        ValueError: if the parts do not fit.
    """
    spec = make_text_spec(parsed.fields)
    found = read_tokenizer(tokenizer, spec.length, pathlib.Path(path).parent)
    text = TextEncoder(spec, dtype=image.dtype_policy)
    assign_file(text, parsed.name_map, parsed.arrays, path)
    width = None if parsed.projection is None else parsed.projection.shape[1]
    model = DualEncoder(image, text, parsed.activation, width, found)
    if parsed.projection is not None:
        model.get_layer("image_projection").kernel.assign(parsed.projection)
    similarity = model.get_layer("similarity")
    similarity.log_scale.assign(parsed.log_scale)
    if parsed.bias is not None:
        similarity.offset.assign(parsed.bias)
    return model
