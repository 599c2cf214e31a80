"""The server of `megahour listen`: its protocol, limits and access control, over real local sockets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError, web
from aiohttp.test_utils import TestClient, TestServer
from exported import model, voice

from megahour.listen import server as server_module
from megahour.listen.access import Access
from megahour.listen.limits import Limits
from megahour.listen.server import FILES, ListenServer
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream, transcribe
from megahour.transcribe.streaming import ChunkLengths

TOKEN = "a-token-that-nobody-knows"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CHUNKS = ChunkLengths(320)
TWO = Limits(sessions=2)
Talk = Callable[[ListenServer, TestClient[Any, Any]], Awaitable[None]]


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Recogniser:
    folder = tmp_path_factory.mktemp("model")
    return Recogniser(RecogniserParts(model(folder / "conformer", "conformer").url, model_name="small"))


def served(recogniser: Recogniser, talk: Talk, limits: Limits = TWO, **access: Any) -> ListenServer:
    """Runs `talk` with a server and a client that knows the token."""

    async def run() -> ListenServer:
        server = ListenServer(recogniser, Access(TOKEN, "127.0.0.1", **access), chunks=CHUNKS, limits=limits)
        async with TestClient(TestServer(server.app()), headers=BEARER) as client:
            own = client.server.runner.server  # type: ignore[union-attr]
            assert isinstance(own, web.Server)
            async with server.watching(own):
                await talk(server, client)
        return server

    return asyncio.run(run())


async def messages(socket: Any) -> list[dict[str, Any]]:
    """The server's messages until it closes."""
    return [json.loads(message.data) async for message in socket if message.type is WSMsgType.TEXT]


async def send(socket: Any, samples: np.ndarray, rate_hz: int = 8000, block: int = 3001) -> None:
    """The protocol; blocks are of odd lengths, in bytes too."""
    await socket.send_json({"rate_hz": rate_hz})
    data = samples.tobytes()
    for first in range(0, len(data), block):
        await socket.send_bytes(data[first : first + block])
    await socket.send_json({"end": True})


def test_each_side_of_a_call_is_transcribed(tmp_path: Path) -> None:
    """The model's folder is not told to clients."""
    one, other = voice(1.5, 1), voice(1.5, 2)
    file = io.BytesIO()
    soundfile.write(file, np.stack([one, other], axis=1), 8000, format="WAV")
    recogniser = Recogniser(RecogniserParts(url := model(tmp_path / "trained", "conformer").url, model_name=url))
    expected = transcribe(other, recogniser, rate_hz=8000).text

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        answer = await client.post("/transcribe?channel=2", data=file.getvalue())
        made = await answer.json()
        assert (made["text"], made["channel"], made["model"]) == (expected, 2, "trained")
        answer = await client.post("/transcribe?channel=each", data=file.getvalue())
        words = (await answer.json())["words"]
        assert " ".join(word["word"] for word in words if word["channel"] == 2) == expected

    served(recogniser, talk, limits=Limits())


async def freed(server: ListenServer) -> None:
    async with asyncio.timeout(240):
        while server.busy:
            await asyncio.sleep(0.02)


def test_a_stream_has_the_words_of_the_file_heard_in_the_same_chunks(recogniser: Recogniser) -> None:
    samples = np.concatenate([voice(2.0, 1), np.zeros(8000, np.int16), voice(1.5, 2)])
    expected = transcribe(samples, recogniser, rate_hz=8000, chunks=CHUNKS)

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/stream") as socket:
            sending = asyncio.create_task(send(socket, samples))
            ready, *news, end = await messages(socket)
            await sending
        assert ready == {"type": "ready", "model": "small", "rate_hz": 8000, "latency_ms": 335}
        finals = [new for new in news if new["type"] == "final"]
        assert " ".join(new["text"] for new in finals) == expected.text
        words = [(word.text, word.start_s, word.end_s) for word in expected.words]
        assert [(w["word"], w["start"], w["end"]) for new in finals for w in new["words"]] == words
        assert any(new["type"] == "partial" for new in news)
        assert end["type"] == "end"
        assert end["seconds"] == 4.5
        assert end["latency_ms"] == 335
        assert 0 < end["delay_ms"] <= end["delay_p95_ms"]
        assert server.busy == 0

    server = served(recogniser, talk)
    assert server.counts.text() == "Streams: 1, files: 0, 0.1 minutes of audio, refused: 0"


