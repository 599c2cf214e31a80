"""Pages in headless Chromium: opened, watched, waited for, and measured for their contrast."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"),
]


@contextmanager
def opened(path: Path, width: int) -> Iterator[Any]:
    """The page of a file. In the end nothing must have been complained about, and nothing else asked for."""
    if BROWSER is None:
        pytest.skip("needs Chromium (on Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'megahour[dev]')")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.complaints, tab.requests = [], []
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.on("dialog", lambda dialog: (tab.complaints.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: tab.requests.append(request.url))
        tab.goto(path.as_uri())
        yield tab
        assert tab.complaints == []
        assert [url[:60] for url in tab.requests if not url.startswith("data:")] == [path.as_uri()[:60]]
        browser.close()


def until(page: Any, condition: str, limit_s: float = 15.0) -> None:
    """Polls from outside: the page's policy forbids playwright's own wait_for_function to compile code in it."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if page.evaluate(condition):
            return
        page.wait_for_timeout(40)
    raise AssertionError(f"not within {limit_s:g} s: {condition}")


def least_contrast(page: Any, selectors: list[str], scheme: str) -> float:
    """The lowest contrast of the texts at `selectors` with a panel's background, WCAG 2.2 (4.5 for small text)."""
    page.emulate_media(color_scheme=scheme)
    background, *texts = page.evaluate(
        "selectors => [getComputedStyle(document.querySelector('.panel')).backgroundColor,"
        " ...selectors.map(s => getComputedStyle(document.querySelector(s)).color)]",
        selectors,
    )
    behind = luminance(background)
    pairs = [sorted((luminance(text), behind)) for text in texts]
    return min((lighter + 0.05) / (darker + 0.05) for darker, lighter in pairs)


def luminance(colour: str) -> float:
    """Relative luminance of a CSS colour rgb(r, g, b), WCAG 2.2."""
    channels = np.array([int(v) for v in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
