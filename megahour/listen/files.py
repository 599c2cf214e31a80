"""Transcribes files sent by POST: spools them to a temporary file and uses a thread; size and time are bounded."""

from __future__ import annotations

import asyncio
import functools
import io
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from aiohttp import web

from megahour.core.errors import BadRecord, nearest
from megahour.listen.limits import Limits
from megahour.listen.live import GoneAway
from megahour.transcribe.channels import EACH, Channel, transcribe_channel
from megahour.transcribe.formats import FORMATS
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Transcription

LOOK_S = 0.5  # between two checks whether the client is still connected
ASKED = ("format", "name", "channel")


class Upload:
    """A seekable file. Reading it after `left` is set raises GoneAway."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.left = file, False

    def read(self, size: int = -1) -> bytes:
        if self.left:
            raise GoneAway
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return 0 if self.left else self._file.seek(offset, whence)  # libsndfile seeks once more when it closes

    def tell(self) -> int:
        return 0 if self.left else self._file.tell()


class Uploads:
    """The uploads being transcribed."""

    def __init__(self, recogniser: Recogniser, threads: Executor, ends: EndRules, limits: Limits) -> None:
        self._recogniser, self._threads, self._ends, self._limits = recogniser, threads, ends, limits
        self._open: set[Upload] = set()

    def leave(self) -> None:
        """Abort all uploads with GoneAway."""
        for upload in self._open:
            upload.left = True

    async def transcribed(self, request: web.Request) -> tuple[Transcription, web.Response]:
        """Transcribe the request's body; returns the transcript and the response.

        Raises
        ------
        HTTPException: an unknown format, a body that is too large or too slow, or audio that cannot be decoded, is too
        long or takes too long. GoneAway: after `leave`, or when the client has left.
        """
        form, name, channel = _asked(request)
        if request.content_type.startswith("multipart/"):
            what = "a form: send the file itself as the body, as `curl --data-binary @talk.wav` does\n"
            raise web.HTTPUnsupportedMediaType(text=what)
        with tempfile.TemporaryFile() as file, self._kept(Upload(file)) as upload:
            await self._spool(request, file)
            given = cast(BinaryIO, upload)
            watch = functools.partial(self._watch, upload, time.monotonic() + self._limits.work_s)
            how: dict[str, Any] = {"name": name, "ends": self._ends, "watch": watch}
            work = functools.partial(transcribe_channel, given, self._recogniser, channel, **how)
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            running.add_done_callback(lambda end: end.cancelled() or end.exception())  # unawaited when the server ends
            while not (await asyncio.wait({running}, timeout=LOOK_S))[0]:
                upload.left = upload.left or request.transport is None or request.transport.is_closing()
            try:
                made = await running
            except BadRecord as bad:
                raise web.HTTPUnprocessableEntity(text=f"{bad.reason}: {bad.detail}\n") from None
        made.model = Path(made.model).name  # where it lies on this machine concerns no client
        kind = "application/json" if form == "json" else "text/plain"
        return made, web.Response(text=FORMATS[form](made), content_type=kind)

    def _watch(self, upload: Upload, until_s: float, heard_s: float) -> None:
        """Check the limits; called by the thread before each block of audio."""
        if upload.left:
            raise GoneAway
        if heard_s > self._limits.file_s:
            raise BadRecord("too-long", f"more than {self._limits.file_s:g} s of audio; send it in parts")
        if time.monotonic() > until_s:
            what = f"not finished within {self._limits.work_s:g} s, of which {heard_s:.0f} s of audio; send it in parts"
            raise BadRecord("too-slow", what)

    @contextmanager
    def _kept(self, upload: Upload) -> Iterator[Upload]:
        self._open.add(upload)
        try:
            yield upload
        finally:
            upload.left = True
            self._open.remove(upload)

    async def _spool(self, request: web.Request, file: BinaryIO) -> None:
        most, least = self._limits.file_bytes, self._limits.least_bytes_s
        if (said := request.content_length or 0) > most:
            raise web.HTTPRequestEntityTooLarge(most, said)
        size, parts, began_s = 0, request.content.iter_chunked(1 << 16), time.monotonic()
        while data := await self._next(parts):
            size += len(data)
            if size > most:
                raise web.HTTPRequestEntityTooLarge(most, size)
            if size < (time.monotonic() - began_s - self._limits.idle_s) * least:
                raise web.HTTPRequestTimeout(text=f"the body arrived at less than {least:,} bytes a second\n")
            file.write(data)
        file.seek(0)

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._limits.idle_s):
                return await anext(parts, b"")
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"nothing arrived for {self._limits.idle_s:g} s\n") from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body cannot be read: {error}\n") from None
        except OSError:
            raise GoneAway from None


def _asked(request: web.Request) -> tuple[str, str, Channel]:
    """The format, name and channel of a request's query. Raises HTTPBadRequest for anything else in it."""
    query = request.query
    if unknown := next((name for name in query if name not in ASKED), None):
        raise web.HTTPBadRequest(text=f"unknown parameter {unknown[:50]!r}{nearest(unknown, ASKED)}\n")
    if (form := query.get("format", "json")) not in FORMATS:
        raise web.HTTPBadRequest(text=f"format {form[:50]!r}: use one of {', '.join(FORMATS)}\n")
    channel, name = query.get("channel", "0"), query.get("name", "")[:200]
    if channel == EACH:
        return form, name, EACH
    if not (channel.isascii() and channel.isdigit() and len(channel) < 4):
        what = "give its number, from 1; 0 is the mix of all; or each"
        raise web.HTTPBadRequest(text=f"channel {channel[:50]!r}: {what}\n")
    return form, name, int(channel)
