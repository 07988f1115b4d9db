"""Finding pictures on screenshots."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from PIL import Image

from osworld_rollouts.testing.locate import Screen, UnreadableImageError, load_template
from tests.testing.screens import BUTTONS, draw_screen


@pytest.fixture
def red(pictures):
    return load_template(pictures / "red.png")


def test_the_exact_place_is_found(red):
    match = Screen(draw_screen("red", "blue")).find(red, at_least=0.9)
    assert match
    assert (match.x, match.y) == BUTTONS["red"]
    assert match.centre == (430, 212)
    assert match.likeness == pytest.approx(1, abs=0.001)


def test_the_same_shape_in_another_colour_is_not_it(red):
    assert Screen(draw_screen("blue")).find(red, at_least=0.8) is None


def test_nothing_there(red):
    assert Screen(draw_screen()).find(red, at_least=0.8) is None


def test_a_region_limits_the_search(red):
    screen = Screen(draw_screen("red"))
    assert screen.find(red, (300, 100, 300, 200), at_least=0.9) == screen.find(red, at_least=0.9)
    assert screen.find(red, (0, 0, 300, 300), at_least=0.9) is None
    assert screen.find(red, (620, 470, 300, 200), at_least=0.9) is None


def test_of_two_equal_ones_the_upper_is_taken(red):
    with Image.open(io.BytesIO(draw_screen("red"))) as image:
        image.paste(image.crop((400, 200, 460, 224)), (300, 50))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
    match = Screen(buffer.getvalue()).find(red, at_least=0.9)
    assert match
    assert (match.x, match.y) == (300, 50)


def test_a_little_noise_does_not_hide_it(red):
    with Image.open(io.BytesIO(draw_screen("red"))) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    noisy = np.clip(pixels + np.random.default_rng(7).integers(-12, 12, pixels.shape), 0, 255).astype("uint8")
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "PNG")
    match = Screen(buffer.getvalue()).find(red, at_least=0.85)
    assert match
    assert (match.x, match.y) == BUTTONS["red"]


def test_a_full_screen_is_searched_fast_enough_for_a_turn(red):
    screen = Screen(draw_screen("blue", size=(1920, 1080)))
    begun = time.process_time()
    assert screen.find(red, at_least=0.9) is None
    assert time.process_time() - begun < 2


def test_what_is_no_image(tmp_path):
    with pytest.raises(UnreadableImageError, match="not an image"):
        Screen(b"\x89PNG\r\n\x1a\nbroken")
    Image.new("RGB", (9, 9), "white").save(tmp_path / "white.png")
    with pytest.raises(UnreadableImageError, match="of one colour"):
        load_template(tmp_path / "white.png")
