"""Request bodies as encoded images: TensorFlow Serving's JSON, multipart forms and raw bytes, within limits."""

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from keras_vit.data.sources.image_files import HEAD, format_from_bytes
from keras_vit.io.suggest import did_you_mean


class Refused(Exception):
    """A request that cannot be answered: its HTTP status and the reason in words."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


PIXELS = (
    "This service takes encoded image files, such as JPEG or PNG, not pixels. Send a file's bytes as they are, as a"
    ' file of a form, or as base64 in JSON: {"instances": [{"b64": "BASE64 OF AN IMAGE FILE"}]}.'
)
_NESTED = re.compile(rb"\[\s*\[")  # lists in a list, as pixels are sent to TensorFlow Serving

# Per image: above twice its MAX_IMAGE_PIXELS Pillow does not report an image's size.
MOST_MEGAPIXELS = 178


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request.

    Attributes:
        megabytes: per body.
        images: per request.
        megapixels: per image, by its header; at most MOST_MEGAPIXELS.
        seconds: for a body to arrive, and again for its answer.
        megabytes_together: bodies of all concurrent requests; at least `megabytes`.

    Raises:
        ValueError: for more megapixels.
    """

    megabytes: float = 32.0
    images: int = 64
    megapixels: float = 64.0
    seconds: float = 30.0
    megabytes_together: float = 512.0

    def __post_init__(self):
        if self.megapixels > MOST_MEGAPIXELS:
            raise ValueError(f"megapixels={self.megapixels:g}: images of {MOST_MEGAPIXELS} million pixels at most.")

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)

    @property
    def bytes_together(self) -> int:
        return max(self.bytes, int(self.megabytes_together * 1e6))


class Memory:
    """Bounds the bytes of all concurrent requests' bodies to `most`."""

    def __init__(self, most: int):
        self.most, self.held = most, 0

    @contextlib.contextmanager
    def of_request(self) -> Iterator[Callable[[int], None]]:
        """A context with a function that reserves bytes for a request's body, all released at the end.

        Raises:
            Refused: 503, from that function, without room.
        """
        mine = 0

        def take(count):
            nonlocal mine
            if self.held + count > self.most:
                raise Refused(
                    503, f"The requests being answered have {self.held:,} bytes, of {self.most:,} at most. Try again."
                )
            self.held += count
            mine += count

        try:
            yield take
        finally:
            self.held -= mine


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request's encoded images and signature name, None for the default."""

    images: list[bytes]
    signature: str | None = None
    columns: bool = False  # answer {"outputs": ...}, a list per output, instead of one object per image


async def _chunks(request, limit, take):
    """A body's chunks, up to `limit` bytes and while `take` has room."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        take(len(chunk))
        if size > limit:
            raise Refused(413, f"The body is larger than {limit:,} bytes. Send fewer or smaller images.")
        yield chunk


async def read(request: Request, limits: Limits, take: Callable[[int], None]) -> bytes:
    """A request's body; `take` is from Memory.of_request.

    Raises:
        Refused: 413 above the limit, 503 without room, 408 if it arrives late, 400 if its sender left.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.bytes:
        raise Refused(
            413, f"The body has {int(announced):,} bytes, of {limits.bytes:,} at most. Send fewer or smaller images."
        )
    try:
        async with asyncio.timeout(limits.seconds):
            return b"".join([chunk async for chunk in _chunks(request, limits.bytes, take)])
    except TimeoutError:
        raise Refused(408, f"The body did not arrive within {limits.seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "The connection was closed before the body had arrived.") from None


def _check_count(count, images):
    if count > images:
        raise Refused(413, f"The request has {count} images, of {images} at most.")


def _encoded(value, place):
    """The bytes of {"b64": "..."}, also inside {"encoded_images": ...}."""
    if isinstance(value, dict) and len(value) == 1 and "encoded_images" in value:
        value = value["encoded_images"]
    if isinstance(value, list) or isinstance(value, dict) and any(isinstance(part, list) for part in value.values()):
        raise Refused(400, f"{place}: this is a list. {PIXELS}")
    if not isinstance(value, dict) or set(value) != {"b64"} or not isinstance(value["b64"], str):
        raise Refused(400, f'{place}: expected {{"b64": "BASE64 OF AN IMAGE FILE"}}.')
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"{place}: this is not base64: {error}.") from None


