"""Whether bytes are a whole PNG of a given size that shows something. Standard library only."""

from __future__ import annotations

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_fault(data: bytes, width: int, height: int) -> str:
    """What is wrong with a screenshot, or an empty string.

    Checks signature, checksums, size and that all rows are there, and that not all pixels are equal (PNG specification, second
    edition, sections 5 and 11.2.2).
    """
    if not data.startswith(SIGNATURE):
        return f"it is not a PNG: it begins with {data[:8]!r}"
    at, body, header = len(SIGNATURE), b"", b""
    while True:
        if at + 12 > len(data):
            return "it is cut short"
        (length,) = struct.unpack_from(">I", data, at)
        kind, chunk = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if at + 12 + length > len(data):
            return "it is cut short"
        if struct.unpack_from(">I", data, at + 8 + length)[0] != zlib.crc32(chunk, zlib.crc32(kind)):
            return f"the checksum of its {kind.decode('latin-1')} chunk is wrong"
        if kind == b"IHDR":
            header = chunk
        elif kind == b"IDAT":
            body += chunk
        elif kind == b"IEND":
            break
        at += 12 + length
    if len(header) != 13:
        return "it has no header"
    real_width, real_height, depth, colour = struct.unpack_from(">IIBB", header)
    if (real_width, real_height) != (width, height):
        return f"it is {real_width}x{real_height} pixels, not {width}x{height}"
    try:
        rows = zlib.decompress(body)
    except zlib.error as error:
        return f"its pixels cannot be read: {error}"
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 0)
    stride = (real_width * channels * depth + 7) // 8 + 1
    if len(rows) != stride * real_height:
        return f"it has {len(rows)} bytes of pixels, not {stride * real_height}"
    distinct = {rows[at : at + stride] for at in range(0, len(rows), stride)}
    if len(distinct) <= 2 and len(set(b"".join(distinct))) <= 8:
        return "it is blank: all pixels are equal"
    return ""
