"""The encoder's pictures, read by another reader; and the check that finds bad ones."""

from __future__ import annotations

import io
import os
import zlib

import pytest
from PIL import Image

from osworld_rollouts.desktops.png_check import png_fault
from osworld_rollouts.guest.png import encode_bgrx


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 3), (640, 480), (1920, 1080)])
def test_pixels_come_back(width, height):
    pixels = os.urandom(width * height * 4)
    image = Image.open(io.BytesIO(encode_bgrx(bytearray(pixels), width, height)))
    assert image.mode == "RGB"
    assert image.tobytes() == Image.frombytes("RGBA", (width, height), pixels, "raw", "BGRA").convert("RGB").tobytes()


def picture(colour="noise", size=(64, 48), mode="RGB"):
    image = Image.effect_noise(size, 50).convert(mode) if colour == "noise" else Image.new(mode, size, colour)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_good_ones_pass(mode):
    assert png_fault(picture(mode=mode), 64, 48) == ""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not an image", "not a PNG"),
        (b"", "not a PNG"),
        (picture()[:40], "cut short"),
        (picture()[:-12], "cut short"),
        (picture()[:-30] + b"xx" + picture()[-28:], "checksum"),
        (picture(size=(32, 48)), "32x48"),
        (picture("black"), "blank"),
        (picture("white", mode="RGBA"), "blank"),
    ],
)
def test_bad_ones_do_not(data, words):
    assert words in png_fault(data, 64, 48)


def test_rows_that_are_missing():
    good = picture()
    at = good.index(b"IDAT")
    short = zlib.compress(zlib.decompress(good[at + 4 : at + 4 + int.from_bytes(good[at - 4 : at], "big")])[:1000])
    chunk = b"IDAT" + short
    data = good[: at - 4] + len(short).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    assert "bytes of pixels" in png_fault(data + good[-12:], 64, 48)
