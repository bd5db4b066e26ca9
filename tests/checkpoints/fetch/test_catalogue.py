"""The table of published models: well formed, complete by family, looked up by name."""

import ast
import csv
import dataclasses
import pathlib
import re
import sys

import pytest

from keras_vit.checkpoints.fetch import catalogue
from keras_vit.checkpoints.fetch.catalogue import CATALOGUE, Published, find, list_models
from keras_vit.checkpoints.fetch.download import https_address
from keras_vit.data.ops.op_registry import parse
from keras_vit.depth.depth_model import DPTDepth
from keras_vit.detection.heads import detection_heads
from keras_vit.instances.heads import instance_heads
from keras_vit.segmentation.heads import segmentation_heads

FAMILIES = {
    "imagenet21k": 9,
    "imagenet2012": 8,
    "augreg": 42,
    "sam": 2,
    "s16-baseline": 3,
    "siglip": 10,
    "siglip2": 15,
    "flexivit": 17,
    "bit": 22,
    "deit": 8,
    "deit3": 28,
    "dino": 4,
    "dinov2": 8,
    "mae": 3,
    "swin": 10,
    "swinv2": 10,
    "dpt": 2,
    "depth-anything-v2": 3,
    "dinov3": 8,
    "eupe": 3,
    "lingbot-vision": 4,
    "eva02": 5,
    "tipsv2": 4,
    "yolos": 3,
    "rf-detr": 5,
    "rf-detr-seg": 4,
    "lw-detr": 5,
    "pe": 9,
    "clip": 10,
}

NO_ORIGINAL = (
    "dinov3",
    "eupe",
    "lingbot-vision",
    "eva02",
    "tipsv2",
    "pe",
    "clip",
)  # no .pth of the authors at the places below

LICENCES = {  # {source or name: licence}; Apache-2.0 for others
    "facebookresearch/mae": "CC-BY-NC-4.0",
    "isl-org/DPT": "MIT",
    "microsoft/Swin-Transformer": "MIT",
    "facebookresearch/dinov3": "DINOv3",
    "baaivision/EVA": "MIT",
    "openai/CLIP": "MIT",
    "mlfoundations/open_clip": "MIT",
    "facebookresearch/EUPE": "FAIR Noncommercial Research",
    "depth-anything-v2/base": "CC-BY-NC-4.0",
    "depth-anything-v2/large": "CC-BY-NC-4.0",
}