def test_warming_up_searches_a_piece_of_speech(recogniser: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first client waits until the search is compiled; steady noise alone is a pause."""
    made = []
    monkeypatch.setattr(
        server_module, "stream", lambda *a, **k: (made.append(each) or each for each in stream(*a, **k))
    )
    ListenServer(recogniser, Access(TOKEN, "127.0.0.1"), chunks=CHUNKS).warm_up()
    assert {update.final for update in made} == {False, True}


def test_a_file_is_transcribed_in_any_format(recogniser: Recogniser) -> None:
    file = io.BytesIO()
    soundfile.write(file, voice(2.0, 1), 8000, format="FLAC")
    expected = transcribe(voice(2.0, 1), recogniser, rate_hz=8000)

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        answer = await client.post("/transcribe?name=talk.flac", data=file.getvalue())
        made = await answer.json()
        assert (made["text"], made["file"], made["seconds"]) == (expected.text, "talk.flac", 2.0)
        answer = await client.post("/transcribe?format=srt", data=file.getvalue())
        assert (await answer.text()).startswith("1\n00:00:00,")
        for query, data, status, why in [
            ("", b"RIFF no audio", 422, ": "),
            ("?format=doc", b"", 400, "format 'doc': use one of txt, srt, vtt, json, ctm"),
            ("?fromat=srt", b"", 400, "unknown parameter 'fromat' – did you mean \"format\"?"),
            ("?channel=-1", b"", 400, "channel '-1': give its number"),
            ("?channel=2", file.getvalue(), 422, "no-such-channel: channel 2 of 1"),
            ("", bytes(40_000), 413, "body size 39999 exceeded"),
        ]:
            answer = await client.post(f"/transcribe{query}", data=data)
            assert answer.status == status
            assert why in await answer.text()
        answer = await client.post("/transcribe", data={"file": io.BytesIO(file.getvalue())})
        assert answer.status == 415
        assert "send the file itself" in await answer.text()
        assert server.busy == 0

    assert served(recogniser, talk, Limits(file_bytes=39_999)).counts.files == 2


def test_a_file_that_does_not_come_gives_its_place_up(recogniser: Recogniser, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        head = f"POST /transcribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n"
        for leaves in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"{head}\r\nRIFF".encode())
            await writer.drain()
            while not server.busy:
                await asyncio.sleep(0.01)
            if leaves:
                writer.transport.abort()
            else:
                assert b" 408 " in await reader.readline()
                writer.close()
            await freed(server)

    assert served(recogniser, talk, Limits(idle_s=0.4)).counts.files == 0
    assert not caplog.records, "nobody at the terminal is told of what a client does"


async def dripped(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Repeats `data` forever."""
    while True:
        writer.write(data)
        await asyncio.sleep(0.03)


def test_a_head_that_does_not_come_is_waited_for_no_longer(recogniser: Recogniser) -> None:
    """Slow headers do not hold a connection, before or after an answer; a running stream continues."""

    async def held(port: int, before: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before + b"GET /about HTTP/1.1\r\n")
        dripping = asyncio.create_task(dripped(writer, b"X-Slow: 1\r\n"))
        answer = b""
        async with asyncio.timeout(240):
            with contextlib.suppress(ConnectionResetError):  # there may be drops that it did not read
                while data := await reader.read(1000):
                    answer += data
        dripping.cancel()
        return answer

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        whole = f"GET /about HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        async with client.ws_connect("/stream") as socket:
            await socket.send_json({"rate_hz": 8000})
            fresh, used = await asyncio.gather(held(client.port, b""), held(client.port, whole))
            assert fresh == b""
            assert used.count(b"HTTP/1.1 200 OK") == 1
            await socket.send_bytes(voice(1.0, 1).tobytes())
            await socket.send_json({"end": True})
            assert (await messages(socket))[-1]["type"] == "end"

    served(recogniser, talk, Limits(head_s=0.4))


def test_a_file_that_comes_drop_by_drop_gives_its_place_up(recogniser: Recogniser) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        head = (
            f"POST /transcribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9999\r\n"
        )
        writer.write(f"{head}\r\n".encode())
        dripping = asyncio.create_task(dripped(writer, b"RIFF"))
        async with asyncio.timeout(240):
            assert b" 408 " in await reader.readline()
            assert b"less than 4,000 bytes a second" in await reader.readuntil(b"second")
        dripping.cancel()
        writer.close()
        await freed(server)

    assert served(recogniser, talk, Limits(idle_s=1.0)).counts.files == 0


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(file_s=60.0), "too-long: more than 60 s of audio"),
        (Limits(work_s=0.0), "too-slow: not finished within 0 s"),
    ],
)
def test_hours_of_nothing_in_a_small_file_keep_no_one_busy(recogniser: Recogniser, limits: Limits, why: str) -> None:
    """Half an hour of zeros is 60 kB of FLAC; decoding stops at the first block beyond a limit."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000 * 1800, np.int16), 8000, format="FLAC")
    assert len(file.getvalue()) < 100_000

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        answer = await client.post("/transcribe", data=file.getvalue())
        assert answer.status == 422
        assert why in await answer.text()
        assert server.busy == 0

    assert served(recogniser, talk, limits).counts.files == 0


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_file_that_nobody_waits_for_is_left(
    recogniser: Recogniser, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour of audio would occupy its place, and delay the server's end, for a minute."""
    heard, features = threading.Event(), Recogniser.features
    monkeypatch.setattr(Recogniser, "features", lambda *given: (heard.set(), features(*given))[1])
    file = io.BytesIO()
    soundfile.write(file, np.tile(voice(60.0, 1), 30), 8000, format="WAV")

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        asking = asyncio.create_task(client.post("/transcribe", data=file.getvalue()))
        heard.clear()  # before it, the server has warmed up
        for _ in range(3000):
            if heard.is_set():
                break
            await asyncio.sleep(0.01)
        if who == "client":
            asking.cancel()
            await freed(server)
        else:
            await client.server.close()
            answer = await asking
            assert (answer.status, await answer.text()) == (503, "the server was stopped\n")

    assert served(recogniser, talk).counts.files == 0


