"""Model services in threads of the test's process; their models run in processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from megahour.serve.host import serve_registry


@contextmanager
def services_at(*urls: str) -> Iterator[None]:
    """A service for each registry folder or address."""
    stop, options = threading.Event(), {"devices": ["cpu"], "host": "127.0.0.1", "trusted": ("accelerator_models:",)}
    threads = [threading.Thread(target=serve_registry, args=(url, stop), kwargs=options) for url in urls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
