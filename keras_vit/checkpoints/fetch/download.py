"""Download checkpoints into a local cache: transfers resume, checksums are verified, partial files stay hidden.

`download` returns the local path, <cache>/<8 digits of the address's hash>/<file name>. Until the file is complete,
<file name>.part next to it has the bytes so far, and <file name>.part.tag the server's identifier of their version.
"""

import contextlib
import hashlib
import http.client
import os
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from absl import logging
from filelock import FileLock

from keras_vit.io.cache import cache_folder

TIMEOUT = 60.0  # seconds without a byte before a connection counts as dropped
TRIES = 5  # failures in a row without a new byte before the download fails
WAIT = 1.0  # seconds before the second attempt; doubles with each further one

_RETRIED = {408, 429, 500, 502, 503, 504}  # HTTP statuses after which another attempt may succeed
_FINAL = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError)  # errors after which it will not


class _Interrupted(Exception):
    """The transfer stopped; another attempt may resume it."""


class _Meter:
    """Progress: one rewritten line on a terminal; elsewhere one line per tenth of the file (or per 100 MB)."""

    def __init__(self, name, visible):
        self.name = name if len(name) <= 50 else f"{name[:20]}...{name[-27:]}"
        self.visible = visible
        self.terminal = sys.stderr.isatty()

    def begin(self, have, total):
        """Starts an attempt with `have` of `total` bytes already there; `total` may be None."""
        self.first, self.have, self.total = have, have, total
        self.started, self.step = time.monotonic(), None

    def add(self, count):
        self.have += count
        seconds = time.monotonic() - self.started
        tenth = 10 * self.have // self.total if self.total else self.have // 10**8
        step = (int(5 * seconds), self.have == self.total) if self.terminal else tenth
        if not self.visible or step == self.step:
            return
        self.step = step
        progress = f"{self.have / 1e6:.1f} MB"
        if self.total:
            progress = f"{100 * self.have // self.total:3d}%  {self.have / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        line = f"{self.name}  {progress}  {(self.have - self.first) / 1e6 / max(seconds, 1e-3):.1f} MB/s"
        if self.terminal:
            print(f"\r{line:<100}", end="\n" if self.have == self.total else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def https_address(url: str) -> str:
    """`url` as http(s)://; gs://bucket/path becomes https://storage.googleapis.com/bucket/path (public buckets)."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "gs":
        path = urllib.parse.quote(url.removeprefix("gs://"), safe="/+=,~%")
        return f"https://storage.googleapis.com/{path}"
    if parts.scheme not in ("https", "http") or not parts.netloc:
        raise ValueError(f'Cannot download "{url}". Expected an address that begins with https://, http:// or gs://.')
    return url


def cached_path(url: str, cache: str | os.PathLike | None = None) -> Path:
    """Where `download(url, cache=cache)` puts the file."""
    address = https_address(url)
    name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rsplit("/", 1)[-1])
    name = re.sub(r"[^\w.+=-]", "_", name)[-200:].lstrip(".") or "file"
    return cache_folder(cache) / hashlib.sha256(address.encode()).hexdigest()[:8] / name


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(sha256):
    """`sha256` in lower case; ValueError unless it is None or 8 to 64 hexadecimal digits."""
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{8,64}", sha256):
        raise ValueError(f'sha256 must be 64 hexadecimal digits, or the first 8 or more of them, got "{sha256}".')
    return sha256 and sha256.lower()


def _in_cache(path, sha256):
    """Whether `path` exists and, if `sha256` is given, has this checksum."""
    return path.exists() and (sha256 is None or _digest(path).startswith(sha256))


@contextlib.contextmanager
def _locked(path):
    """Holds the lock file `path` against other threads and processes."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # a file system without locks
        logging.warning("Cannot lock %s (%s): do not download the same file twice at the same time.", path, error)
    try:
        yield
    finally:
        lock.release()


def _tag(part):
    """The file next to `part` with the server's identifier of its version."""
    return part.with_name(f"{part.name}.tag")


def _size(part):
    return part.stat().st_size if part.exists() else 0


def _version(headers):
    """The file's version for an If-Range header (RFC 9110, section 13.1.5), or an empty string."""
    etag = headers.get("ETag", "")
    return headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag


def _extent(headers):
    """(first byte or None, total size or None) in a Content-Range header."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip())
    return tuple(number and int(number) for number in match.groups()) if match else (None, None)


def _request(address, part, timeout):
    """Requests the bytes missing in `part`: (response, bytes of `part` that stay, total size or None).

    The response is None if nothing is missing. If the version of `part` is unknown or outdated, the transfer restarts.
    """
    have = _size(part) if _tag(part).exists() else 0
    headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": _tag(part).read_text()}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            if _extent(error.headers)[1] == have:
                return None, have, have
            part.unlink()
        elif error.code not in _RETRIED:
            raise
        raise _Interrupted(f"HTTP status {error.code} ({error.reason})") from error
    if response.status == 206:
        start, total = _extent(response.headers)
        if start == have:
            return response, have, total
        response.close()
        part.unlink(missing_ok=True)
        raise _Interrupted(
            f'the server answered a request for the bytes after {have} with "{response.headers.get("Content-Range")}"'
        )
    length = response.headers.get("Content-Length")
    return response, 0, None if length is None else int(length)


def _chunks(response):
    """The bytes of `response` as they arrive; errors raised here come from the connection, not the disk."""
    try:
        while chunk := response.read1(1 << 18):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(f"the connection dropped ({error or type(error).__name__})") from error


def _transfer(address, part, meter, timeout):
    """One attempt to complete `part`."""
    try:
        response, have, total = _request(address, part, timeout)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", error)) or type(error).__name__) from error
    if response is None:
        return
    with response, open(part, "ab" if have else "wb") as file:
        if not have:  # the old bytes are gone before the identifier of the new version is written
            _tag(part).unlink(missing_ok=True)
            if version := _version(response.headers):
                _tag(part).write_text(version)
        meter.begin(have, total)
        for chunk in _chunks(response):
            file.write(chunk)
            meter.add(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    if total is not None and _size(part) != total:
        got = _size(part)
        if got > total:
            part.unlink()
        raise _Interrupted(f"{got} of {total} bytes arrived")


def _complete(address, part, meter, tries, timeout):
    """Retries until complete; _Interrupted after `tries` attempts without a new byte, or for a hopeless address."""
    first = most = _size(part)
    failures = 0
    while True:
        try:
            return _transfer(address, part, meter, timeout)
        except _Interrupted as error:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            hopeless = most == first and isinstance(getattr(error.__cause__, "reason", None), _FINAL)
            if hopeless or failures == tries:
                raise
            wait = WAIT * 2 ** (failures - 1)
            logging.warning("%s: %s. Trying again in %.0f s.", address, error, wait)
            time.sleep(wait)


def _explained(url, error, path):
    """The error to raise after `error` stopped the download of `url` to `path`."""
    code = getattr(error, "code", None)
    reason = f"HTTP status {code} ({error.reason})" if code else error
    kind = FileNotFoundError if code in (404, 410) else ConnectionError
    return kind(
        f'Cannot download "{url}": {reason}. The cache is {path.parent.parent} (set KERAS_VIT_CACHE or cache= for'
        " another); the next call resumes an incomplete download. If this machine cannot reach the address, download"
        " the file by other means and pass its path to keras_vit.load."
    )


def download(
    url: str,
    sha256: str | None = None,
    cache: str | os.PathLike | None = None,
    progress: bool = True,
    tries: int | None = None,
    timeout: float | None = None,
) -> Path:
    """Downloads `url` into the cache unless it is there; returns the local path. Interrupted transfers resume.

    Args:
        url: https://, http:// or gs:// address (a public bucket, read over https).
        sha256: expected SHA-256, or its first 8 or more digits; None checks the length only.
        cache: folder; by default $KERAS_VIT_CACHE, $XDG_CACHE_HOME/keras_vit or ~/.cache/keras_vit.
        progress: show progress, in one line on a terminal, elsewhere (notebook, log file) a line per tenth of the file.
        tries: failures in a row before giving up; None for TRIES.
        timeout: seconds without a byte before a connection counts as dropped; None for TIMEOUT.

    Raises:
        FileNotFoundError: if the server has no such file.
        ConnectionError: if the server cannot be reached, refuses, or keeps dropping the connection.
        ValueError: for another kind of address, a malformed `sha256`, or a wrong checksum; the file is then deleted.
    """
    address, path, sha256 = https_address(url), cached_path(url, cache), _checked(sha256)
    if _in_cache(path, sha256):
        return path
    if path.exists():
        logging.warning("%s does not have the SHA-256 %s: downloading it again.", path, sha256)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"Cannot make the folder {path.parent}: {error}. Set KERAS_VIT_CACHE or cache= to another cache."
        ) from error
    with _locked(path.with_name(f"{path.name}.lock")):
        if _in_cache(path, sha256):  # another process was faster
            return path
        part = path.with_name(f"{path.name}.part")
        try:
            _complete(address, part, _Meter(path.name, progress), tries or TRIES, timeout or TIMEOUT)
        except (_Interrupted, urllib.error.HTTPError) as error:
            raise _explained(url, error, path) from error
        digest = _digest(part) if sha256 else ""
        _tag(part).unlink(missing_ok=True)
        if sha256 and not digest.startswith(sha256):
            part.unlink()
            raise ValueError(
                f'"{url}" has the SHA-256 {digest}, expected {sha256}{"..." if len(sha256) < 64 else ""}. The file is'
                " deleted: it was changed at its address or on the way. Try again, or pass the sha256 of the file that"
                " you expect."
            )
        os.replace(part, path)
    return path
