"""The service: TensorFlow Serving's REST addresses over models of this package, forms and raw bytes, health, metrics and a page."""

import asyncio
import base64
import concurrent.futures
import contextlib
import hmac
import os
import pathlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import swagger_ui_bundle
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from keras_vit.serving.decoding import OK
from keras_vit.serving.http import bodies
from keras_vit.serving.http.batching import Batcher, Overloaded
from keras_vit.serving.http.bodies import Limits, Refused
from keras_vit.serving.http.metrics import Metrics
from keras_vit.serving.http.served import DEFAULT, Served
from keras_vit.version import __version__

PAGE = pathlib.Path(__file__).with_name("page.html")
_IMAGES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "instances": {"type": "array", "items": {"type": "object", "properties": {"b64": {"type": "string"}}}},
                        "signature_name": {"type": "string", "example": DEFAULT},
                    },
                }
            },
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"image": {"type": "string", "format": "binary"}}},
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def _error(status, reason):
    headers = {"Retry-After": "1"} if status == 503 else {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": reason}, status, headers)


class Service:
    """What the addresses of an application share.

    Args:
        models: what is served.
        limits: of requests.
        max_rows, max_wait, max_queue: of each signature's Batcher.
        max_requests: that are answered at the same time; more are told to come back.
        api_key: what requests must carry, or None.
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
        self.limits, self.max_requests, self.api_key = limits, max_requests, api_key
        self.metrics, self.ready, self.open = Metrics(), False, 0
        self.one_by_one = asyncio.Lock()  # for what is seldom asked, and dear
        self.cores = os.cpu_count() or 1
        self.decoding = concurrent.futures.ThreadPoolExecutor(
            self.cores, "decode"
        )  # few: each may hold an image of the largest size
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

    def model(self, name: str) -> Served:
        """A model by its name.

        Raises:
            Refused: 404 for an unknown one.
        """
        if name not in self.models:
            raise Refused(404, f'There is no model "{name}". Served: {", ".join(self.models)}.')
        return self.models[name]

    def check_key(self, request: Request) -> None:
        """Lets requests through that carry the key.

        Raises:
            Refused: 401 for others.
        """
        if self.api_key is None:
            return
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.api_key.encode()):
            raise Refused(
                401, "The API key is missing or wrong: send it as the header X-API-Key, or as Authorization: Bearer KEY."
            )

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Bounds what a request may take once its body is here.

        Raises:
            Refused: 503 for lack of room or time.
        """
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except Overloaded as error:
            raise Refused(503, f"Too much to do: {error} Try again.") from None
        except TimeoutError:
            raise Refused(503, f"There was no time for this request within {self.limits.seconds:g} seconds. Try again.") from None

    async def decoded(self, served: Served, images: list[bytes]) -> list[np.ndarray | Refused]:
        """The pixels of each image, or why there are none; a request of many images leaves room for those of others in between."""
        turn, loop = asyncio.Semaphore(self.cores), asyncio.get_running_loop()

        async def one(image):
            async with turn:
                return await loop.run_in_executor(self.decoding, _decoded, served, image)

        found = await asyncio.gather(*map(one, images))
        refused = sum(isinstance(pixels, Refused) for pixels in found)
        self.metrics.images.labels(served.name, "refused").inc(refused)
        self.metrics.images.labels(served.name, "decoded").inc(len(found) - refused)
        return found

    async def rows(self, served: Served, signature: str, images: list[bytes]) -> list[dict]:
        """The result of each image, with its "status": OK, or why it was not decoded, and nothing else then.

        Raises:
            Refused: 400 for an unknown signature; if no image of the request can be decoded, with the first one's reason; 503 under overload.
        """
        batcher = self.batchers.get((served.name, signature))
        if batcher is None:
            raise Refused(400, f'"{served.name}" has no signature "{signature}". Valid: {", ".join(served.signatures)}.')
        async with self.in_time():
            decoded = await self.decoded(served, images)
            refusals = [pixels for pixels in decoded if isinstance(pixels, Refused)]
            if len(refusals) == len(decoded):
                which = "" if len(decoded) == 1 else f"None of the {len(decoded)} images can be used. The first one: "
                raise Refused(refusals[0].status, which + refusals[0].reason)
            results = iter(await batcher.submit([pixels for pixels in decoded if not isinstance(pixels, Refused)]))
        return [{"status": x.reason} if isinstance(x, Refused) else {**next(results), "status": OK} for x in decoded]

    async def heads(self, served: Served, image: bytes, block: int) -> dict:
        """Where each head of a block looked, and the picture as the model saw it.

        Raises:
            Refused: if the image cannot be decoded, the model has no such block, or under overload.
        """
        async with self.in_time():
            [pixels] = await self.decoded(served, [image])
            if isinstance(pixels, Refused):
                raise pixels
            async with self.one_by_one:
                maps = await run_in_threadpool(served.heads, pixels, block)
            return {**maps, "image": await run_in_threadpool(_png, pixels)}

    async def close(self) -> None:
        self.ready = False
        for batcher in self.batchers.values():
            await batcher.close()
        self.decoding.shutdown(wait=False)


def _decoded(served, image) -> np.ndarray | Refused:
    try:
        return served.decode(image)
    except Refused as refusal:
        return refusal


def _wrong_query(error):
    """What is wrong with the parameters in an address, in words."""
    return " ".join(f"{found['loc'][-1]}={found.get('input')!r}: {found['msg']}." for found in error.errors())


def _columns(rows):
    """Rows as TensorFlow Serving's columns: a list for each output; an image that was not decoded has null."""
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _model(served):
    """What is said of a model."""
    return {"name": served.name, **served.description, "signatures": list(served.signatures)}


def _png(pixels):
    """Pixels (h, w, c) as the address of a PNG in itself."""
    import tensorflow as tf

    return "data:image/png;base64," + base64.b64encode(tf.io.encode_png(pixels[..., :3]).numpy()).decode()


class Counted:
    """ASGI middleware: bounds the requests that are answered at a time, and counts and times each."""

    def __init__(self, app, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        service, began, code = self.service, time.perf_counter(), []
        state = scope.setdefault("state", {})

        async def noted(message):
            if message["type"] == "http.response.start":
                code.append(str(message["status"]))
            await send(message)

        if service.open >= service.max_requests:
            reason = f"{service.open} requests are being answered, of {service.max_requests} at most. Try again."
            await _error(503, reason)(scope, receive, noted)
        else:
            service.open += 1
            try:
                await self.app(scope, receive, noted)
            finally:
                service.open -= 1
        model = state.get("model", "")
        service.metrics.requests.labels(model, state.get("signature", ""), *code[:1] or ["none"]).inc()
        service.metrics.seconds.labels(model).observe(time.perf_counter() - began)


def _about(app: FastAPI, service: Service) -> None:
    """The addresses that say how the service is."""

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page():
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"Content-Security-Policy": _POLICY})

    @app.get("/docs", include_in_schema=False)
    async def docs():
        own = "/docs/files/swagger-ui"
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="keras_vit: addresses",
            swagger_js_url=f"{own}-bundle.js",
            swagger_css_url=f"{own}.css",
            swagger_favicon_url="/docs/files/favicon-32x32.png",
        )

    @app.get("/healthz", summary="Whether the process answers")
    async def health():
        return {"status": "alive"}

    @app.get("/readyz", summary="Whether all models can answer")
    async def readiness():
        return {"status": "ready"} if service.ready else _error(503, "The models are being made ready, or the service is ending.")

    @app.get("/metrics", summary="Counts and times, for Prometheus")
    async def metrics():
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", summary="The models")
    async def models(request: Request):
        service.check_key(request)
        return {"models": [_model(served) for served in service.models.values()]}

    @app.get("/v1/models/{name}", summary="Whether a model is available, as TensorFlow Serving says it")
    async def status(name: str, request: Request):
        service.check_key(request)
        service.model(name)
        state = "AVAILABLE" if service.ready else "LOADING"
        return {"model_version_status": [{"version": "1", "state": state, "status": {"error_code": "OK", "error_message": ""}}]}

    @app.get("/v1/models/{name}/metadata", summary="What a model takes and returns")
    async def metadata(name: str, request: Request):
        service.check_key(request)
        return _model(service.model(name))


