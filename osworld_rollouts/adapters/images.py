"""Screenshots in the form a model is sent: resized, and with numbered marks. Needs Pillow, so nothing pure imports it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from osworld_rollouts.adapters.accessibility import accessibility_text, marks_of

if TYPE_CHECKING:
    from osworld_rollouts.adapters._contract import Marks
    from osworld_rollouts.contracts.model import ImageGeometry

__all__ = ["accessibility_text", "draw_marks", "marks_of", "prepare_image"]


def prepare_image(png: bytes, geometry: ImageGeometry) -> bytes:
    """The screenshot as PNG in the model's size (bicubic, RGB); untouched when it already has it.

    Raises:
        OSError: the bytes are no image.
    """
    with Image.open(io.BytesIO(png)) as image:
        size = (geometry.image_width, geometry.image_height)
        if image.size == size:
            return png
        return _png(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))


def draw_marks(png: bytes, marks: Marks) -> bytes:
    """The screenshot with a numbered frame for each mark, as PNG. Mark n is `marks[n - 1]`.

    Source of the look: xlang-ai/OSWorld, `draw_bounding_boxes` (red frames, white number on black at the lower left).

    Raises:
        OSError: the bytes are no image.
    """
    with Image.open(io.BytesIO(png)) as source:
        image = source.convert("RGB")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=15)
    for number, (x, y, w, h) in enumerate(marks, 1):
        if w <= 0 or h <= 0:
            continue
        draw.rectangle((x, y, x + w - 1, y + h - 1), outline="red")
        left, top, right, bottom = draw.textbbox((x, y + h), str(number), font=font, anchor="lb")
        draw.rectangle((left, top, right, bottom), fill="black")
        draw.text((x, y + h), str(number), font=font, anchor="lb", fill="white")
    return _png(image)


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()
