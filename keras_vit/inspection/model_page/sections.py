"""Sections of a model's page about weights, heads and layer similarity. Each explains how to read it."""

import html
import math

import numpy as np

from keras_vit.inspection import figures, tiles, weights
from keras_vit.inspection.distances import head_statistics
from keras_vit.inspection.html_report import embedded, figure_row
from keras_vit.inspection.model_page.subject import Section, Subject
from keras_vit.inspection.representation_similarity import SMALLEST, layer_similarity
from keras_vit.io.progress import stage

_COMPONENTS = 28  # as in the paper
_FILTERS = 64
_MAPS = 16  # positions per row or column, sampled from the grid
_SIDE = 640  # approximate pixels of a sheet
_NO_TABLE = "The model adds none to its tokens: its positions are offsets inside attention, or it has none at all."


def _paragraphs(*texts):
    return "".join(f"<p>{html.escape(text)}</p>\n" for text in texts if text)


def _sheet(small, columns):
    """Tiles (m, h, w, 3), enlarged on a sheet, as PNG."""
    factor = max(1, round(_SIDE / (columns * small.shape[2])))
    return tiles.png(tiles.sheet(tiles.enlarged(small, factor), columns, gap=max(2, factor // 2)))


def _palette(colors):
    """The colours (colors, c) of a palette."""
    shown = np.clip(np.rint(colors[:, None, None]), 0, 255).astype("uint8")  # (colors, c) -> (colors, 1, 1, c)
    data = _sheet(shown[..., :3] if shown.shape[-1] >= 3 else shown[..., :1].repeat(3, axis=-1), 32)
    text = (
        f"The {len(colors)} colours of the palette. Each pixel has the embedding of the nearest one; there are no"
        " filters."
    )
    return Section(
        "Palette", _paragraphs(text) + embedded(data, "Palette"), {"filters.png": data}, {"palette": colors.tolist()}
    )


def filters(subject: Subject) -> Section:
    """The first layer's filters, or a palette's colours."""
    if getattr(subject.model.spec, "palette", None) is not None:
        return _palette(np.asarray(subject.encoder.get_layer("patch_encoder").palette))
    first = weights.first_filters(subject.model)
    p, q, c, count = first.kernel.shape
    grey = "" if c >= 3 else " Grey is 0."
    if first.embeds_patches:
        shown, shares = weights.principal_filters(first.kernel, _COMPONENTS)
        title, columns, numbers = "Filters of the patch embedding", 7, {"filter_shares": shares.tolist()}
        texts = [
            (
                f"The first {len(shown)} principal components of the {count} filters that embed a patch of {p}x{q}"
                f" pixels, the strongest first (arXiv 2010.11929, figure 7 left). They make up {shares.sum():.0%} of"
                f" the filters' variance.{grey}"
            ),
            (
                "How to read it: in a trained model they are a basis for the content of a patch: spots of colour,"
                " edges, stripes and checks, coarse and fine. Noise from pixel to pixel means little training."
            ),
        ]
    else:
        shown, numbers = np.moveaxis(first.kernel, -1, 0)[:_FILTERS], {}  # (p, q, c, d) -> (d, p, q, c)
        title, columns = "Filters of the first convolution", 8
        some = f"The first {len(shown)} of {count}" if len(shown) < count else f"All {count}"
        embedding = " Its patches are patches of a feature map, which have no colours to show."
        texts = [
            f"{some} filters of {p}x{q} pixels, unchanged; each is scaled separately, and grey is 0.",
            "How to read it: in a trained model there are edges in several directions, stripes and spots of colour."
            + (embedding if subject.family.spec.has_tokens else ""),
        ]
    data = _sheet(tiles.signed(shown), columns)
    return Section(title, _paragraphs(*texts) + embedded(data, title), {"filters.png": data}, numbers)


def positions(subject: Subject) -> Section:
    """Similarity of the position embeddings."""
    title = "Position embeddings"
    if not subject.family.spec.has_attention:
        return Section(
            title,
            _paragraphs(f"A {subject.family.name} has none."),
        )
    try:
        table, grid, kind = weights.patch_positions(subject.model)
    except ValueError:  # no additive positions
        return Section(title, _paragraphs(_NO_TABLE))
    similarity = weights.position_similarity(table, grid)
    near = weights.nearest_is_neighbour(similarity)
    step = math.ceil(max(grid) / _MAPS)
    some = similarity[step // 2 :: step, step // 2 :: step]
    h, w = some.shape[:2]
    thinned = f" Shown is one patch of {step} in each direction." if step > 1 else ""
    fixed = "" if kind.startswith("learned") else " They are fixed sines and cosines, not learned."
    if any(layer.name == "position_embedding_00" for layer in subject.encoder.layers):
        fixed += " Each block has its own; these are those of block 0."
    data = _sheet(tiles.coloured(some.reshape(h * w, *grid), -1, 1), w)  # (h, w, H, W) -> (h*w, H, W)
    texts = [
        (
            "Each small map belongs to the patch in its place: the cosine similarity of this patch's position"
            " embedding with those of all patches, from -1, dark, to 1, bright (arXiv 2010.11929, figure 7"
            f" centre).{thinned}{fixed}"
        ),
        (
            "How to read it: the bright spot is the patch itself. Where positions have been learned, its neighbours"
            " follow, and often its row and column. Here the most similar other patch is one of the up to eight"
            f" neighbours for {near:.0%} of the patches."
        ),
    ]
    return Section(
        title, _paragraphs(*texts) + embedded(data, title), {"positions.png": data}, {"nearest_is_neighbour": near}
    )


def heads(subject: Subject) -> Section:
    """Attention distance and entropy of the heads."""
    title = "How far and how widely heads look"
    if not subject.family.spec.has_attention_maps:
        return Section(title, _paragraphs(f"A {subject.family.name} has {subject.family.spec.lacks}."))
    with stage("Measuring the heads", len(subject.pixels), "images") as work:
        found = head_statistics(subject.model, subject.pixels, advance=work.advance)
    count = len(subject.pixels)
    over = f"averaged over {count:,} images" if count > 1 else "on one image"
    distance, distance_png = figures.by_block(
        found.distance, found.even_distance, "mean distance, pixels", "even attention", "distance"
    )
    entropy, entropy_png = figures.by_block(
        found.entropy, found.even_entropy, "entropy, bits", "even attention", "entropy"
    )
    texts = [
        (
            f"A dot is a head, {over}. Mean attention distance: between a patch and the patches that it attends to,"
            " weighted by the attention (arXiv 2010.11929, figures 7 right and 11; the paper takes 128 images)."
            " Entropy: how widely the attention is spread; b bits are uniform attention over 2^b tokens."
        ),
        (
            "How to read it: in trained models some heads of the first blocks attend to near patches, as a convolution"
            " does, and others already to distant ones; in the last blocks all attend far. The dashed line is uniform"
            " attention over the image, or over a window where blocks attend inside windows."
        ),
    ]
    body = _paragraphs(*texts) + figure_row({"Mean attention distance": distance, "Entropy of attention": entropy})
    files = {"attention_distance.png": distance_png, "attention_entropy.png": entropy_png}
    return Section(title, body, files, found._asdict())


def layers(subject: Subject) -> Section:
    """Similarity of the layers."""
    title, count = "How similar the layers are", len(subject.pixels)
    if count < SMALLEST:
        text = (
            f"Linear CKA compares the outputs of two layers for different images. It needs {SMALLEST} or more, and this"
            f" page has {count}."
        )
        return Section(title, _paragraphs(text))
    with stage("Comparing the layers", count, "images") as work:
        values = layer_similarity(subject.model, subject.pixels, work.advance)
    picture, data = figures.matrix(values, "linear CKA", "cka")
    few = " So few images make a noisy picture." if count < 32 else ""
    texts = [
        (
            f"Linear CKA between the outputs of each two blocks over {count:,} images, estimated without bias from"
            f" small batches (Kornblith et al. 2019, arXiv 1905.00414; Nguyen et al. 2021, arXiv 2010.15327).{few}"
        ),
        (
            "How to read it: 1, bright, means the same up to a rotation and a factor. Bright squares along the diagonal"
            " are groups of layers that change little; ViTs are more alike throughout than ResNets, where stages stand"
            " out (arXiv 2108.08810)."
        ),
    ]
    return Section(title, _paragraphs(*texts) + figure_row({"Linear CKA": picture}), {"cka.png": data}, {"cka": values})
