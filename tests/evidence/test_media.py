from __future__ import annotations

import hashlib
import io

import pytest
from PIL import Image

from osworld_rollouts.evidence.errors import UnusableImage
from osworld_rollouts.evidence.media import describe_image, put_screenshot
from tests.evidence.builders import png


def test_bytes_and_pixels_are_hashed_apart(store):
    data = png(mark=5)
    ref = put_screenshot(store, data)
    assert (ref.width, ref.height, ref.bytes, ref.mime) == (64, 48, len(data), "image/png")
    assert store.get(ref.sha256) == data
    assert ref.pixel_sha256 == hashlib.sha256(Image.open(io.BytesIO(data)).tobytes()).hexdigest()
    packed = io.BytesIO()
    Image.open(io.BytesIO(data)).save(packed, "PNG", compress_level=0)
    other = put_screenshot(store, packed.getvalue())
    assert other.sha256 != ref.sha256
    assert other.pixel_sha256 == ref.pixel_sha256


def test_the_same_screenshot_is_stored_once(store):
    for _ in range(5):
        put_screenshot(store, png(mark=5))
    assert len(list(store.blobs())) == 1


def test_other_modes_are_described_by_their_rgb_pixels(store):
    out = io.BytesIO()
    Image.open(io.BytesIO(png())).convert("RGBA").save(out, "PNG")
    assert describe_image(out.getvalue()).pixel_sha256 == describe_image(png()).pixel_sha256


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<html>502</html>", "not_an_image"),
        (png(mark=5)[:90], "truncated"),
        (b"\x89PNG\r\n\x1a\n", "not_an_image"),
        (b"GIF89a" + b"\0" * 20, "not_an_image"),
    ],
)
def test_what_is_no_screenshot(store, data, reason):
    with pytest.raises(UnusableImage) as caught:
        put_screenshot(store, data)
    assert caught.value.reason == reason
    assert list(store.blobs()) == []


def test_a_flipped_byte_is_no_screenshot(store):
    data = bytearray(png(200, 200, mark=50))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(UnusableImage) as caught:
        put_screenshot(store, bytes(data))
    assert caught.value.reason == "truncated"


def test_blank_and_size_where_asked(store):
    assert put_screenshot(store, png())
    with pytest.raises(UnusableImage, match="blank"):
        put_screenshot(store, png(), blank="refuse")
    with pytest.raises(UnusableImage, match="64x48 pixels, expected 1x1"):
        put_screenshot(store, png(), size=(1, 1))
    assert put_screenshot(store, png(mark=3), blank="refuse", size=(64, 48))
