"""The page of `megahour listen` in a real browser: words from a microphone, which plays a WAV, and from a file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from aiohttp import web
from chromium import ARGUMENTS, BROWSER, PATIENCE_S, fits_a_phone, looks, until
from tones import RATE_HZ, speak, train_listener

from megahour.listen.access import Access
from megahour.listen.server import ListenServer
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import transcribe

HEARD = """document.getElementById('status').textContent.includes('s heard')
    && !document.getElementById('microphone').disabled"""  # the words' end, and then the connection's
TOKEN = "a-token-that-nobody-knows"
SPOKEN = ["cab deaf"]


@contextmanager
def serving(recogniser: Recogniser) -> Iterator[tuple[ListenServer, str]]:
    """A server on a free port, in a thread of its own, and its address."""
    loop, port, stopped = asyncio.new_event_loop(), [0], asyncio.Event()
    server, started = ListenServer(recogniser, Access(TOKEN, "127.0.0.1")), threading.Event()

    async def serve() -> None:
        runner = web.AppRunner(server.app(), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port[0] = runner.addresses[0][1]
        started.set()
        await stopped.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(240)
        yield server, f"http://127.0.0.1:{port[0]}/"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


@contextmanager
def tab_of(microphone: Path) -> Iterator[Any]:
    """A tab whose microphone plays the file in a loop; checks at the end that it logged no errors."""
    if BROWSER is None:
        pytest.skip("needs Chromium (on Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'megahour[dev]')")
    fake = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    fake += [f"--use-file-for-fake-audio-capture={microphone}"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS + fake, timeout=PATIENCE_S * 1000)
        tab = browser.new_page()
        tab.set_default_timeout(PATIENCE_S * 1000)
        tab.complaints = []
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        yield tab
        browser.close()


def test_words_of_a_microphone_and_of_a_file(tmp_path: Path) -> None:
    recogniser = Recogniser(RecogniserParts(train_listener(tmp_path / "model").url))
    samples, _, _ = speak(SPOKEN, np.random.default_rng(2))
    soundfile.write(tmp_path / "talk.wav", samples, RATE_HZ)
    expected = transcribe(samples, recogniser, rate_hz=RATE_HZ, settled=False)
    assert expected.text
    with serving(recogniser) as (server, address), tab_of(tmp_path / "talk.wav") as tab:
        tab.goto(f"{address}#token={TOKEN}")
        assert tab.url == address, "the token does not stay in the address"
        looks(tab, "light")
        looks(tab, "dark")

        tab.set_input_files("#file", str(tmp_path / "talk.wav"))
        until(tab, HEARD)
        assert tab.locator(".final").all_text_contents() == [word.text for word in expected.words]
        assert tab.locator("#partial").text_content() == ""
        assert server.busy == 0

        tab.reload()  # the token stays with the tab
        tab.click("#microphone")
        # On a busy machine a partial result may be final before it is looked at.
        until(tab, "[...document.querySelectorAll('#partial, .final')].some(e => e.textContent.includes('cabde'))")
        assert tab.is_disabled("#microphone")
        tab.click("#stop")
        until(tab, HEARD)
        assert any("cabde" in text for text in tab.locator(".final").all_text_contents())
        fits_a_phone(tab)
        assert tab.complaints == []
        assert (server.counts.streams, server.counts.refused, server.busy) == (2, 0, 0)

        tab.evaluate("sessionStorage.setItem('token', 'another')")
        tab.reload()
        until(tab, "document.getElementById('status').textContent.startsWith('a wrong token')")
        assert server.counts.refused == 1
