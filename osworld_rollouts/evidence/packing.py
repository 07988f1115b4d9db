"""How content is packed into a blob file and how a blob file is read back."""

from __future__ import annotations

import hashlib
import threading
from typing import Final

import zstandard

from osworld_rollouts.evidence.errors import BlobCorrupt

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
_PACKED: Final = (
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    ZSTD_MAGIC,
    b"OggS",
)
_WORTH: Final = 256  # bytes; below it a frame saves nothing worth a decode
_LEVEL: Final = 3
_MAX_CONTENT: Final = 1 << 30  # bytes; a frame that claims more is refused instead of filling memory

_local = threading.local()


def sha256_hex(data: bytes) -> str:
    """Sha256 of bytes, hex."""
    return hashlib.sha256(data).hexdigest()


def pack(data: bytes) -> bytes:
    """The bytes to store for this content: itself, or a zstd frame when that is smaller and the content is not packed already."""
    if len(data) < _WORTH or data.startswith(_PACKED) or data[4:8] == b"ftyp":
        return data
    frame = _compressor().compress(data)
    return frame if len(frame) < len(data) else data


def unpack(stored: bytes, sha256: str, place: str) -> bytes:
    """The content of a blob file, checked.

    Content that itself begins with the zstd magic number is stored as it is, so both readings are tried: the sha256 decides.

    Raises:
        BlobCorrupt: neither reading has this sha256.
    """
    frame_problem = ""
    if stored.startswith(ZSTD_MAGIC):
        try:
            size = zstandard.frame_content_size(stored)
            if 0 <= size <= _MAX_CONTENT:
                data = _decompressor().decompress(stored, max_output_size=_MAX_CONTENT)
                if hashlib.sha256(data).hexdigest() == sha256:
                    return data
                frame_problem = "its zstd frame holds other content; "
            else:
                frame_problem = f"its zstd frame claims {size} bytes; "
        except zstandard.ZstdError as error:
            frame_problem = f"its zstd frame does not decode ({error}); "
    actual = hashlib.sha256(stored).hexdigest()
    if actual == sha256:
        return stored
    raise BlobCorrupt(sha256, place, f"{frame_problem}{len(stored)} stored bytes have sha256 {actual}")


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    return _local.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    return _local.decompressor