def test_who_is_let_in(recogniser: Recogniser, caplog: pytest.LogCaptureFixture) -> None:
    """Anyone who uses the server's name gets the page; all else needs the token, and no page of another site."""

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        place = f"127.0.0.1:{client.port}"

        async def status(path: str, headers: dict[str, str]) -> int:
            async with ClientSession() as other, other.get(f"http://{place}{path}", headers=headers) as answer:
                assert "default-src 'none'; script-src 'self'" in answer.headers.get("Content-Security-Policy", "")
                return answer.status

        for name in FILES:
            assert await status(f"/{name}", {}) == 200
        for path in ("/about", "/stream", "/transcribe", "/elsewhere"):
            assert await status(path, {}) == 401
            for wrong in (f"{TOKEN}x", TOKEN[:-1], "\udcff", ""):
                assert await status(path, {"Authorization": f"Bearer {wrong}"}) == 401
            assert await status(path, {"Sec-WebSocket-Protocol": "megahour.v1, token.nonsense"}) == 401
        assert await status("/about", BEARER) == 200
        assert await status("/about", {"Authorization": f"bearer {TOKEN}"}) == 200
        assert await status("/about", {"Sec-WebSocket-Protocol": f"megahour.v1, token.{TOKEN}"}) == 200
        own = (f"http://{place}", "https://speech.example")
        for origin in own:
            assert await status("/about", {**BEARER, "Origin": origin}) == 200
        for origin in ("http://evil.example", "null", "https://speech.example.evil", f"https://{place}"):
            assert await status("/about", {**BEARER, "Origin": origin}) == 403
        for host in (f"localhost:{client.port}", "speech.example"):
            assert await status("/about", {**BEARER, "Host": host}) == 200
        rebound = f"evil.example:{client.port}"
        assert await status("/", {"Host": rebound}) == 403
        assert await status("/about", {**BEARER, "Host": rebound, "Origin": f"http://{rebound}"}) == 403
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect("/stream", headers={**BEARER, "Origin": "http://evil.example"})
        assert refused.value.status == 403
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect("/stream", protocols=[f"token.{TOKEN}"])
        assert refused.value.status == 400
        assert TOKEN not in caplog.text, "aiohttp logs the protocols of which it knows none"

    assert served(recogniser, talk, origins=["https://speech.example"]).counts.refused >= 14


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ({"rate_hz": 100}, "samples at 100 Hz"),
        ({"rate_hz": 16000.5}, "the first message says no sampling rate"),
        ({"rate_hz": 48000, "channels": 2}, "the first message has 'channels'"),  # of two, all would be noise
        ({}, "the first message says no sampling rate"),
        ([], "a message is not a JSON object"),
        (b"\0\0", "the first message says no sampling rate"),
    ],
)
def test_a_wrong_beginning_is_named(recogniser: Recogniser, first: Any, error: str) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/stream") as socket:
            await (socket.send_bytes(first) if isinstance(first, bytes) else socket.send_json(first))
            (message,) = await messages(socket)
            assert message["type"] == "error"
            assert message["error"] == error
            assert message["remedy"]
            assert socket.close_code == 1008
        assert server.busy == 0

    served(recogniser, talk)


