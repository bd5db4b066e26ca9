"""Fetching published checkpoints: into a local cache, resumed where it broke off, checked, and never half of one under its name.

`download` takes an address and returns the local path. The cache holds <8 digits of the address's hash>/<the file's own name>;
until the file is whole, <name>.part beside it holds what has arrived and <name>.part.tag the server's name for its version.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import pathlib
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from absl import logging

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

TIMEOUT = 60.0  # seconds without a byte, after which a connection counts as dropped
TRIES = 5  # attempts without a new byte between them
WAIT = 1.0  # seconds before the second attempt, doubled at each further one

_RETRIED = {408, 429, 500, 502, 503, 504}  # HTTP statuses that another attempt may mend
_FINAL = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError)  # failures that it will not


class _Broken(Exception):
    """The transfer stopped; another attempt may go on from there."""


class _Meter:
    """Shows how far a file is: one line rewritten on a terminal, elsewhere a line each tenth (or 100 MB); or nothing."""

    def __init__(self, name, shown):
        self.name = name if len(name) <= 50 else f"{name[:20]}...{name[-27:]}"
        self.shown = shown
        self.terminal = sys.stderr.isatty()

    def begin(self, have, total):
        """Starts an attempt, which has `have` of `total` bytes already; `total` may be None."""
        self.first, self.have, self.total = have, have, total
        self.started, self.step = time.monotonic(), None

    def add(self, count):
        self.have += count
        passed = time.monotonic() - self.started
        tenth = 10 * self.have // self.total if self.total else self.have // 10**8
        step = (int(5 * passed), self.have == self.total) if self.terminal else tenth
        if not self.shown or step == self.step:
            return
        self.step = step
        far = f"{self.have / 1e6:.1f} MB"
        if self.total:
            far = f"{100 * self.have // self.total:3d}%  {self.have / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        line = f"{self.name}  {far}  {(self.have - self.first) / 1e6 / max(passed, 1e-3):.1f} MB/s"
        if self.terminal:
            print(f"\r{line:<100}", end="\n" if self.have == self.total else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def https_address(url):
    """The https:// or http:// address of `url`; gs://bucket/path is the public https://storage.googleapis.com/bucket/path."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "gs":
        path = urllib.parse.quote(url.removeprefix("gs://"), safe="/+=,~%")
        return f"https://storage.googleapis.com/{path}"
    if parts.scheme not in ("https", "http") or not parts.netloc:
        raise ValueError(f'Cannot download "{url}". An address begins with https://, http:// or gs://; a file needs no download.')
    return url


def cache_folder(cache=None):
    """The folder of downloaded files: `cache`, else $KERAS_VIT_CACHE, else $XDG_CACHE_HOME/keras_vit, else ~/.cache/keras_vit."""
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache = os.environ.get("KERAS_VIT_CACHE") or os.path.join(home, "keras_vit")
    return pathlib.Path(cache).expanduser()


def cached_path(url, cache=None):
    """Where `download(url, cache=cache)` puts the file."""
    source = https_address(url)
    name = urllib.parse.unquote(urllib.parse.urlsplit(source).path.rsplit("/", 1)[-1])
    name = re.sub(r"[^\w.+=-]", "_", name)[-200:].lstrip(".") or "file"
    return cache_folder(cache) / hashlib.sha256(source.encode()).hexdigest()[:8] / name


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(sha256):
    """`sha256` in lower case; 8 to 64 hexadecimal digits of it, or None."""
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{8,64}", sha256):
        raise ValueError(f'sha256 must be the 64 hexadecimal digits, or the first 8 or more of them; got "{sha256}".')
    return sha256 and sha256.lower()


def _in_cache(path, sha256):
    """Whether `path` is there and, where `sha256` is given, is the file it promises."""
    return path.exists() and (sha256 is None or _digest(path).startswith(sha256))


def _lock(file):
    if fcntl is not None:
        return fcntl.flock(file, fcntl.LOCK_EX)
    while True:
        try:
            return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        except OSError as error:
            if error.errno != errno.EDEADLK:  # raised after ten seconds of waiting
                raise


@contextlib.contextmanager
def _alone(path):
    """Holds the lock file `path` against other threads and processes."""
    with open(path, "ab") as file:
        try:
            _lock(file)
        except OSError as error:
            logging.warning("No lock on %s (%s): do not fetch the same file twice at once.", path, error)
        yield


def _tag(part):
    """The file beside `part` with the server's name for the version that `part` belongs to."""
    return part.with_name(f"{part.name}.tag")


def _size(part):
    return part.stat().st_size if part.exists() else 0


def _version(headers):
    """What names the file's version in an If-Range header (RFC 9110, section 13.1.5), or an empty string."""
    etag = headers.get("ETag", "")
    return headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag


