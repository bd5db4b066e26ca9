"""The service: TensorFlow Serving's REST API for models of this package, forms, raw bytes, health, metrics, a page."""

import asyncio
import contextlib
import pathlib
import re
from collections.abc import Sequence
from typing import Annotated, Any

import swagger_ui_bundle
from fastapi import FastAPI, Query, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from keras_vit.io.suggest import did_you_mean
from keras_vit.serving.http import bodies, http_errors
from keras_vit.serving.http.bodies import Limits, Refused
from keras_vit.serving.http.middleware import Counted, OneForm
from keras_vit.serving.http.served import DEFAULT, Served
from keras_vit.serving.http.service import Service
from keras_vit.version import __version__

_VERBS = ("predict", "features", "attention", "heads", "mask", "zero_shot", "search")
PAGE = pathlib.Path(__file__).with_name("page.html")
_SHARED = pathlib.Path(__file__).parents[1] / "page"  # also of exported pages
_BINARY = {"type": "string", "format": "binary"}


def _object(**properties):
    """The schema of an object that may name a signature."""
    properties["signature_name"] = {"type": "string", "example": DEFAULT}
    return {"schema": {"type": "object", "properties": properties}}


_ENCODED = {"type": "object", "properties": {"b64": {"type": "string"}}}
_IMAGES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": _object(instances={"type": "array", "items": _ENCODED}),
            "multipart/form-data": _object(image=_BINARY),
            "application/octet-stream": {"schema": _BINARY},
        },
    }
}


def _columns(rows):
    """Rows as TensorFlow Serving's columns, a list per output, with null for images that were not decoded."""
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _model(served):
    """A model's description."""
    return {"name": served.name, **served.description, "signatures": list(served.signatures)}


class _Fresh(StaticFiles):
    """Files that browsers ask for again: a page must not meet the scripts of an earlier version in their caches."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


# The page loads nothing from elsewhere and must not be framed.
_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; img-src 'self' data:"
    " blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def _pages(app: FastAPI) -> None:
    """Pages for people: the demonstration, and the addresses."""

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


def _health(app: FastAPI, service: Service) -> None:
    """Endpoints for the service's state."""

    @app.get("/healthz", summary="Whether the process answers")
    async def health():
        return {"status": "alive"}

    @app.get("/readyz", summary="Whether all models can answer")
    async def readiness():
        why_not = service.why_not_ready()
        return http_errors.answer(503, why_not) if why_not else {"status": "ready"}

    @app.get("/metrics", summary="Counts and times, for Prometheus")
    async def metrics():
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _about(app: FastAPI, service: Service) -> None:
    """Endpoints that describe the models."""

    @app.get("/v1/models", summary="The models")
    async def models(request: Request):
        service.check_key(request)
        return {"models": [_model(served) for served in service.models.values()]}

    @app.get("/v1/models/{name}", summary="Whether a model is available, as TensorFlow Serving says it")
    async def status(name: str, request: Request):
        service.check_key(request)
        model, colon, _ = name.partition(":")
        service.model(model)
        if colon:
            raise Refused(405, f"/v1/models/{name} takes POST, with images.")
        return {
            "model_version_status": [
                {"version": "1", "state": service.state, "status": {"error_code": "OK", "error_message": ""}}
            ]
        }

    @app.get("/v1/models/{name}/metadata", summary="Inputs and outputs of a model")
    async def metadata(name: str, request: Request):
        service.check_key(request)
        return _model(service.model(name))


@contextlib.contextmanager
def _admitted(service: Service, name: str, request: Request, signature: str = "", queries: Sequence[str] = ()):
    """Checks a request for answers of a model; yields the model and what counts the memory of the request's images."""
    service.check_key(request)
    bodies.check_query(request, *queries)
    served = service.model(name)
    request.state.model, request.state.signature = name, signature
    service.check_loaded()
    with service.memory.of_request() as take:
        yield served, take


async def _answer(service, name, request, default, threshold=None, tiles=None, queries=()):
    """Rows or columns of a signature's outputs: the one that the request names, or `default`."""
    with _admitted(service, name, request, queries=queries) as (served, take):
        asked = await bodies.asked(request, service.limits, take)
        signature = asked.signature or default
        request.state.signature = signature if signature in served.signatures else ""
        if tiles is None:
            rows = await service.rows(served, signature, asked.images, threshold)
        else:
            rows = await service.rows_by_tiles(served, signature, asked.images, threshold, tiles)
    return {"outputs": _columns(rows)} if asked.columns else {"predictions": rows}


async def _one_image(request, limits, take, has, made):
    """The only image of a request with one form of answer; `has` and `made` begin the messages."""
    asked = await bodies.asked(request, limits, take)
    if asked.signature is not None or asked.columns:
        raise Refused(400, f'{has} one form of answer: leave "signature_name" out, and send "instances", not "inputs".')
    if len(asked.images) > 1:
        raise Refused(400, f"{made} for one image at a time; the request has {len(asked.images)}.")
    return asked.images[0]


