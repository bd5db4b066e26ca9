"""The application behind uvicorn."""

import contextlib
import json
import os
import signal
import socket
import sys
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_vit.serving.http.middleware import OnlyHosts
from keras_vit.serving.http.service import Service

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEAD = 65_536  # bytes of a request's head


def in_address(host: str) -> str:
    """A host as in addresses: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _naming(host, port):
    """A context in which an OSError says which address cannot be used, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OSError(
            f"Cannot listen on {in_address(host)}:{port}: {reason}. Give another --port, or --host."
        ) from None


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until there is a service.

    Raises:
        OSError: if the address is unavailable, with what to do.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: remains of a former one may linger
        with _naming(host, port):
            bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _json_answer(status, error):
    """h11's events of a last answer with an error as JSON."""
    content = json.dumps({"error": error}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
    return h11.Response(status_code=status, headers=headers), h11.Data(data=content), h11.EndOfMessage()


def _protocol(seconds):
    """uvicorn's protocol, with a timeout for a request's head and JSON answers to unreadable heads."""

    class Protocol(H11Protocol):
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

        def send_400_response(self, msg):
            error = sys.exc_info()[1]  # h11's, which uvicorn does not pass on
            status = getattr(error, "error_status_hint", 400)
            reason = f"Its head is larger than {_HEAD:,} bytes." if status == 431 else f"It is not HTTP: {error}."
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                for event in _json_answer(status, f"The request cannot be read. {reason}"):
                    self.transport.write(self.conn.send(event))
            self.transport.close()

    return Protocol


class Server(uvicorn.Server):
    """uvicorn's server for a Service: the signal makes `/readyz` report the end; models that fail to load end it."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self.service = service

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.service.failure is not None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.end()
        super().handle_exit(sig, frame)


def run(app: FastAPI, bound: socket.socket, drain_seconds: int, head_seconds: float = 30) -> None:
    """Serves until SIGTERM or SIGINT, then accepts no connections and gives open requests `drain_seconds` to end.

    Connections without a request's head within `head_seconds` are closed.

    Args:
        app: from `application`.
        bound: from `bind`.

    Raises:
        OSError: if another process now listens at the address.
        Exception: from models that fail to load.
    """
    host, port = bound.getsockname()[:2]
    if host == "::1" or host.startswith("127."):
        app.add_middleware(OnlyHosts, hosts=dict.fromkeys((*_LOOPBACK, host)))
    config = uvicorn.Config(
        app,
        http=_protocol(head_seconds),
        log_level="warning",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=drain_seconds,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD,
    )
    # uvicorn's handlers replace these while it runs, and raise the signal again at its end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with _naming(host, port):
        bound.listen(1024)
    Server(config, app.state.service).run(sockets=[bound])
    if app.state.service.failure is not None:
        raise app.state.service.failure