def from_json(body: bytes, images: int) -> Asked:
    """Up to `images` images of TensorFlow Serving's {"instances": [{"b64": ...}, ...]}, or its columns {"inputs": ...}.

    Raises:
        Refused: 413 for more images, 400 for anything else.
    """
    expected = 'expected {"instances": [{"b64": "..."}, ...]}'
    if kind := format_from_bytes(body[:HEAD]):
        media = f"image/{kind.lower().replace(' ', '')}"
        raise Refused(
            400, f"These bytes are a {kind} image, not JSON: send them as {media} or application/octet-stream."
        )
    # Millions of small values take gigabytes, and block everything else for seconds. Each but the first follows a
    # comma.
    if body.count(b",") > 2 * images + 16:
        if _NESTED.search(body):
            raise Refused(400, PIXELS)
        raise Refused(413, f"The body has many more values than {images} images, the most that are taken: {expected}.")
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is not JSON: {error}.") from None
    if not isinstance(content, dict) or ("instances" in content) == ("inputs" in content):
        raise Refused(400, f'{expected}, or the same with "inputs" instead of "instances".')
    unknown = set(content) - {"instances", "inputs", "signature_name"}
    signature = content.get("signature_name")
    if unknown or not isinstance(signature, (str, type(None))):
        raise Refused(400, f'{expected}, and "signature_name", a string; got {sorted(unknown) or repr(signature)}.')
    columns = "inputs" in content
    values = content["inputs" if columns else "instances"]
    if columns and isinstance(values, dict) and set(values) == {"encoded_images"}:
        values = values["encoded_images"]
    if not isinstance(values, list):
        raise Refused(400, f"{expected}: a list.")
    _check_count(len(values), images)
    return Asked([_encoded(value, f"Image {i}") for i, value in enumerate(values)], signature, columns)


async def from_form(body: bytes, request: Request, limits: Limits) -> Asked:
    """A multipart form's files, in order, whatever their fields' names, and its text field "signature_name".

    Raises:
        Refused: 400 for a malformed form, or an unknown text field.
    """

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(request.headers, stream(), max_files=limits.images + 1, max_fields=16).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Refused(400, f"The multipart form cannot be read: {getattr(error, 'message', error)}.") from None
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if not files:
        raise Refused(400, "The form has no file. With curl: -F image=@cat.jpg")
    texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    for name, _ in texts:
        if name != "signature_name":
            hint = did_you_mean(name, ["signature_name"])
            raise Refused(
                400,
                f'The form has the text field "{name}", which nothing reads.{hint} Valid: signature_name, and files: -F'
                f" {name}=@cat.jpg",
            )
    if len(texts) > 1:
        raise Refused(400, 'The form has several fields "signature_name". One answer has one signature.')
    return Asked([await file.read() for file in files], dict(texts).get("signature_name"))


def check_query(request: Request, *valid: str) -> None:
    """Raises Refused, 400, for a query parameter that is not `valid`."""
    for name in request.query_params:
        if name not in valid:
            taken = f"Valid: {', '.join(valid)}." if valid else "There are none here."
            raise Refused(400, f'There is no parameter "{name}".{did_you_mean(name, valid)} {taken}')


def _check_plain(request):
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Refused(415, f'The body is compressed ("Content-Encoding: {coding}"). Send it as it is.')


async def asked(request: Request, limits: Limits, take: Callable[[int], None]) -> Asked:
    """The parsed request; `take` is from Memory.of_request.

    Raises:
        Refused: if it is malformed or exceeds a limit.
    """
    _check_plain(request)
    body = await read(request, limits, take)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        raise Refused(400, "The body is empty. Send an image, a form with files, or JSON.")
    if kind == "multipart/form-data":
        found = await from_form(body, request, limits)
    elif kind == "application/json" or (
        kind in ("", "application/x-www-form-urlencoded") and body.lstrip()[:1] == b"{"
    ):
        # curl -d always says application/x-www-form-urlencoded.
        found = await run_in_threadpool(from_json, body, limits.images)
    elif kind == "application/x-www-form-urlencoded" and not any(byte in body for byte in b"\r\n\0"):
        raise Refused(400, "curl -d has removed line breaks and zero bytes from the file. Use --data-binary @FILE.")
    elif kind.startswith("image/") or kind in ("", "application/octet-stream", "application/x-www-form-urlencoded"):
        found = Asked([body])
    else:
        raise Refused(
            415,
            f'The content type "{kind}" is not read. Send application/json, multipart/form-data, image/* or'
            " application/octet-stream.",
        )
    if not found.images:
        raise Refused(400, "There are no images in the request.")
    _check_count(len(found.images), limits.images)
    return found
