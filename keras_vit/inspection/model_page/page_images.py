"""Images on a model's page: attention rollout, class maps, token colours, and maps of each head."""

import html
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.inspection import figures, tiles
from keras_vit.inspection.attention import attention_maps, head_maps
from keras_vit.inspection.components import foreground, token_colours
from keras_vit.inspection.gradients import class_maps
from keras_vit.inspection.html_report import embedded, image_element, own_text
from keras_vit.inspection.model_page.subject import Section, Subject, computed
from keras_vit.io.progress import stage
from keras_vit.models import taps

_SIDE = 160  # pixels of a picture's shorter side in the PNG files
_COLUMNS = 4  # heads per row
_BATCH = 8
_HEADS = (
    "folded below each image: the attention of each head from the class token, or from the patches if the model reads"
    " those; in a Swin, the places inside each window that the others attend to."
    " The heads of a block are in rows of four; each map is scaled from its lowest to its highest value."
)


def _stretched(maps):
    """Maps (..., h, w), each stretched to 0 to 1."""
    low, high = maps.min(axis=(-2, -1), keepdims=True), maps.max(axis=(-2, -1), keepdims=True)
    return (maps - low) / np.where(high > low, high - low, 1)


class Column(NamedTuple):
    """One kind of picture, for all shown images.

    Attributes:
        title: caption below each image.
        text: an explanation, and how to read it.
        pictures: (h, w, 3) uint8 for each image.
    """

    title: str
    text: str
    pictures: list[np.ndarray]


def _rollout(subject):
    """The column of attention rollout."""
    images = subject.shown_pixels
    maps = np.concatenate(
        [attention_maps(subject.model, images[i : i + _BATCH]) for i in range(0, len(images), _BATCH)]
    )
    text = (
        "the patches that the output attends to, through all blocks (Abnar and Zuidema 2020). Bright patches contribute"
        " most; they should lie on the main object. Each map is scaled from its lowest to its highest value."
    )
    return Column(
        "attention rollout", text, [figures.heat(x, m) for x, m in zip(subject.shown_photographs, _stretched(maps))]
    )


def _class_map(subject, classes):
    """The column of class maps, for the classes (m,)."""
    images = subject.shown_pixels
    place = "the tokens that enter the last block" if subject.family.spec.has_tokens else "the last feature map"
    text = (
        f"the evidence for the class named below the image (Grad-CAM, arXiv 1610.02391, on {place}). Dark regions do"
        " not matter or are evidence for other classes. A map beside the object shows which other cues the model uses."
    )
    maps = class_maps(subject.model, images, classes)
    return Column("the class", text, [figures.heat(x, m) for x, m in zip(subject.shown_photographs, maps)])


def _answered(subject):
    """(a column for each answer that can be seen, HTML with what is below each image or None)."""
    columns, captions = [], None
    for answer in subject.answers:
        for look in answer.looks(subject.shown_pixels, subject.shown_photographs.astype("uint8")):
            columns.append(Column(look.title, look.text, look.pictures))
            texts = [", ".join(map(_entry, entries)) for entries in look.captions]
            captions = texts if captions is None else [f"{a}; {b}" for a, b in zip(captions, texts)]
    return columns, captions


def _entry(entry):
    """An entry of a caption as HTML, behind a square of its colour."""
    square = "" if entry.color is None else f'<span style="color: rgb{entry.color}">&#9632;</span> '
    return square + own_text(entry.text)


def _colours(subject):
    """The columns of token colours: of all tokens, and of the foreground."""
    model, size = keras.Model(subject.model.input, taps.feature_map(subject.model)), subject.pixels.shape[1:3]
    features = computed(model, subject.shown_pixels)  # (m, h, w, d)
    what = "tokens" if subject.family.spec.has_tokens else "feature map's positions"

    def pictures(colours):
        return [tiles.resized(np.round(255 * x).astype("uint8"), size, smooth=False) for x in colours]

    whole = (
        f"the first three principal components of the {what} of all images on this page as red, green and blue (as in"
        " DINOv2, arXiv 2304.07193). Equal colours are equal features: parts of one object, and the same parts of"
        " several, should look alike."
    )
    columns = [Column("features as colours", whole, pictures(token_colours(features)))]
    mask = foreground(features)
    if mask.sum() >= 2:
        text = "the same of the foreground alone, one side of the first component; the background is black."
        columns.append(Column("foreground", text, pictures(token_colours(features, mask))))
    return columns


