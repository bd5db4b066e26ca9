"""Downloads from a server in this process: complete, interrupted, changed, refused, two at once."""

import concurrent.futures
import hashlib
import http.server
import os
import pathlib
import re
import threading

import numpy as np
import pytest
from interpreters import Interpreter

from keras_vit.checkpoints.fetch import download as module
from keras_vit.checkpoints.fetch.download import cache_folder, cached_path, download, https_address

DATA = np.random.default_rng(0).bytes(1_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
NEW = np.random.default_rng(1).bytes(700_000)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves server.data; server.drops lists how many bytes each of the next answers sends before the connection
    drops.
    """

    def do_GET(self):
        server = self.server
        server.requests.append((self.headers.get("Range"), self.headers.get("If-Range")))
        if server.status != 200:
            return self.send_error(server.status)
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and server.ranges and self.headers.get("If-Range") == server.etag:
            start = int(wanted[1])
        size = len(server.data)
        if start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + server.shift}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", server.etag)
        self.end_headers()
        self.wfile.write(server.data[start:][: server.drops.pop(0) if server.drops else None])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A running server with `url` and the (Range, If-Range) headers of its `requests`. The cache is tmp_path."""
    monkeypatch.setattr(module, "WAIT", 0.0)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.data, running.etag, running.ranges, running.status = DATA, '"1"', True, 200
        running.drops, running.requests, running.shift = [], [], 0
        running.url = f"http://127.0.0.1:{running.server_port}/folder/B_16.npz"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def files_in_folder_of(path):
    """The names of the files in the folder of `path`, except the lock."""
    return {p.name for p in path.parent.iterdir() if p.suffix != ".lock"}


def test_a_complete_transfer(server, tmp_path):
    path = download(server.url, SHA256)
    assert path.read_bytes() == DATA
    assert path == cached_path(server.url)
    assert path.name == "B_16.npz" and path.parent.parent == tmp_path
    assert server.requests == [(None, None)]
    assert files_in_folder_of(path) == {"B_16.npz"}


def test_a_cached_file_needs_no_server(server):
    path = download(server.url, SHA256)
    server.status = 500
    assert download(server.url, SHA256[:8].upper()) == download(server.url) == path
    assert len(server.requests) == 1


def test_it_resumes_where_the_connection_dropped(server):
    server.drops = [300_000, 200_000]
    assert download(server.url, SHA256).read_bytes() == DATA
    assert server.requests == [(None, None), ("bytes=300000-", '"1"'), ("bytes=500000-", '"1"')]


def test_the_next_call_resumes_the_transfer(server, monkeypatch):
    monkeypatch.setattr(module, "TRIES", 1)
    server.drops = [300_000]
    with pytest.raises(ConnectionError, match="300000 of 1000000 bytes arrived"):
        download(server.url)
    path = cached_path(server.url)
    assert not path.exists() and files_in_folder_of(path) == {"B_16.npz.part", "B_16.npz.part.tag"}
    assert download(server.url).read_bytes() == DATA
    assert server.requests[-1] == ("bytes=300000-", '"1"')
    assert files_in_folder_of(path) == {"B_16.npz"}


def test_a_server_without_range_starts_again(server):
    server.ranges = False
    server.drops = [300_000]
    assert download(server.url, SHA256).read_bytes() == DATA
    assert server.requests[1] == ("bytes=300000-", '"1"')


@pytest.mark.parametrize("etag", ['"2"', 'W/"2"'])
def test_a_file_that_changed_meanwhile_starts_again(server, monkeypatch, etag):
    monkeypatch.setattr(module, "TRIES", 1)
    server.drops = [300_000]
    with pytest.raises(ConnectionError):
        download(server.url)
    server.data, server.etag = NEW, etag
    assert download(server.url).read_bytes() == NEW
    assert len(server.requests) == 2


def test_without_a_version_nothing_is_resumed(server):
    server.etag = 'W/"weak"'
    server.drops = [300_000]
    assert download(server.url).read_bytes() == DATA
    assert server.requests == [(None, None), (None, None)]


def test_a_part_that_was_whole_already(server):
    """As a crash between the last byte and the renaming leaves it: the server answers 416."""
    path = cached_path(server.url)
    path.parent.mkdir()
    (path.parent / "B_16.npz.part").write_bytes(DATA)
    (path.parent / "B_16.npz.part.tag").write_text('"1"')
    assert download(server.url, SHA256).read_bytes() == DATA
    assert server.requests == [("bytes=1000000-", '"1"')]


def test_a_part_longer_than_the_file_starts_again(server):
    path = cached_path(server.url)
    path.parent.mkdir()
    (path.parent / "B_16.npz.part").write_bytes(DATA + b"more")
    (path.parent / "B_16.npz.part.tag").write_text('"1"')
    assert download(server.url, SHA256).read_bytes() == DATA


def test_a_range_that_was_not_asked_for_starts_again(server):
    server.drops, server.shift = [300_000], 1
    assert download(server.url, SHA256).read_bytes() == DATA
    assert [request[0] for request in server.requests] == [None, "bytes=300000-", None]


def test_attempts_without_a_new_byte_end(server):
    server.drops = [300_000] + [0] * 100
    with pytest.raises(ConnectionError, match="300000 of 1000000 bytes arrived"):
        download(server.url)
    assert len(server.requests) == module.TRIES
    assert not cached_path(server.url).exists()


def test_a_wrong_checksum(server):
    with pytest.raises(ValueError, match=f"{SHA256}, expected 12345678..."):
        download(server.url, "12345678")
    assert files_in_folder_of(cached_path(server.url)) == set()


def test_a_cached_file_with_a_wrong_checksum_is_fetched_again(server):
    path = download(server.url)
    path.write_bytes(b"something else")
    assert download(server.url, SHA256).read_bytes() == DATA


@pytest.mark.parametrize("sha256", ["1234567", "not a checksum", SHA256 + "0"])
def test_a_malformed_checksum(server, sha256):
    with pytest.raises(ValueError, match="the first 8 or more"):
        download(server.url, sha256)
    assert not server.requests


@pytest.mark.parametrize(
    "status, kind, attempts", [(404, FileNotFoundError, 1), (403, ConnectionError, 1), (503, ConnectionError, 5)]
)
def test_a_refusal_says_what_to_do(server, tmp_path, status, kind, attempts):
    server.status = status
    with pytest.raises(kind) as caught:
        download(server.url)
    for part in (server.url, str(status), str(tmp_path), "keras_vit.load"):
        assert part in str(caught.value)
    assert len(server.requests) == attempts
    assert files_in_folder_of(cached_path(server.url)) == set()


def test_nothing_listens(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match="refused.*pass its path to keras_vit.load"):
        download(server.url)


def test_an_unknown_host(server, monkeypatch):
    def no_dns(*args, **kwargs):
        raise module.socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", no_dns)
    with pytest.raises(ConnectionError, match="Name or service not known"):
        download("https://example.invalid/file.npz")


def test_two_threads_at_once(server):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(download(server.url, SHA256))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(paths) == {cached_path(server.url)} and len(paths) == 4
    assert paths[0].read_bytes() == DATA
    assert len(server.requests) == 1


def downloaded(url, cache):
    os.environ["no_proxy"] = "*"
    return str(download(url, SHA256, cache=cache))


@pytest.mark.processes
def test_two_processes_at_once(server):
    with Interpreter() as one, Interpreter() as other, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path in pool.map(lambda process: process.run(downloaded, server.url, str(cache_folder())), (one, other)):
            assert pathlib.Path(path).read_bytes() == DATA
    assert len(server.requests) == 1


def test_progress_elsewhere_is_a_line_per_tenth(server, capsys):
    download(server.url)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 11
    assert re.fullmatch(r"B_16.npz  100%  1.0 of 1.0 MB  [\d.]+ MB/s", lines[-1])
    download(f"{server.url}?again", progress=False)
    assert not capsys.readouterr().err


def test_progress_on_a_terminal_is_one_line(server, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    download(server.url)
    written = capsys.readouterr().err
    assert written.count("\n") == 1 and "100%  1.0 of 1.0 MB" in written.split("\r")[-1]


def test_addresses():
    url = "gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz"
    https = "https://storage.googleapis.com/vit_models/imagenet21k+imagenet2012/ViT-B_16.npz"
    assert https_address(url) == https_address(https) == https
    assert cached_path(url, "a") == cached_path(https, "a")
    assert cached_path(url, "a").name == "ViT-B_16.npz"
    assert cached_path(url, "a") != cached_path(url.replace("+imagenet2012", ""), "a")
    assert cached_path("https://a.b/c%20d.pth?x=1", "a").name == "c_d.pth"
    for wrong in ("hf://timm/deit", "B_16.npz", "/tmp/B_16.npz", "ftp://a.b/c", "https:///c"):
        with pytest.raises(ValueError, match="https://, http:// or gs://"):
            https_address(wrong)


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_VIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "keras_vit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == pathlib.Path("/home/somebody/.cache/keras_vit")
    monkeypatch.setenv("KERAS_VIT_CACHE", "/data/cache")
    assert cache_folder() == pathlib.Path("/data/cache")
    assert cache_folder("~/mine") == pathlib.Path("/home/somebody/mine")


def test_a_cache_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Set KERAS_VIT_CACHE or cache= to another cache"):
        download(server.url, cache=tmp_path / "file")
