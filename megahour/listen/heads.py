"""Connections on which no whole request comes are closed: a client that sends a header a minute would keep one forever.

aiohttp waits for the head of a request as long as the client likes, and no handler is asked before it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

LOOKS = 8  # at the connections, in the time that they have


class RequestHeads:
    """How long each connection has been waited for: since it was made, or since its last request was answered."""

    def __init__(self, head_s: float) -> None:
        self.head_s = head_s
        self._since: dict[object, float] = {}
        self._at_work: set[object] = set()

    def begun(self, request: web.Request) -> None:
        """A whole head has come."""
        self._at_work.add(request.protocol)

    def ended(self, request: web.Request) -> None:
        """It was answered; another may follow."""
        self._at_work.discard(request.protocol)
        self._since[request.protocol] = time.monotonic()

    @asynccontextmanager
    async def watching(self, server: web.Server) -> AsyncIterator[None]:
        """Closes connections of `server` that have waited for too long, while the context is open."""
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
