"""Verbs that are given a model of another kind name the verb that takes it."""

import json

import numpy as np
import pytest
from PIL import Image
from small_models import detecting, every_weight, segmenting, write_pngs

from keras_vit import DepthModel, DualEncoder, MultiModel, SegmentationModel, TextEncoder
from trainers import classify, detect, kinds, loading, predict, segment

OF = {
    "masks": "gives every pixel a class: keras-vit segment NAME IMAGES",
    "objects": "finds objects: keras-vit detect NAME IMAGES",
    "classes": "classifies whole images: keras-vit classify NAME IMAGES",
    "pixels": "has one output per pixel: keras-vit serve NAME",
    "depth": "gives every pixel a depth, and no classes: keras-vit predict --model=NAME",
    "texts": 'compares images with texts: keras-vit classify NAME IMAGES --labels="a cat,a dog"',
    "features": "returns features: keras-vit predict --model=NAME .* --answers=features",
}
VERBS = {classify: "classes", segment: "masks", detect: "objects"}


DEPTH = {"width": 8, "widths": (4, 4, 4, 4)}


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
        "depth": DepthModel("Ti/8", head_options=DEPTH, **size),
        "texts": _dual_encoder(),
        "features": every_weight(classes=None),
    }


@pytest.mark.parametrize("kind", OF)
@pytest.mark.parametrize("verb", VERBS, ids=VERBS.get)
def test_the_verb_for_a_model(kind, verb, models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name, **_: models[kind])
    (tmp_path / "a.png").touch()
    if kind == VERBS[verb]:
        return kinds.check_kind("NAME", kind, models[kind])
    with pytest.raises(ValueError, match=f"^NAME .*{OF[kind]}"):
        binary(verb, "NAME", tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["pixels", "texts"])
def test_predict_offers_features_where_answers_are_no_rows(kind, models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name: models[kind])
    write_pngs(tmp_path, 2)
    with pytest.raises(ValueError, match="request only features"):
        binary(predict, model="NAME", data=f"images:{tmp_path}", output=tmp_path / "out")


@pytest.mark.extended
def test_predict_writes_depths_in_millimetres(models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name: models["depth"])
    (tmp_path / "in").mkdir()
    images = write_pngs(tmp_path / "in", 2)
    for _ in range(2):  # the second resumes
        binary(predict, model="NAME", data=f"images:{images}", output=tmp_path / "out")
    written = sorted((tmp_path / "out" / "train").rglob("*.png"))
    assert len(written) == 2 and np.asarray(Image.open(written[0])).dtype == np.uint16
    with pytest.raises(ValueError, match="--window would be ignored"):
        binary(predict, model="NAME", data=f"images:{images}", output=tmp_path / "out", window="slide")


def test_predict_refuses_answers_of_other_models(models, binary, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "load", lambda name: models["masks"])
    write_pngs(tmp_path, 2)
    with pytest.raises(ValueError, match="classes: NAME gives every pixel a class. Valid .*: masks, features"):
        binary(predict, model="NAME", data=f"images:{tmp_path}", output=tmp_path / "out", answers="classes")


@pytest.mark.extended
def test_predict_writes_each_part_of_a_multi_model(models, binary, monkeypatch, tmp_path):
    trunk = models["masks"].get_encoder()
    model = MultiModel(trunk, {"street": models["masks"], "look": models["masks"].with_encoder(trunk.clone())})
    monkeypatch.setattr(loading, "load", lambda name: model)
    images = write_pngs(tmp_path, 2)
    with pytest.raises(ValueError, match="NAME gives several answers: add --load.key=street"):
        kinds.check_kind("NAME", "masks", model)
    binary(predict, model="NAME", data=f"images:{images}", output=tmp_path / "out", answers="street,features")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["features", "street"]
    assert len(list((tmp_path / "out" / "street").rglob("*.png"))) == 2
    assert list((tmp_path / "out" / "features").glob("*.parquet"))


# As in exports of 0.5.0; later ones name their answers.
ABOUT = {
    "masks": {"task": "segmentation", "classes": 3},
    "objects": {"task": "detection", "classes": 3},
    "depth": {"task": "depth", "classes": None},
    "pixels": {"answers": ["pixels"], "classes": 1},
    "classes": {"classes": 3},
    "features": {"classes": None},
}


@pytest.mark.parametrize("kind", ABOUT)
@pytest.mark.parametrize("verb", VERBS, ids=VERBS.get)
def test_the_verb_for_an_export(kind, verb, binary, tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "metadata.json").write_text(json.dumps(ABOUT[kind]))
    if kind != VERBS[verb]:
        takes_exports = kind in ("classes", "masks")
        message = OF[kind].replace("NAME", str(tmp_path) if takes_exports else "MODEL")
        with pytest.raises(ValueError, match=message if takes_exports else f"{message}.* it was exported from"):
            binary(verb, tmp_path, tmp_path / "a.png")
