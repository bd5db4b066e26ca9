"""ASGI middleware before the endpoints: access, equivalent addresses, counts."""

import re
import time
from collections.abc import Iterable

from starlette.datastructures import Headers

from keras_vit.serving.http import http_errors
from keras_vit.serving.http.service import Service


class OnlyHosts:
    """Refuses requests for other hosts: a foreign page could otherwise reach the service under its own host name."""

    def __init__(self, app, hosts: Iterable[str]):
        self.app, self.hosts = app, tuple(hosts)

    async def __call__(self, scope, receive, send):
        host = Headers(scope=scope).get("host") if scope["type"] in ("http", "websocket") else None
        name = None if host is None else re.sub(r":\d+$", "", host).strip("[]").lower()  # optional in HTTP/1.0
        if name is None or name in self.hosts:
            await self.app(scope, receive, send)
            return
        reason = (
            f'The Host header is "{host}", and this service answers only its own machine, as {", ".join(self.hosts)}.'
        )
        await http_errors.answer(400, f"{reason} Others reach it with --host=0.0.0.0.")(scope, receive, send)


class OneForm:
    """HEAD is GET, uvicorn omits its body; a trailing slash and `/versions/1` after a model's name are ignored."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"].rstrip("/") or "/"
            path = re.sub(r"^(/v1/models/[^/]+)/versions/1(?=[:/]|$)", r"\1", path)
            scope = {**scope, "path": path, "method": "GET" if method == "HEAD" else method}
        await self.app(scope, receive, send)


class Counted:
    """Bounds concurrent requests, and counts and times each."""

    def __init__(self, app, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        service, began, code = self.service, time.perf_counter(), "none"
        state = scope.setdefault("state", {})

        async def noted(message):
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
            await send(message)

        try:
            await self._answer(scope, receive, noted)
        except Exception:
            code = "500"
            raise
        finally:
            model = state.get("model", "")
            service.metrics.requests.labels(model, state.get("signature", ""), code).inc()
            service.metrics.seconds.labels(model).observe(time.perf_counter() - began)

    async def _answer(self, scope, receive, send):
        service = self.service
        if service.open >= service.max_requests:
            reason = f"{service.open} requests are being answered, of {service.max_requests} at most. Try again."
            await http_errors.answer(503, reason)(scope, receive, send)
            return
        service.open += 1
        try:
            await self.app(scope, receive, send)
        finally:
            service.open -= 1
