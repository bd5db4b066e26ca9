"""Errors of the service as {"error": "why, in words"}, with the headers of their status."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from keras_vit.serving.http.bodies import Refused

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "POST"}, 503: {"Retry-After": "1"}}
_LONGEST = 2000  # characters of a reason


def answer(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error's answer. Its reason is cut: it may quote megabytes, or invalid text."""
    shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
    shown = shown.encode("utf-8", "backslashreplace").decode()  # JSON may contain half a surrogate pair
    return JSONResponse({"error": shown}, status, headers or _HEADERS.get(status))


def _answer_address(request: Request, error):
    """An unknown address or method."""
    path = request.url.path
    if error.status_code == 404:
        return answer(404, f"There is nothing at {path}. /docs lists the addresses.")
    if error.status_code == 405:
        return answer(405, f"{path} takes {error.headers['Allow']}, not {request.method}.", error.headers)
    return answer(error.status_code, f"{error.detail}: {path}.", error.headers)


def _answer_query(request: Request, error):
    """A query parameter of the wrong type."""
    return answer(
        422, " ".join(f"{found['loc'][-1]}={found.get('input')!r}: {found['msg']}." for found in error.errors())
    )


def _answer_bug(request: Request, error):
    """A bug in this package; the server's log has the traceback."""
    return answer(500, f"The service failed: {type(error).__name__}. Its log says more.")


def register(app: FastAPI) -> None:
    """Makes an application answer all errors this way."""
    app.add_exception_handler(Refused, lambda request, refusal: answer(refusal.status, refusal.reason))
    app.add_exception_handler(HTTPException, _answer_address)
    app.add_exception_handler(RequestValidationError, _answer_query)
    app.add_exception_handler(Exception, _answer_bug)
