"""Access control of the server: it accepts only its own hosts and origins, and clients that know the token.

A page of another site can make a browser connect to a loopback address. Its `Origin` header reveals it or, if its name
was made to resolve to this machine (DNS rebinding), the `Host` header. The token is compared in constant time.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

PROTOCOL, TOKEN_PREFIX = "megahour.v1", "token."
_BEARER = re.compile(r"^bearer +", re.IGNORECASE)  # the case of a scheme does not count (RFC 9110, 11.1)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Access:
    """Checks requests. host: the address listened on; origins: others, such as a proxy's https://speech.example."""

    def __init__(self, token: str, host: str, origins: Iterable[str] = ()) -> None:
        self._token, self._origins = token, tuple(origin.rstrip("/") for origin in origins)
        own = f"[{host}]" if ":" in host else host
        self._hosts = {*LOOPBACK, own, *(urlsplit(origin).netloc.rpartition("@")[2] for origin in self._origins)}

    def check_place(self, request: web.Request) -> None:
        """Raises HTTPForbidden if the request names another host or comes from a page of another site."""
        host = request.headers.get("Host", "")
        name = host if host in self._hosts else _without_port(host)
        if name not in self._hosts:
            raise web.HTTPForbidden(text=f"this server is not called {host[:100]!r}: name it with --origin\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin not in (f"http://{host}", *self._origins):
            raise web.HTTPForbidden(text=f"pages of {origin[:100]!r} may not use this server: name it with --origin\n")

    def check_token(self, request: web.Request) -> None:
        """Raises HTTPUnauthorized unless the token is in `Authorization: Bearer …` or a WebSocket's protocols."""
        given = _BEARER.sub("", request.headers.get("Authorization", ""))
        for protocol in _protocols(request):
            if protocol.startswith(TOKEN_PREFIX):
                given = protocol.removeprefix(TOKEN_PREFIX)
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode()):
            what = "a wrong token" if given else "no token: send Authorization: Bearer TOKEN"
            raise web.HTTPUnauthorized(text=f"{what}\n", headers={"WWW-Authenticate": "Bearer"})

    def check_protocol(self, request: web.Request) -> None:
        """Raises HTTPBadRequest if a WebSocket offers protocols without ours: aiohttp would log them and the token."""
        if "Sec-WebSocket-Protocol" in request.headers and PROTOCOL not in _protocols(request):
            raise web.HTTPBadRequest(text=f"offer the protocol {PROTOCOL}, too\n")


def _protocols(request: web.Request) -> list[str]:
    return [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host
