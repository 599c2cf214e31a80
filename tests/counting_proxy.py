"""A proxy in front of an S3 server that counts requests and bytes, which a provider would bill, and can add delays."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

BLOCK = 256 << 10
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Counts:
    """Requests by method, and bytes of the bodies sent to clients, together and by the object's path."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, method: str, path: str, size: int) -> None:
        with self.lock:
            self.requests[method] += 1
            self.bytes[path] += size

    def fetched(self, part: str = "") -> int:
        """Bytes of the objects whose path holds `part`."""
        return sum(size for path, size in self.bytes.items() if part in path)


@contextmanager
def counted_s3(delay_s: float = 0.0) -> Iterator[Counts]:
    """Counts what s3fs fetches through the proxy inside the `with` block, in this process and its children."""
    import s3fs

    server = os.environ["AWS_ENDPOINT_URL"]
    try:
        with counting_proxy(server, delay_s=delay_s) as (url, counts):
            os.environ["AWS_ENDPOINT_URL"] = url
            s3fs.S3FileSystem.clear_instance_cache()
            yield counts
    finally:
        os.environ["AWS_ENDPOINT_URL"] = server
        s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def counting_proxy(server: str, *, delay_s: float = 0.0) -> Iterator[tuple[str, Counts]]:
    """URL of a proxy before `server` (a URL) that waits `delay_s` before each request, and its counts."""
    counts = Counts()
    there = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        upstream: http.client.HTTPConnection | None = None

        def forward(self) -> None:
            time.sleep(delay_s)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.upstream is None:
                self.upstream = http.client.HTTPConnection(there)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            self.upstream.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            answer = self.upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            sends = self.command != "HEAD"
            text = b"" if answer.length is not None or not sends else answer.read()
            length = answer.headers.get("Content-Length") or str(len(text))
            self.send_header("Content-Length", length)
            counts.add(self.command, urlsplit(self.path).path, int(length) if sends else 0)  # before the client goes on
            self.end_headers()
            self.wfile.write(text)
            while sends and (block := answer.read(BLOCK)):
                self.wfile.write(block)
            answer.read()

        def log_message(self, *message: object) -> None:
            pass

    for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.forward)
    server_here = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server_here.daemon_threads = True
    thread = threading.Thread(target=server_here.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server_here.server_port}", counts
    finally:
        server_here.shutdown()
        server_here.server_close()
