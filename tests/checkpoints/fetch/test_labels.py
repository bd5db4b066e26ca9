"""Names of well-known data sets' classes: which models get them, and which do not."""

import json

import numpy as np
import pytest
import safetensors.numpy
from golden_files import golden_arrays, write

import keras_vit
from keras_vit.checkpoints import find, list_models
from keras_vit.checkpoints.fetch import catalogue, download, hub
from keras_vit.checkpoints.locate import declared_labels
from keras_vit.io.class_names import DATA_SETS, imagenet_names

GOOGLE = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0--{}-steps_20k-lr_0.03-res_224.npz"


@pytest.fixture
def thousand(tmp_path):
    """A timm file with 1000 classes, and the arguments that load it."""
    _, path, arguments = write("timm_vit", tmp_path)
    rng = np.random.default_rng(0)
    head = {"head.weight": rng.normal(size=(1000, 16)), "head.bias": np.zeros(1000)}
    arrays = {**golden_arrays("timm_vit"), **{name: a.astype("float32") for name, a in head.items()}}
    safetensors.numpy.save_file(arrays, path)
    path.with_name("config.json").unlink()
    return path, {
        "heads": 2,
        "norm_first": True,
        "mlp_activation": "gelu",
        "pool": "token",
        "epsilon": 1e-6,
        **arguments,
    }


@pytest.fixture
def published(monkeypatch, thousand):
    """The catalogue's deit/tiny is the file of `thousand`."""
    entry = catalogue.dataclasses.replace(
        find("deit/tiny"), url="https://example.org/x.safetensors", preprocessing=None
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "deit/tiny", entry)
    monkeypatch.setattr(download, "download", lambda *args, **kwargs: thousand[0])
    return thousand[1]


def test_the_names_are_distinct_and_in_the_order_of_the_labels(shared_data):
    lines = (shared_data / "imagenet_labels" / "imagenet2012_names.txt").read_text().splitlines()
    found = imagenet_names()
    assert [name.split(" (")[0] for name in found] == [line.split(", ")[0] for line in lines]
    assert [found[i] for i in (134, 281, 517, 638, 639)] == [
        "crane (bird)",
        "tabby",
        "crane (machine)",
        "maillot",
        "maillot (tank suit)",
    ]
    assert {name: len(set(names())) for name, names in DATA_SETS.items()} == {
        "imagenet": 1000,
        "cifar10": 10,
        "cifar100": 100,
        "coco": 81,  # with "N/A" for the numbers that COCO leaves out
    }


@pytest.mark.extended
def test_published_imagenet_models_know_their_classes(published, tmp_path):
    """By name or address, and in the files that are saved."""
    keras_vit.load("https://example.org/x.safetensors", **published).save(tmp_path / "m.keras")
    assert keras_vit.load(tmp_path / "m.keras").class_names == imagenet_names()
    assert keras_vit.load("deit/tiny", **published).class_names == imagenet_names()
    assert keras_vit.load("deit/tiny", **published, head="drop").class_names is None
    assert keras_vit.load("deit/tiny", **published, head="reset", classes=1000).class_names is None


def test_published_detectors_know_cocos_classes(tmp_path, monkeypatch, recwarn):
    """As in transformers' conversions of LW-DETR, whose config.json has LABEL_0..."""
    sizes = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "head_options": {"tokens": 2}}
    model = keras_vit.DetectionModel("Ti/8", "yolos", 91, image_size=16, **sizes)
    keras_vit.save(model, tmp_path / "yolos-tiny", format="huggingface")
    monkeypatch.setattr(hub, "download_repository", lambda address: tmp_path / address.rpartition("/")[2])
    names = keras_vit.load("yolos/tiny").class_names
    assert (names[1], names[18], names[26], names[90]) == ("person", "dog", "N/A", "toothbrush")
    assert not [warning for warning in recwarn if "same name" in str(warning.message)]


def test_other_models_of_1000_classes_get_them_only_when_told(thousand):
    path, arguments = thousand
    assert keras_vit.load(path, **arguments).class_names is None
    assert keras_vit.load(path, **arguments, class_names="imagenet").class_names == imagenet_names()
    path.with_name("config.json").write_text(json.dumps({"pretrained_cfg": {"tag": "augreg_in21k_ft_in1k"}}))
    assert keras_vit.load(path, **arguments).class_names == imagenet_names()


@pytest.mark.parametrize(
    ("path", "tag", "classes", "labels"),
    [
        (GOOGLE.format("imagenet2012"), None, 1000, "imagenet"),
        (GOOGLE.format("cifar100"), None, 100, "cifar100"),
        (GOOGLE.format("oxford_iiit_pet"), None, 37, None),
        ("deit_tiny_patch16_224.fb_in1k/model.safetensors", None, 1000, "imagenet"),
        ("models--timm--deit_tiny_patch16_224.fb_in1k/snapshots/0a/model.safetensors", None, 1000, "imagenet"),
        ("deit_tiny_patch16_224-a1311bcf.pth", None, 1000, "imagenet"),
        ("deit_tiny_patch16_224-a1311bcf.pth", None, 10, None),
        ("ViT-B_16.npz", None, 1000, None),  # of ImageNet-21k, and fine-tuned: the name is both's
        ("mine.pth", "fb_in1k", 1000, "imagenet"),
        ("mine.pth", "augreg_in21k", 1000, None),
    ],
)
def test_what_a_file_says_of_its_data(path, tag, classes, labels):
    config = {"pretrained_cfg": {"tag": tag}} if tag else {}
    assert declared_labels(path, config, classes) == labels


def test_names_must_fit_the_classes_and_be_a_list(tmp_path):
    _, path, arguments = write("timm_vit", tmp_path)
    with pytest.raises(ValueError, match="class_names has 1000 names for 5 classes"):
        keras_vit.load(path, **arguments, class_names="imagenet")
    with pytest.raises(
        ValueError,
        match='one name per class, a file .*"imagenet", "cifar10", "cifar100", "coco", got "abcde", and there is no',
    ):
        keras_vit.load(path, **arguments, class_names="abcde")


def test_names_may_be_the_lines_of_a_file(tmp_path):
    _, path, arguments = write("timm_vit", tmp_path)
    file = tmp_path / "names.txt"
    file.write_text("\ufeffcat\nfield mouse \nロバ\ndog\nemu\n\n", encoding="utf-8")
    names = keras_vit.load(path, **arguments, class_names=str(file)).class_names
    assert names == ("cat", "field mouse", "ロバ", "dog", "emu")
    file.write_text("cat\ndog\n")
    with pytest.raises(ValueError, match="class_names has 2 names for 5 classes"):
        keras_vit.load(path, **arguments, class_names=file)


def test_the_catalogue_says_which_models_classify_imagenet():
    models = [find(name) for name in list_models()]
    assert all(model.labels == "imagenet" for model in models if model.measure == "top-1")
    assert {model.labels for model in models} == {"imagenet", "coco", None}
    families = {model.family for model in models if model.labels == "imagenet"}
    vits = {"imagenet2012", "augreg", "sam", "s16-baseline", "flexivit", "deit", "deit3"}
    assert families == vits | {"bit", "eva02", "swin", "swinv2"}
    for name in (
        "imagenet21k/B_16",
        "augreg/B_16-i21k",
        "bit/M-R50x1",
        "dinov2/s14",
        "siglip/B_16-224",
        "flexivit/B-i21k-90ep",
    ):
        assert find(name).labels is None
    assert sum(model.labels == "imagenet" for model in models) == 133
