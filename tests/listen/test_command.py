"""`megahour listen` as users run it: its output, its end, and what it refuses before a model is loaded."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner
from command_line import command, hears_ctrl_c
from exported import model, voice

from megahour.cli.main import app
from megahour.core.errors import ConfigError


def refusal(*words: str) -> ConfigError:
    """The error of a command that ends before it looks at its model."""
    done = CliRunner().invoke(app, ["listen", "--model", "none", *words])
    assert isinstance(done.exception, ConfigError), done.output
    return done.exception


def test_a_port_that_is_taken_and_a_host_that_is_not_here_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refusal("--port", str(port)).message == f"port {port} of 127.0.0.1 is in use"
    assert "cannot listen on a..b" in refusal("--host", "a..b", "--port", "0").message
    assert "cannot listen on 192.0.2.1" in refusal("--host", "192.0.2.1", "--port", "0").message


@pytest.mark.parametrize("token", ["short", "a token with spaces in it", ""])
def test_a_token_must_be_long_and_fit_a_header(token: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token)
    assert "the token has" in refusal("--port", "0", "--token-file", str(tmp_path / "token")).message


def send_nonsense(port: int, token: str) -> None:
    """Invalid requests: no HTTP, too long a line, a body with another encoding, an aborted stream."""
    good = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    socketed = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    packed = "Content-Encoding: deflate\r\nContent-Length: 9\r\n\r\nnot zlib!"
    for sent, answer in [
        ("\0" * 100, "400 Bad Request"),
        (f"GET /about HTTP/1.1\r\n{good}X: {'a' * 10_000}\r\n\r\n", "400 Bad Request"),
        (f"POST /transcribe HTTP/1.1\r\n{good}{packed}", "400 Bad Request"),
        (f"POST /transcribe HTTP/1.1\r\n{good}Content-Length: {1 << 40}\r\n\r\n", "413 "),
        (f"GET /stream HTTP/1.1\r\n{good}{socketed}{key}\r\n\x82\xfe", ""),
    ]:
        with socket.create_connection(("127.0.0.1", port), timeout=240) as client:
            client.sendall(sent.encode("latin-1"))
            assert answer in (client.recv(100).decode() if answer else "")


def test_it_shows_its_address_serves_and_ends_with_a_summary(tmp_path: Path) -> None:
    given = ["listen", "--model", model(tmp_path / "model", "lstm").url, "--port", "0", "--chunk-ms", "320"]
    run = subprocess.Popen(
        command(*given), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c
    )
    assert run.stdout is not None
    found = re.fullmatch(
        r"Listening on (http://127\.0\.0\.1:(?P<port>\d+)/)#token=(?P<token>[\w-]{32})\n", run.stdout.readline()
    )
    assert found, run.communicate()

    send_nonsense(int(found["port"]), found["token"])

    async def talk() -> None:
        bearer = {"Authorization": f"Bearer {found['token']}"}
        async with ClientSession(headers=bearer) as client, client.ws_connect(f"{found[1]}stream") as socket:
            await socket.send_json({"rate_hz": 8000})
            assert (await socket.receive_json())["latency_ms"] == 320 + 3 * 10 + 15
            await socket.send_bytes(voice(6.0, 1).tobytes())
            assert (await socket.receive_json())["type"] == "partial"
            run.send_signal(signal.SIGINT)
            async for message in socket:
                last = message.json()
            assert last == {"type": "error", "error": "the server was stopped"}

    asyncio.run(talk())
    printed, complaints = run.communicate(timeout=240)
    assert run.returncode == 0, complaints
    last = printed.splitlines()[-1]
    assert re.fullmatch(r"Streams: [12], files: 0, 0\.\d minutes of audio, refused: 2", last)
    assert complaints == "", complaints[-3000:]
