"""`megahour listen`: a server for live speech recognition from browser microphones and other programs."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import signal
import socket
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.cli.recogniser_options import chunk_options, end_options, recogniser_of, recogniser_options, taken
from megahour.core.errors import ConfigError
from megahour.core.extras import needing
from megahour.runner import log
from megahour.runner.options import FiniteRange, repeatable

if TYPE_CHECKING:
    from megahour.listen.server import ListenServer

LEAST_TOKEN = 16
_TOKEN_CHARACTERS = string.ascii_letters + string.digits + "-_"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command("listen")
@recogniser_options
@chunk_options
@end_options
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. Use another one only behind TLS."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8990, show_default=True, help="Port. 0: any free one.")
@click.option(
    "--token-file", default="", help="File with the access token. Without it a new one is generated and printed."
)
@repeatable("--origin", "origins", text="Further origins of web pages that may connect, such as https://a.example.")
@click.option("--sessions", type=click.IntRange(1, 256), default=4, show_default=True,
              help="Largest number of streams and files at a time.")  # fmt: skip
@click.option("--idle-s", type=FiniteRange(1), default=300.0, show_default=True,
              help="End a stream after this many seconds without audio, or of audio without a word.")  # fmt: skip
@click.option("--message-kb", type=click.IntRange(1, 1 << 16), default=256, show_default=True,
              help="Largest message of a stream, in kilobytes.")  # fmt: skip
@click.option("--file-mb", type=click.IntRange(1, 1 << 14), default=512, show_default=True,
              help="Largest file to transcribe, in megabytes.")  # fmt: skip
@click.option("--file-hours", type=FiniteRange(0, 24, min_open=True), default=4.0, show_default=True,
              help="Longest decoded audio of a file, in hours. A small file can hold hours of silence.")  # fmt: skip
@click.option("--work-s", type=FiniteRange(1), default=3600.0, show_default=True,
              help="Give up on a file that is not transcribed after this many seconds.")  # fmt: skip
@log.logged
@needing("audio", "train", "http", install_as="transcribe")
def command(host: str, port: int, token_file: str, origins: tuple[str, ...], **values: Any) -> None:
    """Serve live recognition for a browser's microphone or another program, with words as they come.

    \b
    megahour listen --model demo
    megahour listen --model runs/digits --step model --chunk-ms 320 --port 8000
    """
    from megahour.listen.access import Access
    from megahour.listen.limits import Limits
    from megahour.listen.server import ListenServer

    listening = _listening(host, port)
    token = _token_of(token_file) if token_file else secrets.token_urlsafe(24)
    which, chunks, ends = taken(values)
    limits = Limits(
        sessions=values["sessions"],
        idle_s=values["idle_s"],
        message_bytes=values["message_kb"] << 10,
        file_bytes=values["file_mb"] << 20,
        file_s=values["file_hours"] * 3600,
        work_s=values["work_s"],
    )
    server = ListenServer(recogniser_of(**which), Access(token, host, origins), chunks=chunks, ends=ends, limits=limits)
    server.warm_up()
    if host not in LOOPBACK:
        log.say("open", f"{host}: others can connect, and without TLS can listen in", {}, level=logging.WARNING)
    asyncio.run(_serve(server, listening, host, "" if token_file else f"#token={token}"))
    log.say_last(server.counts.text(), "listened", server.counts.facts())


def _token_of(path: str) -> str:
    from megahour.core.surroundings import explaining

    with explaining(path):
        token = Path(path).read_text("utf-8").strip()
    if len(token) < LEAST_TOKEN or not set(token) <= set(_TOKEN_CHARACTERS):
        what = f"the token has {len(token)} characters; it needs {LEAST_TOKEN} or more, only letters, digits, - and _"
        raise ConfigError(what, where=path, remedy="take one from `openssl rand -hex 24`")
    return token


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. Raises ConfigError: that is impossible."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:  # the latter of a name with an empty or too long part
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            what, remedy = f"port {port} of {host} is in use", "choose another --port, or 0 for a free one"
        else:
            what, remedy = f"cannot listen on {host}, port {port}: {error}", "set --host to an address of this machine"
        raise ConfigError(what, where="listen", remedy=remedy) from None


async def _serve(server: ListenServer, listening: socket.socket, host: str, fragment: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    from aiohttp import web

    from megahour.listen.server import LOGGER

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(server.app(), access_log=None, logger=LOGGER, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"Listening on http://{shown}:{listening.getsockname()[1]}/{fragment}")
        log.say_next([("recognise a microphone or a file", "open this address in a browser"), ("stop", "Ctrl-C")])
        assert runner.server is not None
        async with server.watching(runner.server):
            await stopped.wait()
    finally:
        await runner.cleanup()
