"""Published files are known by name, and by checksum where one is published; others are not."""

import hashlib

import pytest

from keras_vit.checkpoints.fetch import catalogue
from keras_vit.checkpoints.locate import locate_checkpoint


@pytest.mark.parametrize(
    ("path", "is_published"),
    [
        ("dino_deitsmall16_pretrain.pth", True),
        ("ViT-B_16.npz", True),
        ("deit_tiny_patch16_224-a1311bcf.pth", False),  # another checksum
        ("models--timm--deit_tiny_patch16_224.fb_in1k/snapshots/0a/model.safetensors", True),
        ("deit_tiny_patch16_224.fb_in1k/model.safetensors", False),  # perhaps fine-tuned
        ("model.safetensors", False),
    ],
)
def test_published_files(path, is_published, tmp_path):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"weights")
    assert locate_checkpoint(file).is_published is is_published
    if "snapshots" in path:
        assert locate_checkpoint(file.parent).is_published


@pytest.mark.parametrize("name", ["kaggle://anna/flowers/keras/tiny/2", "anna/flowers/keras/tiny/2"])
def test_a_model_of_kaggle_is_kagglehubs(name):
    with pytest.raises((ValueError, FileNotFoundError), match=r'model_download\("anna/flowers/keras/tiny/2"\)'):
        locate_checkpoint(name)


def test_a_file_with_the_published_checksum(tmp_path, monkeypatch):
    file = tmp_path / "deit_tiny_patch16_224-a1311bcf.pth"
    file.write_bytes(b"weights")
    checksum = hashlib.sha256(b"weights").hexdigest()[:8]
    entry = catalogue.dataclasses.replace(catalogue.find("deit/tiny"), original_sha256=checksum, mean=(1.0,) * 3)
    entry = catalogue.dataclasses.replace(entry, std=(2.0,) * 3)
    monkeypatch.setitem(catalogue.CATALOGUE, "deit/tiny", entry)
    located = locate_checkpoint(file)
    assert located.is_published and located.fields == {"mean": (1.0,) * 3, "std": (2.0,) * 3}
