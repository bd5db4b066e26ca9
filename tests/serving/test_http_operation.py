"""The operation of the HTTP service: readiness, its end, keys, overload and the order of requests."""

import concurrent.futures
import copy
import os
import signal
import threading
import time

import pytest
import uvicorn
from fastapi.testclient import TestClient
from forest import IMAGES, PREDICT, answering, instances, png, predictions, small_vit

from keras_vit.serving.http import served as served_module
from keras_vit.serving.http.app import application
from keras_vit.serving.http.bodies import Limits
from keras_vit.serving.http.middleware import OnlyHosts
from keras_vit.serving.http.served import Served
from keras_vit.serving.http.server import Server, bind, run


def test_only_the_names_of_its_own_machine_reach_a_service_that_listens_to_it_alone(forest):
    app = application([copy.copy(forest)])
    app.add_middleware(OnlyHosts, hosts=("localhost", "127.0.0.1", "::1"))
    with TestClient(app) as client:
        for host in ("localhost", "LOCALHOST:8501", "127.0.0.1:80", "[::1]", "[::1]:8501"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200
        for host in ("evil.example:8501", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1].evil.example"):
            answer = client.get("/", headers={"Host": host})
            assert answer.status_code == 400 and f'The Host header is "{host}"' in answer.json()["error"]


def test_until_the_models_are_ready_it_says_so_and_from_the_moment_it_is_told_to_end(forest, caplog):
    caplog.set_level("INFO", logger="absl")
    served, begun, made = copy.copy(forest), threading.Event(), threading.Event()
    served.warm_up = lambda *_: (begun.set(), made.wait(60))
    app = application([served])
    server = Server(uvicorn.Config(app), app.state.service)

    def state():
        return client.get("/v1/models/forest").json()["model_version_status"][0]["state"]

    def post(verb="predict"):
        return client.post(f"/v1/models/forest:{verb}", content=png(IMAGES[0]))

    with TestClient(app) as client:
        begun.wait(60)
        assert client.get("/healthz").status_code == 200 and state() == "LOADING"
        for answer in (client.get("/readyz"), post(), post("heads")):
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1", answer.text
            assert "The models are being made ready." in answer.json()["error"]
        assert not any("ready after" in line for line in caplog.messages)
        made.set()
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        assert any("All models are ready after" in line for line in caplog.messages)
        assert state() == "AVAILABLE" and post().status_code == 200
        server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit and state() == "UNLOADING"
        assert client.get("/readyz").json() == {"error": "The service is ending."}
        assert post().status_code == 200, "what still comes is answered"


def test_an_end_in_the_middle_of_warming_up_leaves_the_rest():
    served, seen = Served("m", small_vit()), []
    served.signatures = {"a": lambda images: seen.append("a"), "b": lambda images: seen.append("b")}
    served.warm_up(1, lambda: not seen)
    assert seen == ["a"]


def test_models_that_cannot_be_made_ready_end_the_service(forest, monkeypatch):
    served = copy.copy(forest)
    served.warm_up = lambda *_: 1 / 0
    app = application([served])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers of this process stay
    with bind("127.0.0.1", 0) as bound, pytest.raises(ZeroDivisionError):
        run(app, bound, 1)
    assert app.state.service.why_not_ready() == "The models cannot be made ready: division by zero"


def test_the_bodies_of_all_requests_are_bounded_together(forest):
    limits = Limits(megabytes=0.02, megabytes_together=0.01)
    assert limits.bytes_together == 20_000, "never less than one request may have"
    app = application([copy.copy(forest)], limits)
    memory = app.state.service.memory
    with answering(app) as client, memory.of_request() as take:
        take(20_000 - len(png(IMAGES[0])))
        assert client.post(PREDICT, content=png(IMAGES[0])).status_code == 200
        answer = client.post(PREDICT, content=png(IMAGES[0]) + b"x")
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
        assert f"have {20_000 - len(png(IMAGES[0])):,} bytes, of 20,000 at most. Try again." in answer.json()["error"]
    assert memory.held == 0


def test_a_mistake_of_ours_is_json_too_and_counted(forest):
    app = application([copy.copy(forest)])
    with answering(app, raise_server_exceptions=False) as client:
        app.state.service.batchers["forest", "serving_default"].function = lambda images: 1 / 0
        answer = client.post(PREDICT, content=png(IMAGES[0]))
        assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]
        assert 'code="500",model="forest",signature="serving_default"' in client.get("/metrics").text


