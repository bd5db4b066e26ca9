"""hf:// addresses: their parts, and a whole repository from a local server that speaks the hub's protocol."""

import http.server
import json
import threading

import numpy as np
import pytest
from golden_files import write
from sampled import pixels

import keras_vit
from keras_vit.checkpoints.fetch import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
    """hub_of(folder): replaces the hub by a local server whose only repository, owner/name, is that folder."""
    constants = pytest.importorskip("huggingface_hub.constants")
    servers = []

    def serve(folder):
        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self, status, body=b"", headers=()):
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", str(len(body)))):
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_GET(self):
                name = self.path.split("?")[0].rsplit("/", 1)[-1]
                if self.path.startswith("/api/models/owner/name/tree"):
                    files = [p for p in folder.iterdir() if p.is_file()]
                    tree = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": p.name} for p in files]
                    return self._answer(200, json.dumps(tree).encode())
                if self.path.startswith("/api/models/owner/name"):
                    files = [{"rfilename": p.name} for p in folder.iterdir() if p.is_file()]
                    return self._answer(200, json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": files}).encode())
                if self.path.startswith("/owner/name/resolve/") and (folder / name).is_file():
                    body = (folder / name).read_bytes()
                    return self._answer(200, body, [("X-Repo-Commit", COMMIT), ("ETag", f'"{name}"')])
                return self._answer(404, b"{}", [("X-Error-Code", "RepoNotFound")])

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_repository_is_fetched_and_loaded(tmp_path, hub_of):
    (tmp_path / "repository").mkdir()
    golden, path, _ = write("hf_vit", tmp_path / "repository")
    (path.parent / "pytorch_model.bin").write_bytes(b"a pickle that nobody needs")
    hub_of(path.parent)
    model = keras_vit.load("hf://owner/name")
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
