"""State that the endpoints share: models with their batches, limits, the key, counts."""

import asyncio
import base64
import concurrent.futures
import contextlib
import dataclasses
import functools
import hmac
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import prometheus_client as prometheus
from absl import logging
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from keras_vit.io.suggest import did_you_mean
from keras_vit.prediction.decoding_in_graph import OK
from keras_vit.serving.http.batching import Batcher, Overloaded
from keras_vit.serving.http.bodies import PIXELS, Limits, Memory, Refused
from keras_vit.serving.http.served import Served, check_tiles
from keras_vit.serving.http.sizes import check_size

# States of a model in TensorFlow Serving.
LOADING, AVAILABLE, UNLOADING = "LOADING", "AVAILABLE", "UNLOADING"


def _decoded(decode, image, megapixels) -> Any:
    try:
        check_size(image, megapixels)
        return decode(image)
    except Refused as refusal:
        return refusal


def _usable(decoded):
    """What was decoded. Raises Refused, with the first reason, if nothing was."""
    refusals = [one for one in decoded if isinstance(one, Refused)]
    if len(refusals) == len(decoded):
        which = "" if len(decoded) == 1 else f"None of the {len(decoded)} images can be used. The first one: "
        raise Refused(refusals[0].status, which + refusals[0].reason)
    return [one for one in decoded if not isinstance(one, Refused)]


def _with_status(decoded, results):
    """The results of what was decoded, each with its status, and the reasons of what was not, in order."""
    following = iter(results)
    return [{"status": x.reason} if isinstance(x, Refused) else {**next(following), "status": OK} for x in decoded]


def _mask(served, image, megapixels) -> bytes:
    check_size(image, megapixels)
    return served.mask(image)


def _png(pixels):
    """Pixels (h, w, c) as a data URL of a PNG."""
    import tensorflow as tf

    return "data:image/png;base64," + base64.b64encode(tf.io.encode_png(pixels[..., :3]).numpy()).decode()


class Metrics:
    """An application's counts and times for Prometheus, in a separate registry."""

    def __init__(self):
        self.registry = prometheus.CollectorRegistry()
        of = {"registry": self.registry, "namespace": "keras_vit"}
        self.requests = prometheus.Counter("requests", "Requests answered.", ["model", "signature", "code"], **of)
        self.seconds = prometheus.Histogram(
            "request_seconds", "From the first byte of a request to its answer.", ["model"], **of
        )
        self.images = prometheus.Counter("images", "Images of requests.", ["model", "outcome"], **of)
        self.batch = prometheus.Histogram(
            "batch_rows", "Images computed together.", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64, 128), **of
        )
        self.waiting = prometheus.Gauge("waiting_rows", "Images that wait to be computed.", ["model"], **of)
        self.open = prometheus.Gauge("open_requests", "Requests that are being answered.", **of)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)