# The page loads nothing from elsewhere, and nothing may be put into a frame around it.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def _predictions(app: FastAPI, service: Service) -> None:
    """The addresses that take images."""

    async def answer(name, request, default):
        service.check_key(request)
        served = service.model(name)
        request.state.model = name
        asked = await bodies.asked(request, service.limits)
        signature = asked.signature or default
        request.state.signature = signature if signature in served.signatures else ""
        rows = await service.rows(served, signature, asked.images)
        return {"outputs": _columns(rows)} if asked.columns else {"predictions": rows}

    @app.post(
        "/v1/models/{name}:predict",
        summary="The most probable classes of images, or what another signature returns",
        openapi_extra=_IMAGES,
    )
    async def predict(name: str, request: Request) -> dict[str, Any]:
        return await answer(name, request, DEFAULT)

    @app.post("/v1/models/{name}:features", summary="The features of images", openapi_extra=_IMAGES)
    async def features(name: str, request: Request) -> dict[str, Any]:
        return await answer(name, request, "encoded_features")

    @app.post("/v1/models/{name}:attention", summary="Where the model looked", openapi_extra=_IMAGES)
    async def attention(name: str, request: Request) -> dict[str, Any]:
        return await answer(name, request, "encoded_attention")

    @app.post(
        "/v1/models/{name}:heads",
        summary="Where each head of a block looked, and what the model saw, of one image",
        openapi_extra=_IMAGES,
    )
    async def heads(name: str, request: Request, block: int = -1) -> dict[str, Any]:
        service.check_key(request)
        served = service.model(name)
        request.state.model, request.state.signature = name, "heads"
        asked = await bodies.asked(request, service.limits)
        if len(asked.images) > 1:
            raise Refused(400, f"Heads are shown of one image at a time; the request has {len(asked.images)}.")
        return await service.heads(served, asked.images[0], block)


def application(
    models: Sequence[Served],
    limits: Limits | None = None,
    max_rows: int = 16,
    max_wait: float = 0.005,
    max_queue: int = 512,
    max_requests: int = 256,
    api_key: str | None = None,
) -> FastAPI:
    """The service as an ASGI application; arguments as in Service."""
    service = Service(models, limits or Limits(), max_rows, max_wait, max_queue, max_requests, api_key)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        for served in models:
            await run_in_threadpool(served.warm_up)
        service.ready = True
        yield
        await service.close()

    app = FastAPI(title="keras_vit", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.openapi_version = "3.0.2"  # what the bundled page reads
    app.state.service = service
    app.add_middleware(Counted, service=service)
    app.add_exception_handler(Refused, lambda request, refusal: _error(refusal.status, refusal.reason))
    app.add_exception_handler(
        HTTPException, lambda request, error: _error(error.status_code, f"{error.detail}: {request.url.path}.")
    )
    app.add_exception_handler(RequestValidationError, lambda request, error: _error(422, _wrong_query(error)))
    app.mount("/docs/files", StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))
    _about(app, service)
    _predictions(app, service)
    return app
