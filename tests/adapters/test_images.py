from __future__ import annotations

import io

import pytest
from PIL import Image

from osworld_rollouts.adapters.accessibility import HEADER, accessibility_text, marks_of, numbered
from osworld_rollouts.adapters.images import draw_marks, prepare_image
from osworld_rollouts.contracts.model import ImageGeometry

STATE = "https://accessibility.ubuntu.example.org/ns/state"
COMPONENT = "https://accessibility.ubuntu.example.org/ns/component"


def node(tag, name="", text="", at="(1, 2)", size="(10, 20)", **states):
    on = {"showing": "true", "visible": "true", "enabled": "true", **states}
    marks = " ".join(f'st:{key}="{value}"' for key, value in on.items())
    return f'<{tag} name="{name}" {marks} cp:screencoord="{at}" cp:size="{size}">{text}</{tag}>'


def tree(*nodes):
    return f'<desktop-frame xmlns:st="{STATE}" xmlns:cp="{COMPONENT}">{"".join(nodes)}</desktop-frame>'


def png(width, height, colour="white"):
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()


def test_rows_are_osworlds():
    text = accessibility_text(tree(node("push-button", "OK"), node("label", "", 'say "hi"'), node("entry", "a\tb")))
    assert text.split("\n") == [
        HEADER,
        'push-button\tOK\t""\t\t\t(1, 2)\t(10, 20)',
        'label\t\t"say ""hi"""\t\t\t(1, 2)\t(10, 20)',
        'entry\ta b\t""\t\t\t(1, 2)\t(10, 20)',
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        node("panel", "a panel"),
        node("push-button"),
        node("push-button", "x", showing="false"),
        node("push-button", "x", enabled="false"),
        node("push-button", "x", at="(-1, 2)"),
        node("push-button", "x", size="(0, 2)"),
        node("push-button", "x", at="nowhere"),
    ],
)
def test_what_is_not_shown(hidden):
    assert accessibility_text(tree(hidden)) == HEADER
    assert marks_of(tree(hidden), 100, 100) == ()


def test_marks_are_rows():
    both = tree(node("push-button", "A", at="(0, 0)"), node("push-button", "B", at="(95, 5)"))
    assert marks_of(both, 100, 100) == ((0, 0, 10, 20), (95, 5, 5, 20))
    assert numbered(accessibility_text(both)).split("\n")[1:] == ['1\tpush-button\tA\t""', '2\tpush-button\tB\t""']


def test_a_broken_tree_says_so():
    assert "could not be read" in accessibility_text("<a")
    assert marks_of("<a", 10, 10) == ()


def test_an_image_of_the_right_size_stays_as_it_is():
    data = png(64, 32)
    assert (
        prepare_image(data, ImageGeometry(screen_width=64, screen_height=32, image_width=64, image_height=32)) is data
    )


def test_an_image_is_resized():
    data = prepare_image(png(64, 32), ImageGeometry(screen_width=64, screen_height=32, image_width=32, image_height=16))
    assert Image.open(io.BytesIO(data)).size == (32, 16)


def test_marks_are_drawn():
    data = draw_marks(png(100, 100), ((10, 10, 50, 50), (0, 0, 0, 0)))
    image = Image.open(io.BytesIO(data))
    assert image.getpixel((30, 10)) == (255, 0, 0)
    assert image.getpixel((80, 80)) == (255, 255, 255)
