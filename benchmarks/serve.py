"""`keras-vit serve` under load: many clients, some of which send garbage, stall or hang up; then batching on and off.

    python -m benchmarks.serve --model=deit_tiny --clients=64 --requests=2000

Images are random 320 x 240 JPEGs. Asserts: the only 5xx is overload, a 503 with Retry-After; each garbage request is a
4xx with a reason; other answers equal `model.classify`; SIGTERM answers requests in flight. Prints requests per second,
times, memory. Linux only.
"""

import base64
import collections
import concurrent.futures
import contextlib
import http.client
import io
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time

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


class Running:
    """The service in a separate process, ready to answer."""

    def __init__(self, model: str, *options: str):
        self.port = port_is_free()
        command = [sys.executable, "-m", "trainers.serve", f"m={model}", f"--port={self.port}", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while self.get("/readyz") != 200:
            if self.process.poll() is not None:
                raise RuntimeError(f"The service ended with code {self.process.returncode}: {' '.join(command)}")
            time.sleep(0.2)

    def get(self, path: str) -> int | None:
        """The status of an address; None without an answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status
            except OSError:
                return None

    def post(self, body: bytes, kind: str = "image/jpeg"):
        """(status, headers, content) of a request."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            # The answer came before the whole body was sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", "/v1/models/m:predict", body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    def unfinished(self, body: bytes, hang_up: bool):
        """The answer to a body that stops half-way; None if the client hangs up."""
        head = (
            "POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length:"
            f" {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(head.encode() + body[: len(body) // 2])
            if hang_up:
                return None
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.headers, json.loads(answer.read())

    def megabytes(self) -> float:
        """Resident memory."""
        with open(f"/proc/{self.process.pid}/status") as file:
            [kilobytes] = [line.split()[1] for line in file if line.startswith("VmRSS:")]
        return int(kilobytes) / 1e3

    def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def right(answer, expected) -> None:
    """Asserts the names and probabilities of model.classify."""
    [row] = answer["predictions"]
    assert row["status"] == "ok" and row["classes"][0] == expected[0].name, (row, expected)
    np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in expected], atol=1e-4)


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
    """What clients ask of a service, and what they find."""

    def __init__(self, service: Running, images: list[bytes], expected: list, garbage: int):
        self.service, self.images, self.expected, self.garbage = service, images, expected, garbage
        self.found: collections.Counter = collections.Counter()
        self.seconds: list[float] = []

    def ask(self, number: int) -> None:
        """One request, retried while the service is overloaded."""
        chance = random.Random(number)
        i = chance.randrange(len(self.images))
        if chance.random() < self.garbage / 100:
            self.ask_garbage(chance.choice(list(GARBAGE)), self.images[i])
            return
        began = time.perf_counter()
        if chance.random() < 0.5:
            body, kind = self.images[i], "image/jpeg"
        else:
            body = json.dumps({"instances": [{"b64": base64.b64encode(self.images[i]).decode()}]}).encode()
            kind = "application/json"
        status, headers, answer = self.service.post(body, kind)
        while status == 503:
            assert headers["Retry-After"] and answer["error"]
            self.found["503"] += 1
            time.sleep(float(headers["Retry-After"]))
            status, headers, answer = self.service.post(body, kind)
        assert status == 200, (status, answer)
        right(answer, self.expected[i])
        self.seconds.append(time.perf_counter() - began)
        self.found["right"] += 1

    def ask_garbage(self, what: str, image: bytes) -> None:
        status, request = GARBAGE[what]
        answer = request(self.service, image)
        if status is not None:
            assert answer[0] == status and answer[2]["error"], (what, answer)
        self.found["refused" if status else "hung up"] += 1

    def run(self, clients: int, numbers: range) -> float:
        """Requests per second of `clients` concurrent clients."""
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(self.ask, numbers))
        return len(numbers) / (time.perf_counter() - began)


def in_flight(service: Running, images: list[bytes], clients: int) -> int:
    """How many of `clients` requests begun before SIGTERM are answered; raises unless all are."""
    begun, go, answers = threading.Barrier(clients + 1), threading.Event(), []

    def one(image):
        head = (
            "POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length:"
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

    threads = [threading.Thread(target=one, args=(images[i % len(images)],)) for i in range(clients)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(1)  # the service has read what was sent
    threading.Timer(0.5, go.set).start()
    code = service.stop()
    for thread in threads:
        thread.join()
    assert code == 0 and [status for status, _ in answers] == [200] * clients, (code, answers)
    return len(answers)


def main():
    import keras_vit

    values, images = flags.FLAGS, jpegs(32)
    expected = keras_vit.load(values.model).classify(images, top_k=5)
    options = (f"--seconds={SECONDS}", f"--megabytes={MEGABYTES}")
    service = Running(values.model, *options)
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
    for batch in (16, 1, 16, 1):  # in turns: other work on the machine affects both
        service = Running(values.model, f"--batch={batch}")
        load = Load(service, images, expected, 0)
        load.run(values.clients, range(values.clients))
        load.seconds.clear()
        rate = load.run(values.clients, range(values.compared))
        p50, p99 = 1e3 * np.percentile(load.seconds, (50, 99))
        print(f"--batch={batch}: {rate:.1f} requests/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)
        service.stop()


def run():
    flags.string("model", "deit/tiny", "What keras_vit.load takes.")
    flags.integer("clients", 64, "Requests at a time.", lowest=1)
    flags.integer("requests", 2000, "Requests, garbage included.", lowest=1)
    flags.integer("compared", 500, "Requests of each comparison of batches.", lowest=1)
    flags.integer("garbage", 5, "Requests of a hundred that are garbage.", lowest=0, highest=100)
    flags.launch(main)


if __name__ == "__main__":
    run()
