"""Finding a small picture on a screenshot, the way a person finds a button: by how it looks.

First the place where every pixel is equal, which costs milliseconds. Failing that, normalised cross-correlation (Lewis, "Fast Normalized Cross-Correlation", 1995): candidates on the grey image through one
Fourier transform, then the best few judged exactly in colour, so that a grey switch is not taken for a blue one.
"""

from __future__ import annotations

import functools
import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_CANDIDATES = 24


class UnreadableImageError(ValueError):
    """The bytes are not an image that Pillow can read."""


@dataclass(frozen=True)
class Match:
    """Where the picture is: its rectangle in pixels of the screenshot, and how alike it is (1 is equal)."""

    x: int
    y: int
    width: int
    height: int
    likeness: float

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel in the middle."""
        return self.x + self.width // 2, self.y + self.height // 2


class Screen:
    """A screenshot, decoded once and searched many times."""

    def __init__(self, encoded: bytes) -> None:
        self.sha256 = hashlib.sha256(encoded).hexdigest()
        self.pixels = _decode(encoded)
        self.height, self.width = self.pixels.shape[:2]

    def find(
        self, template: NDArray[np.float32], region: tuple[int, int, int, int] | None = None, *, at_least: float
    ) -> Match | None:
        """The place most like `template` (height x width x RGB) within `region` (x, y, width, height), or None."""
        left, top, width, height = region or (0, 0, self.width, self.height)
        window = self.pixels[max(top, 0) : top + height, max(left, 0) : left + width]
        rows, columns = template.shape[:2]
        if window.shape[0] < rows or window.shape[1] < columns:
            return None
        if (place := _equal(window, template)) is not None:
            return Match(place[1] + max(left, 0), place[0] + max(top, 0), columns, rows, 1.0)
        grey = _likeness(window.mean(axis=2), template.mean(axis=2))
        best: Match | None = None
        for y, x in _peaks(grey):
            likeness = _colour_likeness(window[y : y + rows, x : x + columns], template)
            if likeness >= at_least and (best is None or likeness > best.likeness):
                best = Match(x + max(left, 0), y + max(top, 0), columns, rows, round(likeness, 4))
        return best


@functools.cache
def load_template(path: Path) -> NDArray[np.float32]:
    """The picture to look for.

    Raises:
        UnreadableImageError: when the file is no image, or is of one colour, which is found everywhere.
    """
    pixels = _decode(path.read_bytes())
    if float(pixels.std()) < 1.0:
        raise UnreadableImageError(f"{path} is of one colour; cut a template with an edge in it")
    return pixels


def _decode(encoded: bytes) -> NDArray[np.float32]:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.asarray(image.convert("RGB"), dtype=np.float32)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise UnreadableImageError(f"not an image: {error}") from error


def _equal(image: NDArray[np.float32], template: NDArray[np.float32]) -> tuple[int, int] | None:
    """The first (y, x) where the image is the template, pixel by pixel."""
    whole, part = _packed(image), _packed(template)
    colours, counts = np.unique(part, return_counts=True)
    rare_y, rare_x = np.argwhere(part == colours[counts.argmin()])[0]
    rows, columns = part.shape
    fitting = whole[rare_y : whole.shape[0] - rows + rare_y + 1, rare_x : whole.shape[1] - columns + rare_x + 1]
    for y, x in np.argwhere(fitting == part[rare_y, rare_x]):
        if whole[y, x] == part[0, 0] and np.array_equal(whole[y : y + rows, x : x + columns], part):
            return int(y), int(x)
    return None


def _packed(image: NDArray[np.float32]) -> NDArray[np.uint32]:
    """One number for each pixel's colour."""
    red, green, blue = np.moveaxis(image.astype(np.uint32), 2, 0)
    return red << 16 | green << 8 | blue


def _likeness(image: NDArray[np.float32], template: NDArray[np.float32]) -> NDArray[np.float64]:
    """Correlation coefficient at every place where the template fits."""
    rows, columns = template.shape
    centred = template - template.mean()
    spectrum = np.fft.rfft2(image) * np.conj(np.fft.rfft2(centred, s=image.shape))
    covered = np.fft.irfft2(spectrum, s=image.shape)[: image.shape[0] - rows + 1, : image.shape[1] - columns + 1]
    size = rows * columns
    total, squares = _box_sum(image, rows, columns), _box_sum(np.square(image, dtype=np.float64), rows, columns)
    spread = np.sqrt(np.maximum(squares - np.square(total) / size, 0.0))
    # Places with next to no contrast cannot be the picture; their quotient would be noise.
    norm = np.where(spread < 0.5 * np.sqrt(size), np.inf, spread) * float(
        np.sqrt(np.square(centred, dtype=np.float64).sum()) or np.inf
    )
    return covered / norm


def _box_sum(image: NDArray[np.floating[Any]], rows: int, columns: int) -> NDArray[np.float64]:
    padded = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    np.cumsum(np.cumsum(image, axis=0, dtype=np.float64), axis=1, out=padded[1:, 1:])
    return padded[rows:, columns:] - padded[:-rows, columns:] - padded[rows:, :-columns] + padded[:-rows, :-columns]


def _peaks(likeness: NDArray[np.float64]) -> list[tuple[int, int]]:
    count = min(_CANDIDATES, likeness.size)
    flat = np.argpartition(likeness, -count, axis=None)[-count:]
    places = [divmod(int(index), likeness.shape[1]) for index in flat]
    return sorted(places, key=lambda place: (-likeness[place], place))


def _colour_likeness(patch: NDArray[np.float32], template: NDArray[np.float32]) -> float:
    """Correlation over all channels, lowered by how far the mean colours are apart."""
    left, right = patch - patch.mean(), template - template.mean()
    norm = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    correlation = float((left * right).sum()) / norm if norm else 0.0
    apart = float(np.abs(patch.mean(axis=(0, 1)) - template.mean(axis=(0, 1))).max()) / 255
    return correlation - apart
