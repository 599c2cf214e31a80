"""The server: a page, its WebSocket, and files by POST. It enforces limits, and notifies clients when it stops.

GET  /            the page, which needs no token: it holds nothing secret
GET  /about       the model and its sampling rate
GET  /stream      WebSocket: send {"rate_hz": 16000}, then 16-bit samples; receive partial and final words
POST /transcribe  an audio file of any kind; returns its transcript, ?format=json, txt, srt, vtt or ctm &channel=1
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from megahour.core.errors import MegahourError
from megahour.listen.access import PROTOCOL, Access
from megahour.listen.files import Uploads
from megahour.listen.heads import RequestHeads
from megahour.listen.limits import DEFAULTS, Limits
from megahour.listen.live import AudioInbox, GoneAway, Idle, LiveSession, rate_of, wrong_message
from megahour.transcribe.live import live_blocks
from megahour.transcribe.pieces import USUAL_ENDS, EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream
from megahour.transcribe.streaming import USUAL, ChunkLengths, latency_of, plan_of

PAGE = Path(__file__).parent / "page"
FILES = {"": "listen.html", "listen.js": "listen.js", "listen.css": "listen.css", "worklet.js": "worklet.js"}
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
POLICY, GOING_AWAY = 1008, 1001  # of RFC 6455
LOGGER = logging.getLogger("aiohttp.server.listen")
"""Logs faults of the server itself. Requests that are not HTTP are answered with 400 but not logged, or anybody
could fill the log."""
_NO_HTTP = (HttpProcessingError, web.RequestPayloadError)
LOGGER.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _NO_HTTP)))
PING_S = 20.0


@dataclass
class ServedCounts:
    """Counts of what the server has done."""

    streams: int = 0
    files: int = 0
    refused: int = 0
    heard_s: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The counts by name."""
        return {**vars(self), "heard_s": round(self.heard_s, 3)}

    def text(self) -> str:
        """The counts as a sentence."""
        heard = f"{self.heard_s / 60:.1f} minutes of audio"
        return f"Streams: {self.streams}, files: {self.files}, {heard}, refused: {self.refused}"


