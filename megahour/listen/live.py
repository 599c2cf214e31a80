"""A client's stream: the event loop receives audio, a thread recognises it, and the words are sent back."""

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

from megahour.core.errors import MegahourError
from megahour.transcribe.formats import word_dict
from megahour.transcribe.latency import StreamMeter
from megahour.transcribe.live import live_blocks
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Update, stream
from megahour.transcribe.streaming import ChunkLengths

WAITING = 64  # queued messages; once the queue is full, the client has to wait


class GoneAway(Exception):
    """The client has left or was disconnected; its work is abandoned."""


class Idle(Exception):
    """No audio for too long, or too much audio without a word."""


def wrong_message(what: str, remedy: str) -> MegahourError:
    return MegahourError(what, remedy=remedy)


def rate_of(message: bytes | dict[str, Any]) -> int:
    """Sampling rate from the first message. Raises MegahourError if it is missing or not a rate of audio, or if the
    message asks for more, such as channels, which would be heard as noise.
    """
    values = message if isinstance(message, dict) else {}
    rate_hz = values.get("rate_hz")
    if not isinstance(rate_hz, int) or isinstance(rate_hz, bool):
        raise wrong_message("the first message says no sampling rate", 'begin with {"rate_hz": 16000}')
    if more := sorted(values.keys() - {"rate_hz"}):
        what = f"the first message has {more[0][:50]!r}"
        raise wrong_message(what, 'begin with {"rate_hz": 16000} alone, and send 16-bit mono samples')
    if not 4000 <= rate_hz <= 384_000:
        raise wrong_message(f"samples at {rate_hz} Hz", "send them at 4000 to 384000 Hz")
    return rate_hz


class AudioInbox:
    """A queue of bytes from the event loop to a thread, which reads them like a file."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._queue = loop, asyncio.Queue[tuple[float, bytes]](WAITING)
        self._rest, self._ended, self.left = b"", False, False
        self.came_s = time.monotonic()

    async def put(self, data: bytes) -> None:
        """Add audio, waiting while the queue is full. Empty `data` marks the end."""
        await self._queue.put((time.monotonic(), data))

    def leave(self) -> None:
        """Called by the event loop: makes `read` raise GoneAway at once."""
        self.left = True
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._queue.get_nowait()
        self._queue.put_nowait((self.came_s, b""))

    def read(self, size: int) -> bytes:
        """Called by the thread: returns `size` bytes, fewer at the end. Raises GoneAway after `leave`."""
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
    """A client's stream. idle_s: audio without a word after which it ends; also the time limit for sending."""

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
        """Recognise until the audio ends; runs in a thread. Raises GoneAway and Idle."""
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
        except (OSError, RuntimeError, TimeoutError):  # the client has left or does not read
            sending.cancel()
            raise GoneAway from None


def message_of(update: Update) -> dict[str, Any]:
    """The JSON message: type (partial or final), text, and words with times and confidence."""
    words = [word_dict(word) for word in update.words]
    text = " ".join(word.text for word in update.words)
    return {"type": "final" if update.final else "partial", "text": text, "words": words}
