"""Screenshots: checked, hashed twice (the bytes as stored and sent, and the pixels they show), stored once."""

from __future__ import annotations

import hashlib
import io
import threading
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal

from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.evidence.errors import UnusableImage
from osworld_rollouts.evidence.packing import sha256_hex

if TYPE_CHECKING:
    from PIL.Image import Image

    from osworld_rollouts.evidence.store import EvidenceStore

MAX_PIXELS: Final = 7680 * 4320  # the largest desktop a request may ask for; more is a decompression bomb
_MIME: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
_REMEMBERED: Final = 256

Blank = Literal["allow", "refuse"]

_seen: OrderedDict[str, tuple[MediaRef, bool]] = OrderedDict()
_seen_lock = threading.Lock()


def put_screenshot(
    store: EvidenceStore, data: bytes, *, blank: Blank = "allow", size: tuple[int, int] | None = None
) -> MediaRef:
    """Check an image, store its bytes as they are, and describe it. The same image again costs one hash and a look.

    Args:
        store: where it goes.
        data: PNG, JPEG or WebP bytes.
        blank: `refuse` raises for an image of one colour.
        size: (width, height) in pixels it must have.

    Raises:
        UnusableImage: no image, a cut one, of the wrong size, or blank where that is refused.
        EvidenceUnavailable: the store cannot be written.
    """
    described, is_blank = _describe(data)
    if size is not None and (described.width, described.height) != size:
        raise UnusableImage("wrong_size", f"{described.width}x{described.height} pixels, expected {size[0]}x{size[1]}")
    if is_blank and blank == "refuse":
        raise UnusableImage("blank", f"every pixel of {described.width}x{described.height} has the same colour")
    store.put(data)
    return described


def describe_image(data: bytes) -> MediaRef:
    """As `put_screenshot`, without storing."""
    return _describe(data)[0]


def _describe(data: bytes) -> tuple[MediaRef, bool]:
    sha256 = sha256_hex(data)
    with _seen_lock:
        known = _seen.get(sha256)
    if known is not None:
        return known
    image, mime = _decode(data)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    pixels = rgb.tobytes()
    described = MediaRef(
        sha256=sha256,
        pixel_sha256=hashlib.sha256(pixels).hexdigest(),
        bytes=len(data),
        mime=mime,
        width=rgb.width,
        height=rgb.height,
    )
    view = memoryview(pixels)
    is_blank = view[3:] == view[:-3]  # every pixel is the one before it; ends at the first that is not
    with _seen_lock:
        _seen[sha256] = (described, is_blank)
        while len(_seen) > _REMEMBERED:
            _seen.popitem(last=False)
    return described, is_blank


def _decode(data: bytes) -> tuple[Image, str]:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - keeps this package light to import

    if not data:
        raise UnusableImage("empty", "0 bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=list(_MIME))
        if image.width * image.height > MAX_PIXELS:
            raise UnusableImage("wrong_size", f"{image.width}x{image.height} pixels, more than {MAX_PIXELS} in all")
        image.load()
    except UnidentifiedImageError:
        raise UnusableImage(
            "not_an_image", f"{len(data)} bytes beginning {data[:16]!r}; expected PNG, JPEG or WebP"
        ) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnusableImage("truncated", f"{len(data)} bytes do not decode: {error}") from error
    if image.format == "PNG":
        _check_png(data)
    return image, _MIME[image.format or "PNG"]


def _check_png(data: bytes) -> None:
    """Every chunk's checksum, up to IEND: a decoder stops at the last row and does not look (PNG specification, 5.3)."""
    at = 8
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            break
        if zlib.crc32(memoryview(data)[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise UnusableImage(
                "truncated", f"{len(data)} bytes: the checksum of PNG chunk {kind!r} at {at} does not match"
            )
        if kind == b"IEND":
            return
        at = end + 4
    raise UnusableImage("truncated", f"{len(data)} bytes of PNG end before the end chunk")