class ListenServer:
    """Serves all sessions with one recogniser; each session has a thread of its own."""

    def __init__(
        self,
        recogniser: Recogniser,
        access: Access,
        *,
        chunks: ChunkLengths = USUAL,
        ends: EndRules = USUAL_ENDS,
        limits: Limits = DEFAULTS,
    ) -> None:
        """Raises ConfigError if the model cannot use `chunks` of that many milliseconds."""
        self.recogniser, self.access, self.limits = recogniser, access, limits
        self.chunks, self.ends = chunks, ends
        self.counts, self.busy = ServedCounts(), 0
        self.about = {"model": Path(recogniser.parts.model_name).name, "rate_hz": recogniser.front.rate_hz}
        self.about |= {"latency_ms": latency_of(plan_of(recogniser, chunks))}
        self._threads = ThreadPoolExecutor(limits.sessions, "listen")
        self._uploads = Uploads(recogniser, self._threads, ends, limits)
        self._heads = RequestHeads(limits.head_s)
        self._live: dict[web.WebSocketResponse, AudioInbox] = {}

    def warm_up(self) -> None:
        """Compile and load everything that the first stream would have to wait for."""
        rate_hz = self.recogniser.front.rate_hz
        other_hz = 48_000 if rate_hz != 48_000 else 16_000  # so that the resampler is loaded, too
        noise = np.random.default_rng(0).normal(0, 3000, 2 * other_hz).astype("<i2")
        pause = np.zeros(other_hz, "<i2")  # steady noise alone would count as a pause
        heard = live_blocks(io.BytesIO(pause.tobytes() + noise.tobytes() + pause.tobytes()), rate_hz, other_hz)
        for _ in stream(self.recogniser, heard, chunks=self.chunks):
            pass

    def watching(self, server: web.Server) -> AbstractAsyncContextManager[None]:
        """Context that closes connections of aiohttp's `server` that do not complete a request head in time."""
        return self._heads.watching(server)

    def app(self) -> web.Application:
        """The application, for aiohttp's runners."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get(f"/{name}", functools.partial(_file, path)) for name, path in FILES.items()])
        app.add_routes([web.get("/about", self._about), web.get("/stream", self._stream)])
        app.add_routes([web.post("/transcribe", self._transcribe)])
        app.on_response_prepare.append(_with_headers)
        app.on_shutdown.append(self._send_away)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._heads.begun(request)
        try:
            self.access.check_place(request)
            if request.path.lstrip("/") not in FILES:
                self.access.check_token(request)
            return await handler(request)
        except web.HTTPClientError:
            self.counts.refused += 1
            raise
        finally:
            self._heads.ended(request)

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response(self.about)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        """Counts a session while it is open. Raises HTTPServiceUnavailable if there are too many."""
        if self.busy >= self.limits.sessions:
            self.counts.refused += 1
            what = f"the server is at its limit of {self.busy} sessions: try again later\n"
            raise web.HTTPServiceUnavailable(text=what, headers={"Retry-After": "10"})
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.access.check_protocol(request)
        socket = web.WebSocketResponse(
            protocols=[PROTOCOL], max_msg_size=self.limits.message_bytes, heartbeat=PING_S, compress=False
        )
        async with self._session():
            wrong: Exception | None = None
            try:
                await socket.prepare(request)
                self.counts.streams += 1
                await self._talk(socket)
            except (MegahourError, Idle) as error:
                self.counts.refused += 1
                wrong = error
            except (GoneAway, OSError):
                pass
        if not socket.prepared:  # the client has left already
            return web.Response()
        await _close(socket, wrong)  # outside the session, so that another may already begin
        return socket

    async def _talk(self, socket: web.WebSocketResponse) -> None:
        """Handle one stream from the first message to the last."""
        rate_hz = rate_of(await self._received(socket))
        session = LiveSession(socket, self.recogniser, rate_hz, self.chunks, self.ends, self.limits.idle_s)
        self._live[socket] = session.inbox
        try:
            await socket.send_json({"type": "ready", **self.about})
            await self._recognised(socket, session)
        finally:
            del self._live[socket]

    async def _recognised(self, socket: web.WebSocketResponse, session: LiveSession) -> None:
        work = asyncio.get_running_loop().run_in_executor(self._threads, session.recognise)
        feeding = asyncio.create_task(self._feed(socket, session.inbox))
        try:
            await asyncio.wait((work, feeding), return_when=asyncio.FIRST_EXCEPTION)
            if feeding.done() and feeding.exception() is not None:
                await feeding
            await work
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            session.inbox.leave()
            with contextlib.suppress(GoneAway, Idle, MegahourError):
                await asyncio.shield(work)  # do not free the session before its thread is done
            self.counts.heard_s += session.meter.heard_s

    async def _feed(self, socket: web.WebSocketResponse, inbox: AudioInbox) -> None:
        """Put audio into the inbox until the client marks the end. Raises GoneAway if the client leaves earlier."""
        while isinstance(message := await self._received(socket), bytes):
            if message:
                await inbox.put(message)
        if message.get("end") is not True:
            raise wrong_message(
                f"the message {json.dumps(message)[:100]}", 'send 16-bit samples, and {"end": true} at the end'
            )
        await inbox.put(b"")

    async def _received(self, socket: web.WebSocketResponse) -> bytes | dict[str, Any]:
        """The next message. Raises GoneAway if the client leaves, and Idle if no message arrives in time."""
        try:
            message = await asyncio.wait_for(socket.receive(), self.limits.idle_s)
        except TimeoutError:
            raise Idle(f"nothing arrived for {self.limits.idle_s:g} s") from None
        if message.type is WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is not WSMsgType.TEXT:  # the connection was closed or lost
            raise GoneAway
        try:
            values = json.loads(message.data)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise wrong_message("a message is not a JSON object", 'begin with {"rate_hz": 16000}')
        return values

    async def _send_away(self, app: web.Application) -> None:
        """End all uploads and streams when the server stops."""
        self._uploads.leave()
        for inbox in self._live.values():
            inbox.leave()
        await asyncio.gather(*map(_dismiss, list(self._live)))
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- files -------------------------------------------------------------------------------------------------------

    async def _transcribe(self, request: web.Request) -> web.Response:
        async with self._session():
            try:
                made, answer = await self._uploads.transcribed(request)
            except GoneAway:
                raise web.HTTPServiceUnavailable(text="the server was stopped\n") from None
            self.counts.files += 1
            self.counts.heard_s += made.seconds
        return answer


async def _close(socket: web.WebSocketResponse, error: Exception | None) -> None:
    """Close the WebSocket, after a message with the error if there is one."""
    if error is None:
        await socket.close()
        return
    what = (
        {"error": error.message, "remedy": error.remedy} if isinstance(error, MegahourError) else {"error": f"{error}"}
    )
    with contextlib.suppress(OSError, RuntimeError):
        await socket.send_json({"type": "error", **what})
        await socket.close(code=POLICY)


async def _dismiss(socket: web.WebSocketResponse) -> None:
    """Tell a client that the server stops, and close its stream, whether it responds or not."""
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(2):
            await socket.send_json({"type": "error", "error": "the server was stopped"})
            await socket.close(code=GOING_AWAY)


async def _file(path: str, request: web.Request) -> web.Response:
    return web.Response(body=(PAGE / path).read_bytes(), content_type=KINDS[Path(path).suffix], charset="utf-8")


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
