"""One stream of a client: audio comes in on the event loop, is recognised in a thread, and words go out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from megahour.transcribe.formats import word_dict
from megahour.transcribe.latency import StreamMeter
from megahour.transcribe.live import live_blocks
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Update, stream
from megahour.transcribe.streaming import ChunkLengths

WAITING = 64  # messages that have come and were not worked off; then the client has to wait


class GoneAway(Exception):
    """The client has left, or was sent away: what it wanted is not worked on any more."""


class Idle(Exception):
    """No audio, or no word in it, for too long."""


class AudioInbox:
    """Bytes on their way from the event loop to a thread, which reads them like a file."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._queue = loop, asyncio.Queue[tuple[float, bytes]](WAITING)
        self._rest, self._ended, self.left = b"", False, False
        self.came_s = time.monotonic()

    async def put(self, data: bytes) -> None:
        """Waits while too much is waiting. No bytes: the end."""
        await self._queue.put((time.monotonic(), data))

    def leave(self) -> None:
        """From the event loop: whoever reads gets GoneAway, at once."""
        self.left = True
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._queue.get_nowait()
        self._queue.put_nowait((self.came_s, b""))

    def read(self, size: int) -> bytes:
        """From the thread: `size` bytes, fewer at the end. Raises GoneAway."""
        while len(self._rest) < size and not self._ended:
            if self.left:
                raise GoneAway
            self.came_s, data = asyncio.run_coroutine_threadsafe(self._queue.get(), self._loop).result()
            if self.left:
                raise GoneAway
            self._rest, self._ended = self._rest + data, not data
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class LiveSession:
    """A client's stream. idle_s: audio without a word, or time without audio, after which it ends."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        recogniser: Recogniser,
        rate_hz: int,
        chunks: ChunkLengths,
        ends: EndRules,
        idle_s: float,
    ) -> None:
        self._socket, self._recogniser, self._rate_hz = socket, recogniser, rate_hz
        self._chunks, self._ends, self._idle_s = chunks, ends, idle_s
        self._loop = asyncio.get_running_loop()
        self.inbox = AudioInbox(self._loop)
        self.meter = StreamMeter(came=lambda: self.inbox.came_s)
        self._words_at_s = 0.0

    def recognise(self) -> None:
        """In a thread, until the audio ends. Raises GoneAway, and Idle."""
        news = stream(self._recogniser, self._blocks(), chunks=self._chunks, ends=self._ends, meter=self.meter)
        for update in news:
            if update.words:
                self._words_at_s = self.meter.heard_s
            self._send(message_of(update))
        self._send({"type": "end", **self.meter.facts()})

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        pipe = cast(BinaryIO, self.inbox)
        for block in live_blocks(pipe, self._recogniser.front.rate_hz, self._rate_hz):
            if self.meter.heard_s - self._words_at_s > self._idle_s:
                raise Idle(f"no words in {self._idle_s:g} s of audio")
            yield block

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False)
        sending = asyncio.run_coroutine_threadsafe(self._socket.send_str(text), self._loop)
        try:
            sending.result(self._idle_s)
        except (OSError, RuntimeError, TimeoutError):  # gone, or it does not read
            sending.cancel()
            raise GoneAway from None


def message_of(update: Update) -> dict[str, Any]:
    """Keys type (partial or final), text, and words with their times and confidence."""
    words = [word_dict(word) for word in update.words]
    text = " ".join(word.text for word in update.words)
    return {"type": "final" if update.final else "partial", "text": text, "words": words}