def rows():
    with open(pathlib.Path(catalogue.__file__).with_name("catalogue.csv"), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_columns_are_the_fields():
    assert list(rows()[0]) == [field.name for field in dataclasses.fields(Published)]


def test_names_and_addresses_are_unique():
    assert len(rows()) == len(CATALOGUE) == len({row["url"] for row in rows()})


def test_every_family_is_there():
    assert {family: len(list_models(f"{family}/*")) for family in FAMILIES} == FAMILIES
    assert sum(FAMILIES.values()) == len(CATALOGUE)


def test_the_module_imports_only_the_standard_library_and_hints():
    nodes = list(ast.walk(ast.parse(pathlib.Path(catalogue.__file__).read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == {"keras_vit.io.suggest"}


def test_addresses():
    for model in CATALOGUE.values():
        if model.url.startswith("hf://"):
            assert re.fullmatch(r"hf://[\w-]+/[\w.-]+", model.url)
            places = ("https://dl.fbaipublicfiles.com/", "https://github.com/SwinTransformer/storage/")
            published = (model.original or "").startswith(places)
            assert (published and model.original.endswith(".pth")) or model.original is None
            assert published or model.head or model.family in NO_ORIGINAL
        else:
            assert re.fullmatch(r"gs://[\w-]+/[\w./+-]+\.npz", model.url)
            assert https_address(model.url).startswith("https://storage.googleapis.com/")
            assert model.original is None
        assert re.fullmatch(r"[\w-]+/[\w-]+", model.source)


def test_names_and_figures_are_well_formed():
    for model in CATALOGUE.values():
        assert re.fullmatch(r"[a-z0-9-]+/[\w+-]+", model.name)
        assert model.licence == LICENCES.get(model.name, LICENCES.get(model.source, "Apache-2.0"))
        assert (model.top1 is None) == (model.measure is None)
        assert model.measure in ("top-1", "linear probe", "zero-shot", None)
        assert model.top1 is None or 60 < model.top1 < 90, model
        size = re.search(r"-(160|2\d\d|384|512)(-|$)", model.name)
        assert size is None or int(size[1]) == model.image_size, model


def test_what_load_is_told():
    for model in CATALOGUE.values():
        flexible, any_size = model.family == "flexivit", model.family in ("bit", "flexivit")
        assert model.chosen_size == (model.image_size if any_size else None)
        assert (
            model.resample == ("flexivit" if flexible else None) and ("patch_size" in model.fields_to_load) == flexible
        )
        if model.preprocessing is not None:
            assert not parse(model.preprocessing).random
            last = re.findall(r"\d+", model.preprocessing)[-1]
            # 14-pixel patches see 27 x 14 = 378 of 384 pixels.
            assert int(last) == (378 if model.name.endswith("So400m_14-384") else model.image_size), model
        assert (model.mean is None) == (model.std is None)
        assert model.mean is None or all(1 < value < 255 for value in model.mean + model.std)


HEADS = {
    **{"dpt": "dpt", "depth-anything-v2": "dpt"},
    **{"yolos": "yolos", "rf-detr": "rf_detr", "rf-detr-seg": "rf_detr", "lw-detr": "lw_detr"},
}


def test_models_of_pixels_and_objects_name_a_head_and_its_options():
    assert {model.family: model.head for model in CATALOGUE.values() if model.head} == HEADS
    depth_options = {field.name for field in dataclasses.fields(DPTDepth)}
    for model in CATALOGUE.values():
        if model.head in detection_heads.HEADS:
            heads = instance_heads.HEADS if model.family == "rf-detr-seg" else detection_heads.HEADS
            valid = heads[model.head].options()
            assert (model.classes, model.labels) == (91, "coco")
        else:
            of_depth = "depth" in model.head_options
            valid = depth_options if of_depth else segmentation_heads.head_options("dpt") if model.head else ()
            assert (model.classes == 1) == of_depth
        assert model.head_options.keys() <= set(valid)
    assert find("yolos/tiny").image_size == (800, 1328)


def test_callers_may_change_the_fields_of_a_model():
    find("dinov2/l14-reg").fields_to_load["mean"] = 0
    found = find("dinov2/l14-reg")
    assert found.fields_to_load == {"mean": found.mean, "std": found.std}


def test_checksums_are_those_in_the_file_names():
    """Torch hub's rule: the name ends with the first digits of the SHA-256."""
    matches = {model.name: re.search(r"-([0-9a-f]{8})\.pth$", model.original or "") for model in CATALOGUE.values()}
    assert {name for name, match in matches.items() if match} == set(list_models("deit/*"))
    for name, match in matches.items():
        assert find(name).original_sha256 == (match and match[1])
        assert find(name).sha256 is None


@pytest.mark.parametrize(
    "name, top1",
    [
        ("augreg/L_16-imagenet2012-384", 85.59),  # README of google-research/vision_transformer
        ("augreg/R+Ti_16-imagenet2012-384", 75.40),
        ("deit/base-distilled-384", 85.2),  # README_deit.md of facebookresearch/deit
        ("deit3/huge-224-i21k", 87.2),  # README_revenge.md of facebookresearch/deit
        ("siglip2/g-opt_16-384", 85.0),  # README_siglip2.md of google-research/big_vision
        ("bit/R50x1-distilled-224", 82.8),  # README of google-research/big_transfer
        ("dinov2/g14-reg", 87.1),  # README of facebookresearch/dinov2
        ("swin/large-384-i22k", 87.3),  # README of microsoft/Swin-Transformer
        ("clip/L_14-336", 76.6),  # docs/openclip_results.csv of mlfoundations/open_clip
        ("clip/bigG_14-laion2b", 80.1),
        ("imagenet21k/H_14", None),
    ],
)
def test_figures(name, top1):
    assert find(name).top1 == top1


def test_list_models():
    assert list_models() == sorted(CATALOGUE)
    assert list_models("dino/*") == ["dino/b16", "dino/b8", "dino/s16", "dino/s8"]
    assert list_models("bit/M-R50x?") == ["bit/M-R50x1", "bit/M-R50x3"]
    assert list_models("Deit/*") == list_models("nothing") == []


def test_find_names_the_nearest():
    assert find("imagenet21k/B_16").url == "gs://vit_models/imagenet21k/ViT-B_16.npz"
    with pytest.raises(ValueError, match="Nearest: .*augreg/B_16-i21k"):
        find("AugReg/B-16-i21k")
    with pytest.raises(ValueError, match="Names begin with imagenet21k/, .*dinov2/.*list_models"):
        find("?")
