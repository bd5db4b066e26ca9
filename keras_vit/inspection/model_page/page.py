"""Build a model's page and write it to a folder."""

import json
import os
import re
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.answers import bind
from keras_vit.fit.checks.inputs import check_images
from keras_vit.inspection import html_report
from keras_vit.inspection.attention import attention_blocks
from keras_vit.inspection.model_page import page_images, sections
from keras_vit.inspection.model_page.subject import Section, Subject, class_number
from keras_vit.inspection.photographs import evenly
from keras_vit.io.atomic import check_folder, replacing
from keras_vit.io.paths import locate
from keras_vit.io.suggest import counted
from keras_vit.models import taps

PAGE = "index.html"
_NUMBERS = "inspection.json"
_OURS = re.compile(
    r"index\.html|inspection\.json|(filters|positions|attention_distance|attention_entropy|cka|images|heads_\d+)\.png"
)


def inspect_model(
    model: keras.Model, pixels: np.ndarray, names: Sequence[str], show: int = 12, chosen_class: int | str | None = None
) -> list[Section]:
    """The sections of a page about a model and its response to images.

    Args:
        model: a model of any family, or a keras_vit.Model built on one, with a single image input. For pre-training
            models the page shows the encoder, for segmentation models also pixel classes, for detectors also objects.
        pixels: (b, height, width, c). From model.preprocess(files); all are used to measure heads and layers.
        names: image names, in any script.
        show: number of images to show, spread evenly.
        chosen_class: class number or name for the maps; None for each image's predicted class.

    Raises:
        ImportError: without matplotlib (extra [viz]).
        ValueError: no images, images on another scale, an unknown class, or a model without an encoder.
    """
    if not len(pixels) or len(names) != len(pixels):
        raise ValueError(
            f"Expected images (b, height, width, c) and a name for each, got {len(pixels)} images and {len(names)}"
            " names."
        )
    chosen = None if chosen_class is None else class_number(model, str(chosen_class))
    encoder, whole = model.get_encoder(), model.without_auxiliary()
    check_images(encoder, pixels)
    shown = evenly(len(pixels), show)
    whole, answers = (whole, bind(whole)) if whole.answers else (encoder, ())
    subject = Subject(encoder, np.asarray(pixels), list(names), shown, chosen, whole, answers)
    parts = (_about, page_images.images, sections.filters, sections.positions, sections.heads, sections.layers)
    return [part(subject) for part in parts]


def _about(subject):
    """A description of the model, without a heading."""
    model, encoder = subject.model, subject.encoder
    height, width = subject.pixels.shape[1:3]
    whole = subject.whole
    rows = [
        ("model", f"{whole.name}, {whole.count_params():,} parameters"),
        ("image", f"{height}x{width} pixels, height and width"),
    ]
    offered, spec = subject.family.spec, model.spec
    if offered.has_tokens:
        h, w = taps.patch_grid(encoder)
        rows.append(("patches", f"{h} rows of {w}, one for each {height // h}x{width // w} pixels"))
    if getattr(spec, "prefix", 0):
        kinds = {
            "class token": spec.class_token,
            "distillation token": spec.distillation_token,
            "registers": spec.registers,
        }
        tokens = [f"{int(n)} {kind}" if n > 1 else kind.rstrip("s") for kind, n in kinds.items() if n]
        rows.append(("other tokens", ", ".join(tokens)))
    if offered.has_attention:
        _, blocks = attention_blocks(model)
        heads, width = blocks[0].attention.heads, blocks[0].output.shape[-1]
        rows.append(("blocks", f"{len(blocks)} of {heads} heads, width {width}"))
    classes = model.classes
    if whole is not model and whole.classes is not None:
        classes = f"{whole.classes}, of {', '.join(answer.classified for answer in subject.answers)}"
    rows.append(("classes", "none" if classes is None else classes))
    some = f", {len(subject.shown)} of them shown" if len(subject.shown) < len(subject.pixels) else ""
    rows.append(("measured on", f"{counted(len(subject.pixels), 'image')}{some}"))
    return Section("", html_report.table(rows), numbers={"images": subject.names})


def check_place(folder: str | os.PathLike) -> None:
    """Rejects a folder that is not writable, or where a page would replace anything but an earlier page.

    Raises:
        OSError: the folder is not writable.
        ValueError: it is a file or in a bucket, or contains other files.
    """
    folder = locate(os.fspath(folder))
    if "://" in folder:
        raise ValueError(f'"{folder}" is in a bucket. Write the page to a local folder, then copy it there.')
    if os.path.isfile(folder):
        raise ValueError(f'"{folder}" is a file; the page and its pictures need a folder. Give a new folder.')
    there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    others = {name for name in there if not _OURS.fullmatch(name)}
    if others or there and not {PAGE, _NUMBERS} <= there:  # an index.html without numbers is not ours
        others = sorted(others or there)
        raise ValueError(
            f'"{folder}" contains files that are not from an earlier page and would be lost:'
            f" {', '.join(others[:5])}{', ...' if others[5:] else ''}. Give a new or empty folder."
        )
    check_folder(os.path.dirname(os.path.abspath(folder)))


def _plain(value):
    """Values for JSON: arrays as lists to six digits, NaN as null."""
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def write_page(folder: str | os.PathLike, title: str, parts: Sequence[Section], more: Sequence[str] = ()) -> None:
    """Writes index.html, pictures as PNG files, and numbers (inspection.json) to a folder, all or nothing.

    Args:
        folder: local folder; an earlier page is replaced.
        title: page title.
        parts: sections from `inspect_model`.
        more: further HTML sections, such as those of inspection.html_report.

    Raises:
        OSError, ValueError: as in `check_place`.
    """
    check_place(folder)
    body = [html_report.section(part.title, part.body) if part.title else part.body for part in parts]
    text = html_report.page(title, [*body, *more])
    numbers = {key: _plain(value) for part in parts for key, value in part.numbers.items()}
    files = {name: data for part in parts for name, data in part.files.items()}
    # File names may contain bytes that UTF-8 cannot encode.
    files[PAGE] = text.encode("utf-8", "replace")
    files[_NUMBERS] = json.dumps(numbers, ensure_ascii=False).encode("utf-8", "replace")
    with replacing(folder) as temporary:
        os.makedirs(temporary)
        for name, data in files.items():
            with open(os.path.join(temporary, name), "wb") as file:
                file.write(data)
