"""The bodies of requests as encoded images: TensorFlow Serving's JSON, multipart forms and raw bytes, within limits."""

import asyncio
import base64
import binascii
import dataclasses
import io
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from keras_vit.io.suggest import did_you_mean


class Refused(Exception):
    """A request that cannot be answered: its HTTP status, and why in words."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


# Of an image: above twice its MAX_IMAGE_PIXELS Pillow does not tell an image's size.
MOST_MEGAPIXELS = 178


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one request may cost.

    Attributes:
        megabytes: of a body.
        images: in a request.
        megapixels: of an image, by its header; MOST_MEGAPIXELS at most.
        seconds: for a body to arrive, and then again for its answer.

    Raises:
        ValueError: for more megapixels.
    """

    megabytes: float = 32.0
    images: int = 64
    megapixels: float = 64.0
    seconds: float = 30.0

    def __post_init__(self):
        if self.megapixels > MOST_MEGAPIXELS:
            raise ValueError(
                f"megapixels={self.megapixels:g}: images of {MOST_MEGAPIXELS} million pixels are the largest that are taken."
            )

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)


def check_size(encoded: bytes, megapixels: float) -> None:
    """Looks at an image's header before its pixels; where Pillow does not know the format, decoding says what is wrong with it.

    Raises:
        Refused: 413 for too many pixels.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise Refused(413, f"It has far more than {megapixels:g} million pixels, the most that are taken.") from None
    except Exception:  # Pillow's readers raise all kinds of errors for damaged files
        return
    if width * height > megapixels * 1e6:
        raise Refused(413, f"It has {width} x {height} pixels, of {megapixels:g} million at most.")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a request asks for: encoded images, and the name of the signature, or None for the default."""

    images: list[bytes]
    signature: str | None = None
    columns: bool = False  # whether the answer is {"outputs": ...}, a list per output, instead of one object per image


async def _chunks(request, limit):
    """The pieces of a body, as long as they are within `limit` bytes."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refused(413, f"The body is larger than {limit:,} bytes. Send fewer or smaller images.")
        yield chunk


async def read(request: Request, limits: Limits) -> bytes:
    """The body of a request.

    Raises:
        Refused: 413 above the limit, 408 if it does not arrive in time, 400 if its sender went away.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.bytes:
        raise Refused(413, f"The body has {int(announced):,} bytes, of {limits.bytes:,} at most. Send fewer or smaller images.")
    try:
        async with asyncio.timeout(limits.seconds):
            return b"".join([chunk async for chunk in _chunks(request, limits.bytes)])
    except TimeoutError:
        raise Refused(408, f"The body did not arrive within {limits.seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "The connection was closed before the body had arrived.") from None


def _encoded(value, place):
    """The bytes of {"b64": "..."}, also inside of {"encoded_images": ...}."""
    if isinstance(value, dict) and len(value) == 1 and "encoded_images" in value:
        value = value["encoded_images"]
    if not isinstance(value, dict) or set(value) != {"b64"} or not isinstance(value["b64"], str):
        raise Refused(400, f'{place}: expected {{"b64": "BASE64 OF AN IMAGE FILE"}}.')
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"{place}: this is not base64: {error}.") from None


def from_json(body: bytes) -> Asked:
    """The images of TensorFlow Serving's {"instances": [{"b64": ...}, ...]}, or of its column form {"inputs": ...}.

    Raises:
        Refused: 400 for anything else.
    """
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is not JSON: {error}.") from None
    expected = 'expected {"instances": [{"b64": "..."}, ...]}'
    if not isinstance(content, dict) or ("instances" in content) == ("inputs" in content):
        raise Refused(400, f'{expected}, or the same with "inputs" in place of "instances".')
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
    return Asked([_encoded(value, f"Image {i}") for i, value in enumerate(values)], signature, columns)


async def from_form(body: bytes, request: Request, limits: Limits) -> Asked:
    """The files of a multipart form, in order, whatever their fields are called, and its text field "signature_name".

    Raises:
        Refused: 400 for a body that is no such form, or a text field that nothing reads.
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
                f'The form has the text field "{name}", which nothing reads.{hint} Valid: signature_name, and files: -F {name}=@cat.jpg',
            )
    if len(texts) > 1:
        raise Refused(400, 'The form has several fields "signature_name". One answer has one signature.')
    return Asked([await file.read() for file in files], dict(texts).get("signature_name"))


def check_query(request: Request, *valid: str) -> None:
    """Lets no parameter of an address pass that nothing reads.

    Raises:
        Refused: 400, naming it.
    """
    for name in request.query_params:
        if name not in valid:
            taken = f"Valid: {', '.join(valid)}." if valid else "There are none here."
            raise Refused(400, f'There is no parameter "{name}".{did_you_mean(name, valid)} {taken}')


def _check_plain(request):
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Refused(415, f'The body is compressed ("Content-Encoding: {coding}"). Send it as it is.')


async def asked(request: Request, limits: Limits) -> Asked:
    """What a request asks for.

    Raises:
        Refused: if that cannot be told, or is beyond a limit.
    """
    _check_plain(request)
    body = await read(request, limits)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        raise Refused(400, "The body is empty. Send an image, a form with files, or JSON.")
    if kind == "multipart/form-data":
        found = await from_form(body, request, limits)
    elif kind == "application/json" or (kind in ("", "application/x-www-form-urlencoded") and body.lstrip()[:1] == b"{"):
        found = from_json(body)  # curl -d says application/x-www-form-urlencoded, whatever it sends
    elif kind.startswith("image/") or kind in ("", "application/octet-stream", "application/x-www-form-urlencoded"):
        found = Asked([body])
    else:
        raise Refused(
            415,
            f'The content type "{kind}" is not read. Send application/json, multipart/form-data, image/* or application/octet-stream.',
        )
    if not found.images:
        raise Refused(400, "There are no images in the request.")
    if len(found.images) > limits.images:
        raise Refused(413, f"The request has {len(found.images)} images, of {limits.images} at most.")
    return found