def test_a_wave_in_a_stream_of_samples_is_named(recogniser: Recogniser) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/stream") as socket:
            await socket.send_json({"rate_hz": 8000})
            await socket.send_bytes(b"RIFF" + bytes(4000))
            *_, message = await messages(socket)
            assert message["error"] == "an audio file (RIFF …) in place of raw 16-bit samples"
            assert socket.close_code == 1008

    served(recogniser, talk)


def test_a_client_that_leaves_as_its_stream_begins_is_forgotten(recogniser: Recogniser) -> None:
    """The server held the socket and the queue of each of them for as long as it ran."""

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        for _ in range(20):
            async with ClientSession() as other:
                socket = await other.ws_connect(client.make_url("/stream"), headers=BEARER)
                await socket.send_json({"rate_hz": 8000})
                assert socket._response.connection is not None
                assert socket._response.connection.transport is not None
                socket._response.connection.transport.abort()
        await freed(server)
        assert server.counts.streams == 20
        assert not server._live

    served(recogniser, talk, Limits(sessions=20))


def test_sessions_are_limited_and_free_when_a_client_goes_away(recogniser: Recogniser) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        one, two = await client.ws_connect("/stream"), await client.ws_connect("/stream")
        for socket in (one, two):
            await socket.send_json({"rate_hz": 8000})
            assert (await socket.receive_json())["type"] == "ready"
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect("/stream")
        assert refused.value.status == 503
        assert (await client.post("/transcribe", data=b"")).status == 503
        for _ in range(100):  # more than waits for the model
            await one.send_bytes(bytes(16_000))
        assert one._response.connection is not None
        one._response.connection.transport.abort()  # no good-bye
        await two.close()
        await freed(server)
        async with client.ws_connect("/stream") as socket:
            await send(socket, voice(1.0, 3))
            assert (await messages(socket))[-1]["type"] == "end"

    served(recogniser, talk)


def test_a_message_that_is_too_large_ends_the_stream(recogniser: Recogniser) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/stream") as socket:
            await socket.send_json({"rate_hz": 8000})
            await socket.send_bytes(bytes(1001))
            await messages(socket)
            assert socket.close_code == 1009
        await freed(server)

    served(recogniser, talk, Limits(message_bytes=1000))


def test_a_stream_without_audio_or_words_ends(recogniser: Recogniser, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/stream") as socket:
            await socket.send_json({"rate_hz": 8000})
            assert (await messages(socket))[-1]["error"] == "nothing arrived for 0.4 s"
        async with client.ws_connect("/stream") as socket:
            await send(socket, np.zeros(16_000, np.int16))
            assert (await messages(socket))[-1]["error"] == "no words in 0.4 s of audio"
        assert server.busy == 0

    assert served(recogniser, talk, Limits(idle_s=0.4)).counts.refused == 2
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_streams_get_a_message_when_the_server_ends(recogniser: Recogniser) -> None:
    heard: list[dict[str, Any]] = []

    async def talk(server: ListenServer, client: TestClient[Any, Any]) -> None:
        socket = await client.ws_connect("/stream")
        await socket.send_json({"rate_hz": 8000})
        await socket.receive_json()
        reading = asyncio.create_task(messages(socket))
        await asyncio.sleep(0)
        await client.server.close()
        heard.extend(await reading)
        assert socket.close_code == 1001

    served(recogniser, talk)
    assert heard[-1] == {"type": "error", "error": "the server was stopped"}


def test_the_page_asks_nobody_else(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "megahour" / "listen" / "page"
    assert {path.name for path in page.iterdir()} == set(FILES.values())
    for path in page.iterdir():
        assert "http://" not in path.read_text("utf-8")
        assert "https://" not in path.read_text("utf-8")
