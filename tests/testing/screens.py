"""A made-up screen with two buttons, and requests that show it."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw

INSTRUCTION = "Press the red button, then say hello."
BUTTONS = {"red": (400, 200), "blue": (100, 380)}
RED = "430, 212"
"""The red button's middle."""


def draw_button(name: str) -> Image.Image:
    button = Image.new("RGB", (60, 24), "#dddddd")
    pen = ImageDraw.Draw(button)
    pen.rectangle((2, 2, 57, 21), fill={"red": "#cc2222", "blue": "#2222cc"}[name], outline="black")
    pen.text((12, 6), "press", fill="white")
    return button


def draw_screen(*names: str, size: tuple[int, int] = (640, 480)) -> bytes:
    """PNG of a desktop with a texture and the named buttons."""
    screen = Image.new("RGB", size, "#336655")
    pen = ImageDraw.Draw(screen)
    for x in range(0, size[0], 40):
        pen.line((x, 0, size[0] - x, size[1]), fill="#446677")
    for name in names:
        screen.paste(draw_button(name), BUTTONS[name])
    buffer = io.BytesIO()
    screen.save(buffer, "PNG")
    return buffer.getvalue()


def image_part(png: bytes) -> dict:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}", "detail": "high"},
    }


def chat_body(*screens: bytes, model: str = "scripted-solver", instruction: str = INSTRUCTION, **fields) -> dict:
    """A request in the form that OSWorld's pyautogui agent sends: earlier screenshots, then task and current screenshot."""
    earlier = [
        {"role": "user", "content": [{"type": "text", "text": "Previous screenshot:"}, image_part(png)]}
        for png in screens[:-1]
    ]
    task = {"type": "text", "text": f"Task: {instruction}\nGiven the screenshot below, what's the next step?"}
    current = {"role": "user", "content": [task, *(image_part(png) for png in screens[-1:])]}
    return {
        "model": model,
        "messages": [{"role": "system", "content": "Reply with code."}, *earlier, current],
        **fields,
    }