class Service:
    """The state that an application's endpoints share.

    Args:
        models: the models to serve.
        limits: of requests; their images are bounded by `max_queue` too.
        max_rows, max_wait, max_queue: of each signature's Batcher.
        max_requests: most concurrent requests; more get a 503.
        api_key: required in requests, or None.

    Attributes:
        state: of all models: LOADING, AVAILABLE, or UNLOADING during shutdown.
        failure: why the models failed to load, or None.
    """

    def __init__(
        self,
        models: Sequence[Served],
        limits: Limits,
        max_rows: int,
        max_wait: float,
        max_queue: int,
        max_requests: int,
        api_key: str | None,
    ):
        self.models = {served.name: served for served in models}
        # More would be refused every time.
        self.limits = dataclasses.replace(limits, images=min(limits.images, max_queue))
        self.max_requests, self.api_key = max_requests, api_key
        self.metrics, self.open, self.memory = Metrics(), 0, Memory(self.limits.bytes_together)
        self.state, self.max_rows = LOADING, max_rows
        self.failure: Exception | None = None
        self.one_by_one = asyncio.Lock()  # for rare, expensive requests
        self.cores = os.cpu_count() or 1
        # Few: each may contain an image of the largest size.
        self.decoding = concurrent.futures.ThreadPoolExecutor(self.cores, "decode")
        self.batchers = {
            (served.name, signature): Batcher(
                function, max_rows, max_wait, max_queue, self.metrics.batch.labels(served.name).observe
            )
            for served in models
            for signature, function in served.signatures.items()
        }
        for served in models:
            waiting = [batcher for (name, _), batcher in self.batchers.items() if name == served.name]
            self.metrics.waiting.labels(served.name).set_function(lambda mine=waiting: sum(b.waiting for b in mine))
        self.metrics.open.set_function(lambda: self.open)

    async def warm_up(self) -> None:
        """Compiles the models and makes them available. An error becomes `failure`."""
        began = time.monotonic()
        try:
            for served in self.models.values():
                await run_in_threadpool(served.warm_up, self.max_rows, lambda: self.state == LOADING)
        except Exception as error:
            self.failure = error
        if self.state == LOADING and self.failure is None:
            self.state = AVAILABLE
            logging.info("All models are ready after %.1f seconds of compiling.", time.monotonic() - began)

    def why_not_ready(self) -> str:
        """Why requests should go elsewhere, or ""."""
        if self.failure is not None:
            return f"The models cannot be made ready: {self.failure}"
        return {LOADING: "The models are being made ready.", AVAILABLE: "", UNLOADING: "The service is ending."}[
            self.state
        ]

    def check_loaded(self) -> None:
        """Raises Refused, 503, until the models are loaded; lets requests through while the process ends."""
        if self.state == LOADING:
            raise Refused(503, f"{self.why_not_ready()} Try again.")

    def model(self, name: str) -> Served:
        """The model of that name. Raises Refused, 404, if there is none."""
        if name not in self.models:
            raise Refused(
                404, f'There is no model "{name}".{did_you_mean(name, self.models)} Served: {", ".join(self.models)}.'
            )
        return self.models[name]

    def check_key(self, request: Request) -> None:
        """Raises Refused, 401, for a request without the key."""
        if self.api_key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        # The server has read headers as Latin-1.
        if not hmac.compare_digest(given.encode("latin-1"), self.api_key.encode()):
            raise Refused(
                401,
                "The API key is missing or wrong: send it as the header X-API-Key, or as Authorization: Bearer KEY.",
            )

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Bounds a request's time once its body has arrived. Raises Refused, 503, without room or time."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except Overloaded as error:
            raise Refused(503, f"Too much to do: {error} Try again.") from None
        except TimeoutError:
            raise Refused(
                503, f"There was no time for this request within {self.limits.seconds:g} seconds. Try again."
            ) from None

    async def decoded(self, served: Served, images: list[bytes], decode: Callable[[bytes], Any]) -> list[Any | Refused]:
        """The result of `decode` for each image, or why not; large requests let others' images in between."""
        turn, loop = asyncio.Semaphore(self.cores), asyncio.get_running_loop()

        async def one(image):
            async with turn:
                return await loop.run_in_executor(self.decoding, _decoded, decode, image, self.limits.megapixels)

        found = await asyncio.gather(*map(one, images))
        refused = sum(isinstance(one, Refused) for one in found)
        self.metrics.images.labels(served.name, "refused").inc(refused)
        self.metrics.images.labels(served.name, "decoded").inc(len(found) - refused)
        return found

    def _batcher(self, served, signature):
        """The batcher of a model's signature; Refused, 400, for an unknown one."""
        batcher = self.batchers.get((served.name, signature))
        if batcher is not None:
            return batcher
        if f"encoded_{signature}" in served.signatures:
            hint = f' For image files it is "encoded_{signature}".'
        elif signature in ("pixels", "pixels_uint8"):
            hint = f" {PIXELS}"
        elif signature in ("encoded_features", "encoded_attention"):  # spelt right; the model has none
            hint = ""
        else:
            hint = did_you_mean(signature, served.signatures)
        raise Refused(
            400, f'"{served.name}" has no signature "{signature}".{hint} Valid: {", ".join(served.signatures)}.'
        )

    async def rows(
        self, served: Served, signature: str, images: list[bytes], threshold: float | None = None
    ) -> list[dict]:
        """Each image's result, with its "status": OK, or only the reason why it was not decoded.

        Args:
            threshold: objects have scores above it; None for the model's.

        Raises:
            Refused: 400 for an unknown signature, or with the first reason if no image can be decoded; 503 under
                overload.
        """
        batcher, threshold = self._batcher(served, signature), served.threshold(threshold)
        async with self.in_time():
            decoded = await self.decoded(served, images, served.decode_with_size)
            good = _usable(decoded)
            rows = await batcher.submit([pixels for pixels, _ in good])
        results = [served.at_size(signature, row, size, threshold) for row, (_, size) in zip(rows, good)]
        return _with_status(decoded, results)

    async def rows_by_tiles(
        self, served: Served, signature: str, images: list[bytes], threshold: float | None, tiles: int
    ) -> list[dict]:
        """The same of objects found in overlapping tiles of `tiles` pixels, each of which counts as an image.

        Raises:
            Refused: as in `rows`; 400 for a model or signature without objects, 413 for too many tiles.
        """
        batcher = self._batcher(served, signature)
        tiling, threshold = served.tiling(signature, tiles), served.threshold(threshold)
        decode = functools.partial(served.decode_tiles, tiling=tiling, most=self.limits.images)
        async with self.in_time():
            decoded = await self.decoded(served, images, decode)
            good = _usable(decoded)
            pixels = [part for parts, _, _ in good for part in parts]
            check_tiles(len(pixels), self.limits.images)
            rows = iter(await batcher.submit(pixels))
            results = []
            for parts, windows, size in good:
                own = list(itertools.islice(rows, len(parts)))
                results.append(await run_in_threadpool(served.of_windows, own, windows, size, threshold))
        return _with_status(decoded, results)

    async def heads(self, served: Served, image: bytes, block: int) -> dict:
        """The attention of each head of a block, and the picture as the model saw it.

        Raises:
            Refused: if the image cannot be decoded, the block does not exist, or under overload.
        """
        async with self.in_time():
            [found] = await self.decoded(served, [image], served.decode_with_size)
            if isinstance(found, Refused):
                raise found
            pixels, _ = found
            async with self.one_by_one:
                maps = await run_in_threadpool(served.heads, pixels, block)
            return {**maps, "image": await run_in_threadpool(_png, pixels)}

    async def zero_shot(self, served: Served, images: list[bytes], labels: list[str], templates: str) -> list[dict]:
        """Each image's labels, the most probable first, with its "status", as `rows` does.

        Raises:
            Refused: 400 for a model without texts, or unusable labels; and as in `rows`.
        """
        if served.texts is None:
            raise Refused(400, f'"{served.name}" has no text encoder: send images to :predict.')
        rows = await self.rows(served, "embeddings", images)
        good = [row["embeddings"] for row in rows if "embeddings" in row]
        async with self.in_time(), self.one_by_one:
            found = iter(await run_in_threadpool(served.texts.zero_shot, good, labels, templates))
        return [{**next(found), "status": OK} if "embeddings" in row else row for row in rows]

    async def search(self, served: Served, text: str, count: int) -> list[dict]:
        """The images of the index that fit a text: names, similarities, and pictures as data URLs.

        Raises:
            Refused: 400 for a model without texts or index, or an unusable text.
        """
        if served.texts is None:
            raise Refused(400, f'"{served.name}" has no text encoder.')
        async with self.in_time(), self.one_by_one:
            found = await run_in_threadpool(served.texts.images, text, count)
            return [{"name": name, "similarity": value, "image": _png(pixels)} for name, value, pixels in found]

    async def mask(self, served: Served, image: bytes) -> bytes:
        """An image's mask at its own size, a PNG file.

        Raises:
            Refused: if the image cannot be decoded, the model does not segment, or under overload.
        """
        async with self.in_time(), self.one_by_one:
            return await run_in_threadpool(_mask, served, image, self.limits.megapixels)

    def end(self) -> None:
        """From now on, answers that requests should go elsewhere."""
        self.state = UNLOADING

    async def close(self) -> None:
        self.end()
        for batcher in self.batchers.values():
            await batcher.close()
        self.decoding.shutdown(wait=False)
