"""Closes connections that do not send a complete request head in time.

aiohttp has no time limit for the head of a request, and calls no handler before it is complete. A client that sends one
header a minute could keep a connection forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

LOOKS = 8  # checks of the connections per time limit


class RequestHeads:
    """Tracks how long each connection has been idle, since it was opened or its last request was answered."""

    def __init__(self, head_s: float) -> None:
        self.head_s = head_s
        self._since: dict[object, float] = {}
        self._at_work: set[object] = set()

    def begun(self, request: web.Request) -> None:
        """A complete head has arrived."""
        self._at_work.add(request.protocol)

    def ended(self, request: web.Request) -> None:
        """The request was answered; another may follow."""
        self._at_work.discard(request.protocol)
        self._since[request.protocol] = time.monotonic()

    @asynccontextmanager
    async def watching(self, server: web.Server) -> AsyncIterator[None]:
        """While the context is open, close connections of `server` that have been idle for longer than `head_s`."""
        task = asyncio.create_task(self._watch(server))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, server: web.Server) -> None:
        while True:
            now, there = time.monotonic(), server.connections
            self._since = {each: self._since.get(each, now) for each in there}
            for each in there:
                if each not in self._at_work and now - self._since[each] > self.head_s:
                    each.force_close()
            await asyncio.sleep(self.head_s / LOOKS)
