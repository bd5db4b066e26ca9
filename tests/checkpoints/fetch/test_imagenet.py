"""The names of ImageNet's classes, from the file of Keras' applications: who gets them, and who does not."""

import hashlib
import http.server
import json
import logging as std_logging
import threading

import numpy as np
import pytest
import safetensors.numpy
from golden_files import golden_arrays, write

import keras_vit
from keras_vit.checkpoints import find, list_models
from keras_vit.checkpoints.fetch import catalogue, download, imagenet

NAMES = [f"thing {i}" for i in range(1000)]


def index(names, synsets=None):
    """The file's bytes, as Keras' has them."""
    synsets = synsets or [f"n{i:08d}" for i in range(1000)]
    return json.dumps({str(i): [s, name.replace(" ", "_")] for i, (s, name) in enumerate(zip(synsets, names))}).encode()


@pytest.fixture
def served(monkeypatch, tmp_path):
    """served(bytes, sha256): a local server has this file at imagenet.URL; returns its requests. The cache is empty."""
    servers = []

    def serve(data, sha256=None):
        requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                requests.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        monkeypatch.setattr(imagenet, "URL", f"http://127.0.0.1:{server.server_port}/imagenet_class_index.json")
        monkeypatch.setattr(imagenet, "SHA256", sha256 or hashlib.sha256(data).hexdigest())
        return requests

    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(
        imagenet, "URL", "http://127.0.0.1:9/imagenet_class_index.json"
    )  # nothing listens on the discard port


@pytest.fixture
def thousand(tmp_path):
    """A timm file with 1000 classes, and the arguments that load it."""
    _, path, arguments = write("timm_vit", tmp_path)
    rng = np.random.default_rng(0)
    head = {"head.weight": rng.normal(size=(1000, 16)), "head.bias": np.zeros(1000)}
    arrays = {**golden_arrays("timm_vit"), **{name: a.astype("float32") for name, a in head.items()}}
    safetensors.numpy.save_file(arrays, path)
    path.with_name("config.json").unlink()
    return path, {"heads": 2, **arguments}


@pytest.fixture
def published(monkeypatch, thousand):
    """The catalogue's deit/tiny is the file of `thousand`."""
    entry = catalogue.dataclasses.replace(
        find("deit/tiny"), url="https://example.org/x.safetensors", preprocessing=None
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "deit/tiny", entry)
    real = download.download
    there = lambda url, *args, **kwargs: thousand[0] if url == entry.url else real(url, *args, **kwargs)  # noqa: E731
    monkeypatch.setattr(download, "download", there)
    return thousand[1]


def test_the_file_is_keras_own_and_in_the_order_of_the_labels(served, shared_data):
    """Made again from the names and synsets of the shared data, it has the very checksum."""
    folder = shared_data / "imagenet_labels"
    names = [line.split(", ")[0] for line in (folder / "imagenet2012_names.txt").read_text().splitlines()]
    synsets = (folder / "imagenet_synsets.txt").read_text().split()
    served(index(names, synsets), imagenet.SHA256)
    found = imagenet.imagenet_names()
    assert len(set(found)) == 1000 and found[281] == "tabby" and found[134] == "crane (n02012849)"
    assert [name.split(" (n")[0] for name in found] == names


def test_it_is_downloaded_once(served):
    requests = served(index(NAMES))
    assert imagenet.imagenet_names() == imagenet.imagenet_names() == tuple(NAMES)
    assert len(requests) == 1


def test_another_file_at_its_address_is_refused(served):
    served(index(NAMES), "0" * 64)
    with pytest.raises(ConnectionError, match="SHA-256"):
        imagenet.imagenet_names()


def test_published_imagenet_models_know_their_classes(served, published, tmp_path):
    """By name or address, and in the files that are saved."""
    served(index(NAMES))
    keras_vit.load("https://example.org/x.safetensors", **published).save(tmp_path / "m.keras")
    assert keras_vit.load(tmp_path / "m.keras").class_names == tuple(NAMES)
    assert keras_vit.load("deit/tiny", **published).class_names == tuple(NAMES)
    assert keras_vit.load("deit/tiny", **published, head="drop").class_names is None
    assert keras_vit.load("deit/tiny", **published, head="reset", classes=1000).class_names is None


def test_other_models_of_1000_classes_get_them_only_when_told(served, thousand):
    requests = served(index(NAMES))
    path, arguments = thousand
    assert keras_vit.load(path, **arguments).class_names is None and not requests
    assert keras_vit.load(path, **arguments, class_names="imagenet").class_names == tuple(NAMES)


def test_without_a_network_there_is_one_warning_and_the_model(offline, published, caplog):
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        model = keras_vit.load("deit/tiny", **published)
    assert model.class_names is None and model.classes == 1000
    warnings = [
        record.getMessage() for record in caplog.records if "classes have numbers, no names" in record.getMessage()
    ]
    assert len(warnings) == 1 and 'class_names="imagenet" tries again' in warnings[0]
    assert "Trying again" not in caplog.text


def test_without_a_network_names_that_were_asked_for_are_an_error(offline, thousand):
    path, arguments = thousand
    with pytest.raises(ConnectionError, match="names of ImageNet's classes could not be downloaded"):
        keras_vit.load(path, **arguments, class_names="imagenet")


def test_names_must_fit_the_classes_and_be_a_list(served, tmp_path):
    served(index(NAMES))
    _, path, arguments = write("timm_vit", tmp_path)
    with pytest.raises(ValueError, match="class_names has 1000 names for 5 classes"):
        keras_vit.load(path, **arguments, class_names="imagenet")
    with pytest.raises(
        ValueError, match='a list with one name per class, a file .*, or "imagenet", got "abcde", and there is no'
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
    assert {model.labels for model in models} == {"imagenet", None}
    families = {model.name.split("/")[0] for model in models if model.labels}
    assert families == {"imagenet2012", "augreg", "sam", "s16-baseline", "flexivit", "bit", "deit", "deit3"}
    for name in (
        "imagenet21k/B_16",
        "augreg/B_16-i21k",
        "bit/M-R50x1",
        "dinov2/s14",
        "siglip/B_16-224",
        "flexivit/B-i21k-90ep",
    ):
        assert find(name).labels is None
    assert sum(model.labels is not None for model in models) == 109
