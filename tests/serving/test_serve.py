"""`keras-vit serve` as a process: a wrong start is one line, and SIGTERM finishes what was begun."""

import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from interpreters import Fork, wait_for

import keras_vit
from trainers.serve import named, names_of_classes

pytestmark = pytest.mark.processes


def test_names_in_addresses():
    assert named("deit/tiny") == ("tiny", "deit/tiny")
    assert named("runs/my photos/") == ("my_photos", "runs/my photos/")
    assert named("out/model.keras") == ("model", "out/model.keras")
    assert named("cats=gs://b/x=1") == ("cats", "gs://b/x=1")
    assert named(".") == (pathlib.Path.cwd().name, ".") and named("..")[0] == pathlib.Path.cwd().parent.name


def test_names_of_classes_are_of_one_model_or_of_models_by_name():
    assert names_of_classes(None, ["a", "b"]) == {}
    for text in ("names.txt", "a=names.txt"):
        assert names_of_classes(text, ["a"]) == {"a": "names.txt"}
    assert names_of_classes("x=1/names.txt", ["a"]) == {"a": "x=1/names.txt"}
    assert names_of_classes("b=b.txt,a=imagenet", ["a", "b"]) == {"a": "imagenet", "b": "b.txt"}
    for text, words in (
        ("names.txt", 'got "names.txt". Models: a, bird.'),
        ("a=x,bid=y", 'got "bid=y". Did you mean "bird"?'),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            names_of_classes(text, ["a", "bird"])


@pytest.fixture
def model(tmp_path):
    vit = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=3)
    vit.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    keras_vit.save(vit, tmp_path / "m.keras")
    return tmp_path / "m.keras"


@pytest.fixture
def start(tmp_path):
    """start(arguments...): `python -m trainers.serve arguments`, as a Fork that ends with the test."""
    started = []

    def begin(*arguments):
        started.append(Fork("trainers.serve", *map(str, arguments), output=tmp_path / f"{len(started)}.txt"))
        return started[-1]

    yield begin
    for fork in started:
        fork.send_signal(signal.SIGKILL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse()


def wait_until_ready(process, port):
    def ready():
        assert process.poll() is None, process.printed()
        with contextlib.suppress(OSError):
            return get(port, "/readyz").status == 200

    wait_for(ready, [process], pause=0.1)


def test_sigterm_finishes_what_was_begun_and_takes_nothing_new(model, start):
    port = free_port()
    process = start(model, f"--port={port}")
    wait_until_ready(process, port)
    body = tf.io.encode_png(np.zeros((8, 8, 3), "uint8")).numpy()
    begun = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begun.putrequest("POST", "/v1/models/m:predict")
    begun.putheader("Content-Type", "image/png")
    begun.putheader("Content-Length", str(len(body)))
    begun.endheaders()
    begun.send(body[:20])
    while "open_requests 1.0" not in get(port, "/metrics").read().decode():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    while True:  # until the port is closed
        try:
            get(port, "/healthz")
        except OSError:
            break
        time.sleep(0.05)
    begun.send(body[20:])
    answer = begun.getresponse()
    assert answer.status == 200 and b'"status":"ok"' in answer.read()
    assert process.wait() == 0


def test_a_wrong_start_is_one_line(model, start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            f"{model} --port={port}": (
                f"Error: Cannot listen on 127.0.0.1:{port}: Address already in use. Give another --port"
            ),
            f"{model} {model}": 'Error: Two models would be served as "m": give them names, NAME=MODEL.',
            "": "Error: Give at least one model",
            f"{model} --class_names=nowhere.txt": (
                'Error: The class names of "m" cannot be read: class_names should be a list with one name per class, a'
            ),
            f"{model} --api_key_file=/dev/null": "Error: /dev/null is empty: write the API key into it.",
        }
        processes = {line: start(*line.split()) for line in cases}
        for line, words in cases.items():
            code, said = processes[line].wait(), processes[line].printed()
            assert code == 1 and re.search(f"^{re.escape(words)}", said, re.M), said[-2000:]
            assert "Traceback" not in said
            assert "Loading" not in said, "flags and files are checked before models load"


def test_clients_that_hang_up_in_the_middle_do_no_harm(model, start):
    port = free_port()
    process = start(model, f"--port={port}", "--seconds=2")
    wait_until_ready(process, port)
    head = (
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nContent-Type:"
        b" image/png\r\n\r\n"
    )

    def hang_up():
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head + b"x")

    threads = [threading.Thread(target=hang_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for sent, status, words in (
        (b"\x16\x03\x01\x02\0\x01\0\r\n\r\n", 400, "It is not HTTP: illegal request line"),  # as TLS begins
        (b"GET / HTTP/1.1\r\n\r\n", 400, "It is not HTTP: Missing mandatory Host: header"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000, 431, "Its head is larger than 65,536 bytes"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400, "The Host header is"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400, "bad Content-Length"),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(sent)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status == status and words in json.loads(answer.read())["error"]
    for words in (b"", head[:30]):  # no head, or a half
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            silent.sendall(words)
            assert silent.recv(1000) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in kept.recv(1000)
        time.sleep(0.5)
        kept.sendall(head[:30])  # the head of the second request is never whole
        while kept.recv(1000):
            pass
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(head + b"x")
        assert b"408" in slow.recv(1000).split(b"\r\n")[0]
    for thread in threads:
        thread.join()
    assert get(port, "/readyz").status == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0 and "Traceback" not in process.printed(), process.printed()[-2000:]
