"""The application behind uvicorn."""

import os
import signal
import socket

import h11
import uvicorn
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def in_address(host: str) -> str:
    """A host as addresses show it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _listening(host, port):
    """A socket that listens at an address.

    Raises:
        OSError: if it cannot, with what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OSError(f"Cannot listen at {in_address(host)}:{port}: {reason}. Give another --port, or --host.") from None


def _impatient(seconds):
    """uvicorn's protocol, which by itself waits for ever for the head of a request; this one closes the connection after some seconds."""

    class Impatient(H11Protocol):
        head_timer = None

        def connection_made(self, transport):
            super().connection_made(transport)
            self.head_timer = self.loop.call_later(seconds, transport.close)

        def data_received(self, data):
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:  # the head is here; Limits.seconds bounds the rest
                self.stop_timer()
            elif self.head_timer is None:
                self.head_timer = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc):
            self.stop_timer()
            super().connection_lost(exc)

        def stop_timer(self):
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

    return Impatient


def run(app: FastAPI, host: str, port: int, drain_seconds: int, head_seconds: float = 30) -> None:
    """Serves until SIGTERM or SIGINT: then no new connection is accepted, and what was begun has `drain_seconds` to end. Connections
    that send no head of a request within `head_seconds` are closed.

    Raises:
        OSError: if the address cannot be listened at.
    """
    if host in _LOOPBACK:  # a page of another site could otherwise reach it under a name of its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, "[::1]"])
    listening = _listening(host, port)
    config = uvicorn.Config(
        app,
        http=_impatient(head_seconds),
        log_level="warning",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=drain_seconds,
        server_header=False,
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn has handlers while it runs, and raises the signal again at its end
        signal.signal(number, signal.SIG_IGN)
    uvicorn.Server(config).run(sockets=[listening])
