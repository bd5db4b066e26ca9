"""The application behind uvicorn."""

import os
import signal
import socket

import uvicorn
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _listening(host, port):
    """A socket that listens at an address.

    Raises:
        OSError: if it cannot, with what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(f"Cannot listen at {host}:{port}: {os.strerror(error.errno)}. Give another --port, or --host.") from None


def run(app: FastAPI, host: str, port: int, drain_seconds: int) -> None:
    """Serves until SIGTERM or SIGINT: then no new connection is accepted, and what was begun has `drain_seconds` to end.

    Raises:
        OSError: if the address cannot be listened at.
    """
    if host in _LOOPBACK:  # a page of another site could otherwise reach it under a name of its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, "[::1]"])
    listening = _listening(host, port)
    config = uvicorn.Config(
        app, log_level="warning", timeout_keep_alive=5, timeout_graceful_shutdown=drain_seconds, server_header=False
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn has handlers while it runs, and raises the signal again at its end
        signal.signal(number, signal.SIG_IGN)
    uvicorn.Server(config).run(sockets=[listening])
