"""A real Chromium, the system's own."""

from __future__ import annotations

import shutil

import pytest
from playwright.async_api import async_playwright


@pytest.fixture
async def browser():
    """Headless Chromium, or a skip that says what is missing."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on PATH")
    async with async_playwright() as driver:
        made = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        await made.close()