def _signatures(app: FastAPI, service: Service) -> None:
    """Endpoints for the signatures of models, of any number of images."""

    @app.post(
        "/v1/models/{name}:predict",
        summary="The most probable classes, objects or classes of pixels of images, or what another signature returns",
        openapi_extra=_IMAGES,
    )
    async def predict(
        name: str, request: Request, threshold: float | None = None, tiles: int | None = None
    ) -> dict[str, Any]:
        return await _answer(service, name, request, DEFAULT, threshold, tiles, ["threshold", "tiles"])

    @app.post("/v1/models/{name}:features", summary="The features of images", openapi_extra=_IMAGES)
    async def features(name: str, request: Request) -> dict[str, Any]:
        return await _answer(service, name, request, "encoded_features")

    @app.post("/v1/models/{name}:attention", summary="Where the model looked", openapi_extra=_IMAGES)
    async def attention(name: str, request: Request) -> dict[str, Any]:
        return await _answer(service, name, request, "encoded_attention")


def _add_image_addresses(app: FastAPI, service: Service) -> None:
    """Endpoints that take one image."""

    @app.post(
        "/v1/models/{name}:heads",
        summary="The attention of each head of a block, and the image as the model saw it, for one image",
        openapi_extra=_IMAGES,
    )
    async def heads(name: str, request: Request, block: int = -1) -> dict[str, Any]:
        with _admitted(service, name, request, "heads", ["block"]) as (served, take):
            image = await _one_image(request, service.limits, take, "Heads have", "Heads are shown")
            return await service.heads(served, image, block)

    @app.post(
        "/v1/models/{name}:mask",
        summary="The mask of one image at its own size, a PNG of class numbers, by a segmentation model",
        openapi_extra=_IMAGES,
        response_class=Response,
    )
    async def mask(name: str, request: Request) -> Response:
        with _admitted(service, name, request, "mask") as (served, take):
            image = await _one_image(request, service.limits, take, "A mask has", "A mask is made")
            return Response(await service.mask(served, image), media_type="image/png")


def _texts(app: FastAPI, service: Service) -> None:
    """Endpoints of models with a text encoder."""

    @app.post(
        "/v1/models/{name}:zero_shot",
        summary="How well images fit labels, texts that the request names: ?label=a cat&label=a dog",
        openapi_extra=_IMAGES,
    )
    async def zero_shot(
        name: str, request: Request, label: Annotated[list[str], Query()], templates: str = "photo"
    ) -> dict[str, Any]:
        with _admitted(service, name, request, "zero_shot", ["label", "templates"]) as (served, take):
            asked = await bodies.asked(request, service.limits, take)
            rows = await service.zero_shot(served, asked.images, label, templates)
        return {"outputs": _columns(rows)} if asked.columns else {"predictions": rows}

    @app.get("/v1/models/{name}:search", summary="The images of the index that fit a text")
    async def search(name: str, request: Request, text: str, count: int = 8) -> dict[str, Any]:
        with _admitted(service, name, request, "search", ["text", "count"]) as (served, _):
            return {"images": await service.search(served, text, count)}


def _unknown(app: FastAPI, service: Service) -> None:
    """Endpoints that refuse all other names after a colon, and all versions but 1."""

    @app.post("/v1/models/{name}", include_in_schema=False)
    async def nothing(name: str, request: Request):
        service.check_key(request)
        model, colon, verb = name.partition(":")
        service.model(model)
        hint = did_you_mean(verb, _VERBS) if colon else f" Images are sent to /v1/models/{model}:predict."
        raise Refused(
            404, f"/v1/models/{name} takes no images.{hint} Valid: {', '.join(f':{verb}' for verb in _VERBS)}."
        )

    @app.api_route("/v1/models/{name}/versions/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
    async def other_version(name: str, rest: str, request: Request):
        service.check_key(request)
        service.model(name)
        version = re.split("[:/]", rest)[0]
        raise Refused(404, f'"{name}" has no version "{version}", only version 1. Addresses need no version.')


def application(
    models: Sequence[Served],
    limits: Limits | None = None,
    max_rows: int = 16,
    max_wait: float = 0.005,
    max_queue: int = 512,
    max_requests: int = 256,
    api_key: str | None = None,
) -> FastAPI:
    """The ASGI application, with its Service as `state.service`; arguments as in Service."""
    service = Service(models, limits or Limits(), max_rows, max_wait, max_queue, max_requests, api_key)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        warming = asyncio.create_task(service.warm_up())  # meanwhile probes get answers, and images a 503
        yield
        await service.close()
        await warming

    app = FastAPI(
        title="keras_vit", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi_version = "3.0.2"  # for the bundled page
    app.state.service = service
    app.add_middleware(Counted, service=service)
    app.add_middleware(OneForm)
    http_errors.register(app)
    app.mount("/page", _Fresh(directory=_SHARED))
    app.mount("/docs/files", StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))
    _signatures(app, service)
    _add_image_addresses(app, service)
    _texts(app, service)
    _unknown(app, service)
    _pages(app)
    _health(app, service)
    _about(app, service)
    return app
