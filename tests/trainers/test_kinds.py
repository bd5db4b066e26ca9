"""Verbs that are given a model of another kind name the verb that takes it."""

import json

import pytest
from small_models import detecting, every_weight, segmenting, write_pngs

from keras_vit import DualEncoder, SegmentationModel, TextEncoder
from trainers import classify, detect, kinds, loading, predict, segment

OF = {
    "masks": "gives every pixel a class: keras-vit segment NAME IMAGES",
    "objects": "finds objects: keras-vit detect NAME IMAGES",
    "classes": "classifies whole images: keras-vit classify NAME IMAGES",
    "pixels": "one output per pixel, such as a depth, and no classes: keras-vit serve NAME",
    "texts": 'compares images with texts: keras-vit classify NAME IMAGES --labels="a cat,a dog"',
    "features": "returns features: keras-vit predict --model=NAME .* --answers=features",
}
VERBS = {classify: "classes", segment: "masks", detect: "objects"}


def _dual_encoder():
    sizes = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    text = TextEncoder("SigLIP-B", outputs=32, length=4, vocabulary=9, **sizes)
    return DualEncoder(every_weight(classes=None), text)


@pytest.fixture(scope="module")
def models():
    size = {"image_size": (16, 24), "depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    return {
        "masks": segmenting(),
        "objects": detecting(),
        "classes": every_weight(),
        "pixels": SegmentationModel("Ti/8", "linear", 1, **size),
        "texts": _dual_encoder(),
        "features": every_weight(classes=None),
    }


@pytest.mark.parametrize("kind", OF)
@pytest.mark.parametrize("verb", VERBS, ids=VERBS.get)
def test_the_verb_for_a_model(kind, verb, models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name, **_: models[kind])
    (tmp_path / "a.png").touch()
    if kind == VERBS[verb]:
        return kinds.check_kind("NAME", kinds.kind_of(models[kind]), kind)
    with pytest.raises(ValueError, match=f"^NAME .*{OF[kind]}"):
        binary(verb, "NAME", tmp_path / "a.png")


ANSWERS = {
    "pixels": "NAME has one output per pixel, such as a depth, and no classes: --answers=features",
    "texts": "NAME compares images with texts: --answers=features",
    "features": "NAME has no classes and returns features: --answers=features",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_predict_names_the_answers_of_a_model_without_classes(kind, models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name: models[kind])
    write_pngs(tmp_path, 2)
    with pytest.raises(ValueError, match=f"^{ANSWERS[kind]} writes its features"):
        binary(predict, model="NAME", data=f"images:{tmp_path}", output=tmp_path / "out")


ABOUT = {
    "masks": {"task": "segmentation", "classes": 3},
    "objects": {"task": "detection", "classes": 3},
    "pixels": {"task": "depth", "classes": None},
    "classes": {"classes": 3},
    "features": {"classes": None},
}


@pytest.mark.parametrize("kind", ABOUT)
@pytest.mark.parametrize("verb", VERBS, ids=VERBS.get)
def test_the_verb_for_an_export(kind, verb, binary, tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "metadata.json").write_text(json.dumps(ABOUT[kind]))
    assert kinds.kind_of_export(str(tmp_path)) == kind
    if kind != VERBS[verb]:
        takes_exports = kind in ("classes", "masks")
        message = OF[kind].replace("NAME", str(tmp_path) if takes_exports else "MODEL")
        with pytest.raises(ValueError, match=message if takes_exports else f"{message}.* it was exported from"):
            binary(verb, tmp_path, tmp_path / "a.png")