def test_a_key_is_asked_for_where_there_is_one(forest):
    with answering(application([copy.copy(forest)], api_key="s3cret")) as client:
        given = {"content": png(IMAGES[0])}
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer s3cre"}):
            answer = client.post(PREDICT, headers=headers, **given)
            assert answer.status_code == 401 and "X-API-Key" in answer.json()["error"]
        for headers in ({"X-API-Key": "s3cret"}, {"Authorization": "Bearer s3cret"}):
            assert client.post(PREDICT, headers=headers, **given).status_code == 200
        for path in ("/v1/models", "/v1/models/forest", "/v1/models/forest/metadata", "/v1/models/wood"):
            assert client.get(path).status_code == 401 and client.get(path).headers["WWW-Authenticate"] == "Bearer"
        for verb in ("features", "attention", "heads", "nothing"):
            assert client.post(f"/v1/models/forest:{verb}", **given).status_code == 401
        for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200, "for browsers and probes, which have no key"


def test_keys_are_compared_as_bytes_and_the_word_bearer_in_any_case(forest):
    with answering(application([copy.copy(forest)], api_key="schlüssel")) as client:
        for headers in ({"X-API-Key": "schlüssel".encode()}, {"Authorization": "bearer schlüssel".encode()}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/v1/models", headers={"Authorization": "Basic schlüssel".encode()}).status_code == 401


def test_overload_is_said_with_when_to_come_back(forest):
    app = application([copy.copy(forest)], max_requests=0)
    with answering(app) as client:
        answer = client.post(PREDICT, content=png(IMAGES[0]))
        assert (
            answer.status_code == 503 and answer.headers["Retry-After"] == "1" and "Try again" in answer.json()["error"]
        )
    app = application([copy.copy(forest)], max_queue=2)
    with answering(app) as client:
        answer = client.post(PREDICT, json=instances(*map(png, IMAGES)))
        assert answer.status_code == 413 and "3 images, of 2 at most" in answer.json()["error"]  # it would never fit
        app.state.service.batchers["forest", "serving_default"].max_queue = 0
        answer = client.post(PREDICT, content=png(IMAGES[0]))
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"


def test_on_jax_all_sizes_of_batches_are_compiled_before_it_is_ready(forest, monkeypatch):
    served, seen = copy.copy(forest), []
    served.signatures = {"serving_default": lambda images: seen.append(len(images))}
    for backend, sizes in (("tensorflow", [1]), ("jax", [1, 2, 4, 8])):
        monkeypatch.setattr(served_module.keras.backend, "backend", lambda backend=backend: backend)
        seen.clear()
        served.warm_up(6)
        assert seen == sizes


def test_what_takes_too_long_is_overload(forest):
    served = copy.copy(forest)
    decode, served.decode_with_size = served.decode_with_size, lambda image: time.sleep(0.8) or decode(image)
    with answering(application([served], Limits(seconds=0.5))) as client:
        for verb in ("predict", "heads"):
            answer = client.post(f"/v1/models/forest:{verb}", content=png(IMAGES[0]))
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
            assert "within 0.5 seconds" in answer.json()["error"]


def test_many_images_of_one_request_are_not_decoded_all_at_a_time_nor_before_those_of_others(forest):
    served, lock, order, most = copy.copy(forest), threading.Lock(), [], [0, 0]
    decode = served.decode_with_size

    def slowly(image):
        with lock:
            most[0] += 1
            most[1] = max(most)
        time.sleep(0.02)
        with lock:
            most[0] -= 1
            order.append(image)
        return decode(image)

    served.decode_with_size = slowly
    small, other = png(IMAGES[0]), png(IMAGES[1])
    with answering(application([served])) as client:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            many = pool.submit(client.post, PREDICT, json=instances(*[small] * 48))
            while not order:
                time.sleep(0.001)
            assert client.post(PREDICT, content=other).status_code == 200
            assert len(predictions(many.result())) == 48
    assert most[1] <= os.cpu_count() and order.index(other) < 40


def test_where_nothing_can_listen_is_said_as_addresses_are_written():
    for host, place in (("nowhere.invalid", "nowhere.invalid:8501"), ("::ffff:1", r"\[::ffff:1\]:8501")):
        with pytest.raises(OSError, match=f"^Cannot listen on {place}: [A-Z].* Give another --port, or --host.$"):
            bind(host, 8501)
