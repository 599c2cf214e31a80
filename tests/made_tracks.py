"""Sound tracks that the tests write with FFmpeg, and a web server that serves files by range and counts its bytes."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
from made_media import Int16


def track(
    samples: Int16,
    container: str,
    codec: str,
    rate_hz: int = 48_000,
    *,
    options: dict[str, str] | None = None,
    jump_s: int = 0,
    late_s: int = 0,
) -> bytes:
    """int16 [T] as the only track of a container; `container` is FFmpeg's name of the muxer.

    With `jump_s`, the timestamps of the second half are ahead by that many seconds, with `late_s` all.
    """
    target = io.BytesIO()
    with av.open(target, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate_hz, layout="mono")
        _fill(file, stream, samples, rate_hz, jump_s, late_s)
    return target.getvalue()


def film(samples: Int16 | None, rate_hz: int = 48_000, late_s: int = 0) -> bytes:
    """An MP4 with pictures, and with a sound track if samples are given, which may start late."""
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as file:
        video = file.add_stream("mpeg4", rate=10)
        video.width = video.height = 32
        sound = None if samples is None else file.add_stream("aac", rate=rate_hz, layout="mono")
        for _ in range(20):
            file.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        file.mux(video.encode(None))
        if sound is not None and samples is not None:
            _fill(file, sound, samples, rate_hz, late_s=late_s)
    return target.getvalue()


def _fill(file: Any, stream: Any, samples: Int16, rate_hz: int, jump_s: int = 0, late_s: int = 0) -> None:
    resample = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=rate_hz)
    packets = []
    for start in range(0, len(samples), 1 << 20):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + (1 << 20)], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate_hz, start
        for part in resample.resample(frame):
            packets += stream.encode(part)
    for part in resample.resample(None):
        packets += stream.encode(part)
    packets += stream.encode(None)
    for number, packet in enumerate(packets):
        ahead_s = late_s + (jump_s if number > len(packets) // 2 else 0)
        packet.pts += int(ahead_s / packet.time_base)
        packet.dts += int(ahead_s / packet.time_base)
        file.mux(packet)


class FileServer(ThreadingHTTPServer):
    """Serves a folder on loopback. `sent` counts bytes by path; paths in `flaky` fail with 503 that many times."""

    daemon_threads = True

    def __init__(self, root: Path, *, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.ranges = root, ranges
        self.sent: dict[str, int] = {}
        self.flaky: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Logs nothing, to keep the tests' output clean."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.root / self.path.lstrip("/")
        if self.server.flaky.get(self.path, 0) > 0:
            self.server.flaky[self.path] -= 1
            self.send_error(503)
            return
        if not path.is_file():
            self.send_error(404)
            return
        size, asked = path.stat().st_size, self.headers.get("Range", "")
        start, stop = 0, size
        if asked and self.server.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1 if last else size)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if with_body:
            # Counted before: the client may have the last byte before this thread goes on.
            self.server.sent[self.path] = self.server.sent.get(self.path, 0) + stop - start
            with path.open("rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))


@contextmanager
def served(root: Path, *, ranges: bool = True) -> Iterator[FileServer]:
    """A running `FileServer`."""
    with FileServer(root, ranges=ranges) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
