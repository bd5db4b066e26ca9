"""`keras-vit serve` under load: many clients, some of which send garbage, stall or hang up; then batching on and off.

    python -m benchmarks.serve --model=deit/tiny --clients=64 --requests=2000
    python -m benchmarks.serve --address=http://127.0.0.1:8501/v1/models/digits

Images are random 320 x 240 JPEGs. Checks: the only 5xx is overload, a 503 with Retry-After; each garbage request is a
4xx with a reason; other answers equal `model.classify`; SIGTERM answers requests in flight. Prints requests per second,
times, memory. With --address it only times a running service, or TensorFlow Serving, with JSON. Linux only.
"""

import base64
import collections
import concurrent.futures
import contextlib
import http.client
import io
import json
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

import numpy as np

from trainers import flags

SECONDS = 5  # the service's timeout for a body, so that slow ones end
MEGABYTES = 2


def jpegs(count: int) -> list[bytes]:
    """Encoded images of coarse random colours."""
    from PIL import Image

    found, rng = [], np.random.default_rng(0)
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype="uint8")).resize((320, 240)).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def port_is_free() -> int:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def check(holds: bool, wrong: str) -> None:
    """Ends the benchmark with a sentence, unless a check holds."""
    if not holds:
        raise ValueError(wrong)


