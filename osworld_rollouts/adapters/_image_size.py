"""Image sizes that vision models ask for."""

from __future__ import annotations

import math


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(width, height) as multiples of `factor`, near the aspect ratio, within the pixel limits (QwenLM's `smart_resize`)."""
    high, wide = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if high * wide > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        high, wide = (max(factor, math.floor(side / scale / factor) * factor) for side in (height, width))
    elif high * wide < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        high, wide = (math.ceil(side * scale / factor) * factor for side in (height, width))
    return wide, high