def _head_pictures(subject):
    """For each image, {block: picture (h, w, 4) of its heads' maps}."""
    images, found = subject.shown_pixels, [{} for _ in subject.shown]
    for start in range(0, len(images), _BATCH):
        for block, maps in head_maps(subject.model, images[start : start + _BATCH]).items():
            # (b, k, h, w) -> (b, k, h, w, 3)
            for i, image in enumerate(tiles.coloured(_stretched(maps), 0, 1, "inferno")):
                factor = max(1, round(56 / image.shape[2]))
                found[start + i][block] = tiles.sheet(tiles.enlarged(image, factor), _COLUMNS, gap=3)
    return found


def _figure(caption, image):
    return f"<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _heads_html(blocks):
    """An image's maps of all heads, folded."""
    if not blocks:
        return ""
    pictures = "".join(
        _figure(f"block {i}", embedded(tiles.png(pixels), f"heads of block {i}")) for i, pixels in blocks.items()
    )
    return f'<details><summary>Attention of each head</summary><div class="heads">{pictures}</div></details>'


def _card(name, pixels, columns, i, verdict, blocks):
    """One image with its pictures."""
    pictures = [_figure("image", image_element(pixels, name))]
    pictures += [_figure(column.title, image_element(column.pictures[i], column.title)) for column in columns]
    said = f"<p>{verdict}</p>" if verdict else ""
    return (
        f"<article><h3>{own_text(name)}</h3><div"
        f' class="looks">{"".join(pictures)}</div>{said}{_heads_html(blocks)}</article>\n'
    )


def _verdicts(subject, predicted, with_map):
    """HTML about the class, below each image."""
    if predicted is None:
        return [f"class map: {own_text(subject.class_name(subject.chosen))}" if with_map else ""] * len(subject.shown)
    texts = [f"predicted: {own_text(subject.class_name(int(c)))}, {share:.0%}" for c, share in zip(*predicted)]
    if with_map and subject.chosen is not None:
        texts = [f"{text}; class map: {own_text(subject.class_name(subject.chosen))}" for text in texts]
    return texts


def _contact_sheet(subject, columns):
    """All pictures on one sheet, a row per image."""
    height, width = subject.pixels.shape[1:3]
    factor = max(1, round(_SIDE / min(height, width)))
    size, rows = (factor * height, factor * width), []
    for i, image in enumerate(subject.shown_photographs):
        for pixels in (figures.as_rgb(image), *(column.pictures[i] for column in columns)):
            rows.append(tiles.resized(pixels, size, smooth=min(height, width) > _SIDE // 2))
    return tiles.png(tiles.sheet(np.stack(rows), 1 + len(columns), gap=6))


def _columns(subject, predicted):
    """(columns, sentences about missing ones, whether one shows a class)."""
    columns, missing, why = [], [], subject.why_no_classes()
    if subject.family.spec.has_attention_maps:
        columns.append(_rollout(subject))
    else:
        family = subject.family
        missing.append(f"A {family.name} has {family.spec.lacks}, and so no rollout and no maps of heads.")
    if not why:
        try:
            columns.append(_class_map(subject, predicted[0] if subject.chosen is None else subject.chosen))
        except ValueError as error:  # a custom model that cannot be split
            why = f"There are no maps of a class: {error}"
    missing += [why] if why else []
    return columns + _colours(subject), missing, not why


def images(subject: Subject) -> Section:
    """The shown images, each with its pictures."""
    with_heads = subject.family.spec.has_attention_maps
    with stage("Drawing the images"):
        predicted = subject.predictions()
        columns, missing, with_map = _columns(subject, predicted)
        verdicts = _verdicts(subject, predicted, with_map)
        answered, captions = _answered(subject)
        columns, verdicts = [*answered, *columns], captions or verdicts
        blocks = _head_pictures(subject) if with_heads else [{}] * len(subject.shown)
    texts = {column.title: column.text for column in columns} | ({"heads": _HEADS} if with_heads else {})
    items = "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in texts.items())
    names = [subject.names[i] for i in subject.shown]
    cards = (
        _card(n, x, columns, i, verdicts[i], blocks[i])
        for i, (n, x) in enumerate(zip(names, subject.shown_photographs))
    )
    body = f"<dl>{items}</dl>\n" + "".join(f"<p>{html.escape(text)}</p>\n" for text in missing) + "".join(cards)
    files = {"images.png": _contact_sheet(subject, columns)}
    for i, found in enumerate(blocks):
        if found:
            files[f"heads_{i:02d}.png"] = tiles.png(tiles.stacked(list(found.values()), gap=8))
    return Section("Images", body, files)
