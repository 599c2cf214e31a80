"""Pages in headless Chromium: opened, watched, waited for, and measured for eyes, fingers and keyboards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MEASURES = Path(__file__).with_name("measures.js").read_text("utf-8")
PATIENCE_S = 240.0  # with a busy machine; playwright's own is 30 s
FADED = """Promise.allSettled(document.getAnimations()
    .filter(each => each.effect.getComputedTiming().endTime < Infinity).map(each => each.finished))"""
WATCH = """words => {
    window.lit = []
    window.times = []
    const readings = () => [...document.querySelectorAll('[data-reading]')].filter(e => e.querySelector('.lit'))
    new MutationObserver(() => {
        window.times.push(Number(document.querySelector('[aria-valuenow]')?.getAttribute('aria-valuenow')))
        const word = [...document.querySelectorAll(words)].findIndex(e => e.matches('.lit'))
        if (word < 0 || word === window.lit.at(-1)?.word) return
        window.lit.push({word, readings: readings().map(e => e.dataset.reading)})
    }).observe(document.body, {subtree: true, attributes: true, attributeFilter: ['class', 'aria-valuenow']})
}"""
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"),
]


@contextmanager
def opened(path: Path, width: int) -> Iterator[Any]:
    """The page of a file. Afterwards checks that it logged no errors and requested nothing else."""
    if BROWSER is None:
        pytest.skip("needs Chromium (on Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'megahour[dev]')")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS, timeout=PATIENCE_S * 1000)
        tab = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        tab.set_default_timeout(PATIENCE_S * 1000)
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


def until(page: Any, condition: str, limit_s: float = PATIENCE_S) -> None:
    """Polls from outside, because the page's policy forbids code compiled by playwright's wait_for_function."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if page.evaluate(condition):
            return
        page.wait_for_timeout(40)
    raise AssertionError(f"not within {limit_s:g} s: {condition}")


def cpu_s(page: Any, script: str) -> float:
    """CPU seconds that the page's thread takes for a script, however busy the machine is."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def so_far() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "ThreadTime"))

    before = so_far()
    page.evaluate(script)
    return so_far() - before


def watch_words(page: Any, words: str) -> None:
    """From now on the page notes itself in `lit` which of its `words` (a selector) light up, and in which readings.

    `times` is where its slider was.
    """
    page.evaluate(WATCH, words)


def measured(page: Any, what: str) -> list[str]:
    """The distinct elements that fail one of the measures in `measures.js`."""
    found: list[str] = page.evaluate(f"({MEASURES}).{what}()")
    return sorted(set(found))


def looks(page: Any, scheme: str) -> None:
    """WCAG 2.2 AA for contrasts: text 4.5 (3 when large), shapes 3."""
    page.emulate_media(color_scheme=scheme)
    page.evaluate(FADED)  # from the colours of one scheme to those of the other
    assert measured(page, "faint") == []
    assert measured(page, "pale") == []


def fits_a_phone(page: Any, width: int = 360) -> None:
    """The page does not scroll sideways, text is large enough to read, and targets are large enough to hit."""
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.scrollingElement.scrollWidth") <= page.evaluate("innerWidth") == width
    assert measured(page, "small") == []
    assert measured(page, "tiny") == []
