"""Folder locks: one process at a time owns a folder, local, shared or in a bucket; lock.json in it names the owner.

The owner renews the file every few seconds. A later process takes over if the owner is gone: on the same machine, when
its process no longer exists; on others, when the file has not been renewed for a while.
"""

import contextlib
import json
import os
import pathlib
import shlex
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath

from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import os_errors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "lock.json"
RENEWAL = 10.0  # seconds
PATIENCE = 4 * RENEWAL  # how long to watch another machine's lock
_BUCKET_DELAY = 2.0  # until a bucket shows who wrote last
_SURELY_GONE = 3600.0  # more than the clocks of two machines differ


class InUse(ValueError):
    """Another process owns the folder."""


def machine() -> str:
    """The scope of process numbers: the host since its boot, and the container; "" if the system does not say."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """The start time of a process, which separates it from later ones with its number; "" if there is none."""
    try:
        state, *fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # a killed process not yet waited for is gone


@contextlib.contextmanager
def alone(folder: str | os.PathLike) -> Iterator[None]:
    """A context, for moments, that other processes of this machine wait to enter, if the file system supports it."""
    if fcntl is None or "://" in str(folder):
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Lock:
    """Yielded by `owned`; `check` raises InUse once another process owns the folder."""

    def __init__(self, folder):
        self._folder, self._path = folder, folder / FILE
        self._content = {
            "host": socket.gethostname(),
            "machine": machine(),
            "pid": os.getpid(),
            "started": started(os.getpid()),
            "command": shlex.join(sys.argv),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "token": uuid.uuid4().hex,
        }
        self._taken_over_by: dict[str, Any] | None = None
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_released, name="lock", daemon=True)

    def _read(self):
        """The file's content; None if it is missing or not a valid lock.

        Raises:
            OSError: if it cannot be read: another process may have written it.
        """
        try:
            with os_errors():
                content = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) and "token" in content else None

    def _write(self):
        write_bytes(self._path, json.dumps({**self._content, "renewed": time.time()}, indent=2).encode())

    def _is_own(self, content):
        return content is not None and content["token"] == self._content["token"]

    def _message(self, holder):
        age = max(0.0, time.time() - holder.get("renewed", 0.0))
        kill = f" (kill {holder.get('pid')})" if holder.get("machine") == self._content["machine"] else ""
        return (
            f"{self._folder} is in use: process {holder.get('pid')} on {holder.get('host')} ({holder.get('command')})"
            f" has written to it since {holder.get('since')}, and renewed {FILE} {age:.0f} s ago. Wait for it, stop"
            f" it{kill}, or use another folder. If there is no such process, delete {self._path}."
        )

    def _lives(self, holder):
        """Whether the process that wrote `holder` still owns the folder."""
        if holder.get("machine") and holder["machine"] == self._content["machine"]:
            return started(holder.get("pid")) == holder.get("started")
        if time.time() - holder.get("renewed", 0.0) > _SURELY_GONE:
            return False
        logging.warning(
            "%s was locked by process %s on %s: checking for up to %.0f s whether it still runs.",
            *(self._folder, holder.get("pid"), holder.get("host"), PATIENCE),
        )
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, PATIENCE / 10))
            now = self._read()
            if now != holder:
                return now is not None
        return False

    def acquire(self):
        while True:
            holder = self._read()
            if holder is not None and self._lives(holder):
                raise InUse(self._message(self._read() or holder))
            with alone(self._folder):
                if self._read() == holder:
                    self._write()
                    break
        if "://" in str(self._folder):  # buckets have no locks: the last of several writers wins
            time.sleep(_BUCKET_DELAY)
            if not self._is_own(holder := self._read()) and holder is not None:
                raise InUse(self._message(holder))
        if holder is not None:
            logging.info(
                "%s: the lock of a process that is gone (%s on %s) was replaced.",
                self._folder,
                holder["pid"],
                holder["host"],
            )
        self._thread.start()

    def _renew_until_released(self):
        while not self._released.wait(RENEWAL):
            with contextlib.suppress(OSError):  # a full disk or a slow bucket: perhaps next time
                content = self._read()
                if content is not None and not self._is_own(content):
                    self._taken_over_by = content
                    return
                self._write()

    def check(self) -> None:
        """Raises InUse if another process took over, because this one failed to renew its lock in time."""
        if self._taken_over_by is not None:
            raise InUse(f"This process has lost {self._folder} to another. {self._message(self._taken_over_by)}")

    def release(self):
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError), os_errors():
            if self._is_own(self._read()):
                self._path.unlink()


@contextlib.contextmanager
def owned(folder: str | os.PathLike) -> Iterator[_Lock]:
    """A context in which this process owns `folder`, which is created, and removed again if it stays empty.

    Raises:
        InUse: a ValueError that names the owner.
        OSError: if the folder cannot be written to, saying why.
    """
    place = epath.Path(folder)
    try:
        with os_errors():
            created = not place.exists()
            place.mkdir(parents=True, exist_ok=True)
        lock = _Lock(place)
        lock.acquire()
    except OSError as error:
        what = (
            "a file with this name exists"
            if isinstance(error, (FileExistsError, NotADirectoryError))
            else error.strerror or error
        )
        raise OSError(f'Cannot write to the folder "{folder}": {what}.') from None
    try:
        yield lock
    finally:
        lock.release()
        if created and "://" not in str(folder):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # removes only an empty folder
