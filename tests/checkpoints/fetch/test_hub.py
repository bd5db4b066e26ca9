"""hf:// addresses: their parts, and a whole repository from a local server that speaks the hub's protocol."""

import types

import numpy as np
import pytest
from golden_files import write
from hub_stand_in import Repository, serving
from sampled import pixels

import keras_vit
from keras_vit.checkpoints.fetch import hub


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("hf://google/vit-base-patch16-224", ("google/vit-base-patch16-224", None, None)),
        ("hf://timm/deit_tiny_patch16_224.fb_in1k", ("timm/deit_tiny_patch16_224.fb_in1k", None, None)),
        ("hf://a/b@refs/pr/3", ("a/b", "refs/pr/3", None)),
        ("hf://a/b@main/model.safetensors", ("a/b", "main", "model.safetensors")),
        ("hf://a/b/sub/weights.npz", ("a/b", None, "sub/weights.npz")),
    ],
)
def test_addresses(address, parts):
    assert hub.split(address) == parts


@pytest.mark.parametrize("address", ["hf://", "hf://a", "hf://a/b/../../c.npz", "hf://a/b c"])
def test_other_texts_are_refused(address):
    with pytest.raises(ValueError, match="expected hf://owner/name"):
        hub.split(address)


@pytest.fixture
def hub_of(monkeypatch, tmp_path):
    """hub_of(folder): replaces the hub by a local server whose only repository, owner/name, holds the files of that
    folder.
    """
    pytest.importorskip("huggingface_hub")
    with serving(monkeypatch, tmp_path / "cache", token=None) as served:

        def serve(folder):
            files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            served.repositories["owner/name"] = Repository(commits=[("all", files)])

        yield serve


def test_a_repository_is_fetched_and_loaded(tmp_path, hub_of):
    (tmp_path / "repository").mkdir()
    golden, path, arguments = write("hf_vit", tmp_path / "repository")
    (path.parent / "pytorch_model.bin").write_bytes(b"a pickle that nobody needs")
    hub_of(path.parent)
    model = keras_vit.load("hf://owner/name", **arguments)
    np.testing.assert_allclose(model(pixels(*golden["image_size"])), golden["values"], atol=1e-4)
    assert not list((tmp_path / "cache").rglob("pytorch_model.bin"))


def test_torchs_file_is_fetched_where_there_is_no_other(tmp_path, hub_of):
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "config.json").write_text("{}")
    (tmp_path / "repository" / "pytorch_model.bin").write_bytes(b"for torch alone")
    hub_of(tmp_path / "repository")
    assert (hub.download_repository("hf://owner/name") / "pytorch_model.bin").read_bytes() == b"for torch alone"


def test_a_missing_repository_or_file_is_named(tmp_path, hub_of):
    (tmp_path / "repository").mkdir()
    write("hf_vit", tmp_path / "repository")
    hub_of(tmp_path / "repository")
    with pytest.raises(FileNotFoundError, match="hf://owner/other"):
        keras_vit.load("hf://owner/other")
    with pytest.raises(FileNotFoundError, match='no file "other.npz"'):
        keras_vit.load("hf://owner/name/other.npz")


def test_without_a_connection_the_error_says_how_to_do_without(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConnectionError, match="by other means"):
        keras_vit.load("hf://owner/name")


def test_a_gated_repository_says_how_to_get_access(monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")

    def refuse(*_, **__):
        response = types.SimpleNamespace(headers={}, request=None, status_code=401)
        raise hub_library.errors.GatedRepoError("Access to model owner/name is restricted.", response=response)

    monkeypatch.setattr(hub_library, "snapshot_download", refuse)
    with pytest.raises(PermissionError, match="is gated.*https://huggingface.co/owner/name.*hf auth login"):
        hub.download_repository("hf://owner/name")