class Model:
    """A served model, by its address: http://HOST:PORT/v1/models/NAME."""

    def __init__(self, address: str):
        parts = urllib.parse.urlsplit(address)
        check(
            parts.scheme == "http" and parts.path.startswith("/v1/models/"),
            f"--address={address}: expected http://HOST:PORT/v1/models/NAME.",
        )
        self.host, self.port, self.path = parts.hostname, parts.port or 80, parts.path

    def get(self, path: str) -> int | None:
        """The status of an address; None without an answer."""
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status
            except OSError:
                return None

    def post(self, body: bytes, kind: str = "image/jpeg"):
        """(status, headers, content) of a request."""
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=120)) as connection:
            # The answer came before the whole body was sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", f"{self.path}:predict", body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    def unfinished(self, body: bytes, hang_up: bool):
        """The answer to a body that stops half-way; None if the client hangs up."""
        head = (
            f"POST {self.path}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length:"
            f" {len(body)}\r\n\r\n"
        )
        with socket.create_connection((self.host, self.port), timeout=60) as connection:
            connection.sendall(head.encode() + body[: len(body) // 2])
            if hang_up:
                return None
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.headers, json.loads(answer.read())


class Running(Model):
    """The service in a separate process, as `running` starts it."""

    def __init__(self, model: str, *options: str):
        super().__init__(f"http://127.0.0.1:{port_is_free()}/v1/models/m")
        command = [sys.executable, "-m", "trainers.serve", f"m={model}", f"--port={self.port}", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Waits until it is ready."""
        while self.get("/readyz") != 200:
            code = self.process.poll()
            check(code is None, f"The service ended with code {code}: {shlex.join(self.process.args)}")
            time.sleep(0.2)

    def megabytes(self) -> float:
        """Resident memory."""
        with open(f"/proc/{self.process.pid}/status") as file:
            [kilobytes] = [line.split()[1] for line in file if line.startswith("VmRSS:")]
        return int(kilobytes) / 1e3

    def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextlib.contextmanager
def running(model: str, *options: str) -> Iterator[Running]:
    """The service, ready to answer; its process ends with the context."""
    service = Running(model, *options)
    try:
        service.wait()
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def check_answer(answer, expected) -> None:
    """Checks one image's answer: names and probabilities of model.classify, or with None only that there is one."""
    [row] = answer["predictions"]
    right = row["status"] == "ok"
    if right and expected is not None:
        right = row["classes"][0] == expected[0].name and np.allclose(
            row["probabilities"], [guess.probability for guess in expected], rtol=0, atol=1e-4
        )
    check(right, f"A wrong answer: {row}. Expected {expected or 'the status ok'}.")


GARBAGE = {
    "junk": (400, lambda s, image: s.post(random.randbytes(5000))),
    "a cut image": (400, lambda s, image: s.post(image[: len(image) // 2], "application/octet-stream")),
    "empty": (400, lambda s, image: s.post(b"")),
    "wrong JSON": (400, lambda s, image: s.post(b'{"instances": [{"b64": 1}', "application/json")),
    "wrong base64": (400, lambda s, image: s.post(b'{"instances": [{"b64": "*"}]}', "application/json")),
    "a page": (415, lambda s, image: s.post(b"<html>", "text/html")),
    "oversize": (413, lambda s, image: s.post(bytes(int(3e6)))),
    "slow": (408, lambda s, image: s.unfinished(image, hang_up=False)),
    "cut off": (None, lambda s, image: s.unfinished(image, hang_up=True)),
}


class Load:
    """What clients ask of a service, and what they find. With `expected` None they only time answers to JSON."""

    def __init__(self, service: Model, images: list[bytes], expected: list | None, garbage: int):
        self.service, self.images, self.expected, self.garbage = service, images, expected, garbage
        self.found: collections.Counter = collections.Counter()
        self.seconds: list[float] = []

    def ask(self, number: int) -> None:
        """One request."""
        chance = random.Random(number)
        i = chance.randrange(len(self.images))
        if chance.random() < self.garbage / 100:
            self.ask_garbage(chance.choice(list(GARBAGE)), self.images[i])
            return
        began = time.perf_counter()
        if self.expected is not None and chance.random() < 0.5:
            body, kind = self.images[i], "image/jpeg"
        else:
            body = json.dumps({"instances": [{"b64": base64.b64encode(self.images[i]).decode()}]}).encode()
            kind = "application/json"
        answer = self.answered("an image", 200, lambda: self.service.post(body, kind))
        check_answer(answer, self.expected and self.expected[i])
        self.seconds.append(time.perf_counter() - began)
        self.found["right"] += 1

    def ask_garbage(self, what: str, image: bytes) -> None:
        status, request = GARBAGE[what]
        if status is None:
            request(self.service, image)
        else:
            answer = self.answered(what, status, lambda: request(self.service, image))
            check(bool(answer["error"]), f"{what}: a {status} without a reason.")
        self.found["refused" if status else "hung up"] += 1

    def answered(self, what: str, expected: int, request: Callable) -> dict:
        """The content of the answer to a request, retried while the service is overloaded."""
        status, headers, answer = request()
        while status == 503:
            check(bool(headers["Retry-After"] and answer["error"]), f"{what}: a 503 without Retry-After or a reason.")
            self.found["503"] += 1
            time.sleep(float(headers["Retry-After"]))
            status, headers, answer = request()
        check(status == expected, f"{what}: expected status {expected}, got {status}: {answer}")
        return answer

    def run(self, clients: int, numbers: range) -> float:
        """Requests per second of `clients` concurrent clients."""
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(self.ask, numbers))
        return len(numbers) / (time.perf_counter() - began)


def in_flight(service: Running, images: list[bytes], clients: int) -> int:
    """How many of `clients` requests begun before SIGTERM are answered; raises unless all are."""
    begun, go, answers = threading.Barrier(clients + 1, timeout=60), threading.Event(), []

    def one(image):
        head = (
            f"POST {service.path}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length:"
            f" {len(image)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
            connection.sendall(head.encode() + image[:-10])
            begun.wait()
            go.wait()
            connection.sendall(image[-10:])
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answers.append((answer.status, answer.read()))

    threads = [threading.Thread(target=one, args=(images[i % len(images)],), daemon=True) for i in range(clients)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(1)  # the service has read what was sent
    threading.Timer(0.5, go.set).start()
    code = service.stop()
    for thread in threads:
        thread.join()
    right = code == 0 and [status for status, _ in answers] == [200] * clients
    check(right, f"Of {clients} requests in flight at SIGTERM, {len(answers)} were answered (code {code}): {answers}")
    return len(answers)


def timed(service: Model, images: list[bytes], expected: list | None, values) -> str:
    """Requests per second and times, in words."""
    load = Load(service, images, expected, 0)
    load.run(values.clients, range(values.clients))
    load.seconds.clear()
    rate = load.run(values.clients, range(values.compared))
    p50, p95, p99 = 1e3 * np.percentile(load.seconds, (50, 95, 99))
    return f"{rate:.1f} requests/s, p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms"


def under_load(service: Running, images: list[bytes], expected: list, values) -> None:
    """Clients that also send garbage, then SIGTERM."""
    load = Load(service, images, expected, values.garbage)
    load.run(values.clients, range(values.clients * 2))  # creates threads and buffers
    memory, edges = [service.megabytes()], np.linspace(0, values.requests, 5).astype(int)
    load.found.clear()
    for first, last in zip(edges, edges[1:]):
        load.run(values.clients, range(first, last))
        memory.append(service.megabytes())
    print(", ".join(f"{count} {what}" for what, count in load.found.items()), flush=True)
    print("resident MB at each quarter: " + ", ".join(f"{m:.0f}" for m in memory), flush=True)
    print(f"{in_flight(service, images, values.clients)} requests in flight at SIGTERM were answered", flush=True)


def main():
    values, images = flags.FLAGS, jpegs(32)
    if values.address:
        model = Model(values.address)
        check(model.get(model.path) is not None, f"--address={values.address}: nothing answers there.")
        return print(timed(model, images, None, values))
    import keras_vit

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))  # `running` ends the service
    expected = keras_vit.load(values.model).classify(images, top_k=5)
    wait = f"--wait_ms={values.wait_ms}"
    options = (f"--batch={values.batch}", wait, f"--seconds={SECONDS}", f"--megabytes={MEGABYTES}")
    with running(values.model, *options) as service:
        under_load(service, images, expected, values)
    for batch in (values.batch, 1) * 2:  # in turns: other work on the machine affects both
        with running(values.model, f"--batch={batch}", wait) as service:
            print(f"--batch={batch}: {timed(service, images, expected, values)}", flush=True)


def run():
    flags.string("model", "deit/tiny", "What keras_vit.load takes.")
    flags.integer("clients", 64, "Requests at a time.", lowest=1)
    flags.integer("requests", 2000, "Requests, garbage included.", lowest=1)
    flags.integer("compared", 500, "Requests of each comparison of batches, or to --address.", lowest=1)
    flags.integer("garbage", 5, "Requests of a hundred that are garbage.", lowest=0, highest=100)
    flags.integer("batch", 16, "The service's --batch, compared with 1.", lowest=1)
    flags.integer("wait_ms", 5, "The service's --wait_ms.", lowest=0)
    flags.string("address", None, "A running service's model, http://HOST:PORT/v1/models/NAME; by default one starts.")
    flags.launch(main)


if __name__ == "__main__":
    run()