def _extent(headers):
    """(first byte or None, whole size or None) of a Content-Range header."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip())
    return tuple(number and int(number) for number in match.groups()) if match else (None, None)


def _request(source, part):
    """Asks for what `part` lacks: (response, bytes of `part` that stay, whole size or None). No response: nothing is lacking.

    A part whose version is unknown, or is no longer the server's, starts again from nothing.
    """
    have = _size(part) if _tag(part).exists() else 0
    headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": _tag(part).read_text()}
    try:
        response = urllib.request.urlopen(urllib.request.Request(source, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            if _extent(error.headers)[1] == have:
                return None, have, have
            part.unlink()
        elif error.code not in _RETRIED:
            raise
        raise _Broken(f"HTTP status {error.code} ({error.reason})") from error
    if response.status == 206:
        start, total = _extent(response.headers)
        if start == have:
            return response, have, total
        response.close()
        part.unlink(missing_ok=True)
        raise _Broken(f'it answered a request for the bytes from {have} on with "{response.headers.get("Content-Range")}"')
    length = response.headers.get("Content-Length")
    return response, 0, None if length is None else int(length)


def _chunks(response):
    """The bytes of `response` as they come. Only what goes wrong here is the connection's fault, not the disk's."""
    try:
        while chunk := response.read1(1 << 18):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"the connection dropped ({error or type(error).__name__})") from error


def _transfer(source, part, meter):
    """One attempt at completing `part`."""
    try:
        response, have, total = _request(source, part)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(getattr(error, "reason", error)) or type(error).__name__) from error
    if response is None:
        return
    with response, open(part, "ab" if have else "wb") as file:
        if not have:  # the old bytes are gone before the new version's name is written
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
        raise _Broken(f"{got} of {total} bytes came")


def _complete(source, part, meter):
    """Attempts until `part` is whole. TRIES in a row that bring nothing new are the end, or a first one without a server."""
    begin = furthest = _size(part)
    failures = 0
    while True:
        try:
            return _transfer(source, part, meter)
        except _Broken as error:
            failures = 1 if _size(part) > furthest else failures + 1
            furthest = max(furthest, _size(part))
            hopeless = furthest == begin and isinstance(getattr(error.__cause__, "reason", None), _FINAL)
            if hopeless or failures == TRIES:
                raise
            wait = WAIT * 2 ** (failures - 1)
            logging.warning("%s: %s. Trying again in %.0f s.", source, error, wait)
            time.sleep(wait)


def _explained(url, error, path):
    """The error to raise for `url` where `error` stopped the download to `path`."""
    code = getattr(error, "code", None)
    reason = f"HTTP status {code} ({error.reason})" if code else error
    kind = FileNotFoundError if code in (404, 410) else ConnectionError
    return kind(
        f'Cannot fetch "{url}": {reason}. The cache is {path.parent.parent} (KERAS_VIT_CACHE or cache= name another); a part '
        "that arrived is kept for the next call. Where this machine cannot reach the address, fetch the file by other means and "
        "pass its path to keras_vit.load."
    )


def download(url, sha256=None, cache=None, progress=True):
    """Fetches `url` into the cache, unless it is there, and returns its local path. A broken transfer is taken up again.

    Args:
        url: an address that begins with https://, http:// or gs:// (a public bucket, read over https).
        sha256: the file's SHA-256, or its first 8 or more digits, which the file must have; None checks the length alone.
        cache: a folder; by default $KERAS_VIT_CACHE, $XDG_CACHE_HOME/keras_vit or ~/.cache/keras_vit.
        progress: show how far it is, as a line on a terminal, elsewhere (a notebook, a log file) as a line each tenth.

    Raises:
        FileNotFoundError: if the server has no such file.
        ConnectionError: if the server cannot be reached, refuses, or keeps dropping the connection.
        ValueError: for an address of another kind, a malformed `sha256`, or a file that has another; that file is deleted.
    """
    source, path, sha256 = https_address(url), cached_path(url, cache), _checked(sha256)
    if _in_cache(path, sha256):
        return path
    if path.exists():
        logging.warning("%s has another SHA-256 than %s: fetching it again.", path, sha256)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"Cannot make the folder {path.parent}: {error}. KERAS_VIT_CACHE or cache= name another.") from error
    with _alone(path.with_name(f"{path.name}.lock")):
        if _in_cache(path, sha256):  # another process was faster
            return path
        part = path.with_name(f"{path.name}.part")
        try:
            _complete(source, part, _Meter(path.name, progress))
        except (_Broken, urllib.error.HTTPError) as error:
            raise _explained(url, error, path) from error
        got = _digest(part) if sha256 else ""
        _tag(part).unlink(missing_ok=True)
        if sha256 and not got.startswith(sha256):
            part.unlink()
            raise ValueError(
                f'"{url}" has the SHA-256 {got}, expected {sha256}{"..." if len(sha256) < 64 else ""}. What came is deleted: the '
                "file was changed at its address or on the way. Try again, or pass the sha256 of the file that you mean."
            )
        os.replace(part, path)
    return path
