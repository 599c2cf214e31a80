"""A file by POST: spooled to a temporary file of bounded size, and transcribed in a thread."""

from __future__ import annotations

import asyncio
import functools
import io
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import BinaryIO, cast

from aiohttp import web

from megahour.core.errors import BadRecord
from megahour.listen.live import GoneAway
from megahour.transcribe.formats import FORMATS
from megahour.transcribe.pieces import EndRules
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import Transcription, transcribe

LOOK_S = 0.5  # from one look at whether the client is still there to the next


class Upload:
    """A seekable file; to read it after the client has left raises GoneAway."""

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
    """Those that are worked on."""

    def __init__(
        self, recogniser: Recogniser, threads: Executor, ends: EndRules, most_bytes: int, idle_s: float
    ) -> None:
        self._recogniser, self._threads, self._ends = recogniser, threads, ends
        self._most_bytes, self._idle_s = most_bytes, idle_s
        self._open: set[Upload] = set()

    def leave(self) -> None:
        """All end, with GoneAway."""
        for upload in self._open:
            upload.left = True

    async def transcribed(self, request: web.Request) -> tuple[Transcription, web.Response]:
        """Transcribes the request's body, and answers.

        Raises
        ------
        HTTPException: a format that there is not, a body that is too large or does not come, or no audio. GoneAway: as
        `leave`, and when the client has gone.
        """
        form = request.query.get("format", "json")
        if form not in FORMATS:
            raise web.HTTPBadRequest(text=f"format {form[:50]!r}: use one of {', '.join(FORMATS)}\n")
        with tempfile.TemporaryFile() as file, self._kept(Upload(file)) as upload:
            await self._spool(request, file)
            given = cast(BinaryIO, upload)
            name = request.query.get("name", "")[:200]
            work = functools.partial(transcribe, given, self._recogniser, name=name, ends=self._ends)
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            running.add_done_callback(lambda end: end.cancelled() or end.exception())  # unawaited when the server ends
            while not (await asyncio.wait({running}, timeout=LOOK_S))[0]:
                upload.left = upload.left or request.transport is None or request.transport.is_closing()
            try:
                made = await running
            except BadRecord as bad:
                raise web.HTTPUnprocessableEntity(text=f"{bad.reason}: {bad.detail}\n") from None
        kind = "application/json" if form == "json" else "text/plain"
        return made, web.Response(text=FORMATS[form](made), content_type=kind)

    @contextmanager
    def _kept(self, upload: Upload) -> Iterator[Upload]:
        self._open.add(upload)
        try:
            yield upload
        finally:
            upload.left = True
            self._open.remove(upload)

    async def _spool(self, request: web.Request, file: BinaryIO) -> None:
        if (said := request.content_length or 0) > self._most_bytes:
            raise web.HTTPRequestEntityTooLarge(self._most_bytes, said)
        size, parts = 0, request.content.iter_chunked(1 << 16)
        while data := await self._next(parts):
            size += len(data)
            if size > self._most_bytes:
                raise web.HTTPRequestEntityTooLarge(self._most_bytes, size)
            file.write(data)
        file.seek(0)

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._idle_s):
                return await anext(parts, b"")
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"nothing came for {self._idle_s:g} s\n") from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body cannot be read: {error}\n") from None
        except OSError:
            raise GoneAway from None
