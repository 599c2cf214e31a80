"""ShardWriter: the only way a task writes, so that every shard is committed whole, counted and checksummed."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from megahour.core.compile_time import spent
from megahour.core.locks import check
from megahour.core.receipts import Counts, FileInfo, Receipt
from megahour.core.records import canonical_json
from megahour.core.store import Artifact
from megahour.core.transfer import is_local, publish, publish_text
from megahour.core.unicode import mended, shown


class ShardWriter:
    """Collects one shard's files and counts; `commit()` publishes them. Leaving the context removes scratch files."""

    def __init__(self, artifact: Artifact, shard: int, fingerprint: str, *, owner: str = "") -> None:
        """owner: token of the run that holds the artifact (`locks.alone`), which must still hold it at commit."""
        self.artifact, self.shard, self.fingerprint, self._owner = artifact, shard, fingerprint, owner
        self.counts = Counts()
        self.stats: dict[str, Any] = {}
        self.tags: dict[str, str] = {}
        self._bad: list[dict[str, str]] = []
        self._files: dict[str, Path] = {}
        self._digests: dict[str, str] = {}
        self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._compiled_before = spent()
        if is_local(artifact.fs):
            self._folder = Path(artifact.path(f"tmp/{shard:05d}-{uuid.uuid4().hex}"))
            self._folder.mkdir(parents=True)
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="megahour-shard-"))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, FileNotFoundError):
            self._check_owner(fresh=True)  # a run that took over removes the scratch files of this one

    def _check_owner(self, *, fresh: bool = False) -> None:
        if self._owner:
            check(self.artifact.fs, self.artifact.root, self._owner, where=self.artifact.url, fresh=fresh)

    def path(self, suffix: str) -> Path:
        """A local scratch path that becomes the shard's file *suffix* at commit, for libraries that want a path."""
        if not suffix.startswith("."):
            raise ValueError(f"a suffix starts with a dot, got {suffix!r}")
        return self._files.setdefault(suffix, self._folder / f"shard{suffix}")

    def hashed(self, suffix: str, sha256: str) -> None:
        """State the SHA-256 of a file that was written to `path`, which `commit` then does not read again."""
        self._digests[suffix] = sha256

    @contextmanager
    def open(self, suffix: str) -> Iterator[BinaryIO]:
        with self.path(suffix).open("wb") as file:
            yield file

    def table(self, table: pa.Table, suffix: str = ".parquet") -> None:
        """Write a table: Parquet (zstd), or Arrow IPC for suffixes that end in ``.arrow``."""
        if suffix.endswith(".arrow"):
            with self.open(suffix) as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        else:
            pa.parquet.write_table(table, self.path(suffix), compression="zstd")

    def json(self, value: Any, suffix: str = ".json") -> None:
        self.path(suffix).write_text(json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def text(self, text: str, suffix: str) -> None:
        self.path(suffix).write_text(text, "utf-8")

    def came_in(self, n: int = 1) -> None:
        self.counts.came_in += n

    def kept(self, n: int = 1) -> None:
        self.counts.kept += n

    def kept_all(self, n: int = 1) -> None:
        """Count `n` records that came in and were all kept."""
        self.came_in(n)
        self.kept(n)

    def drop(self, reason: str, n: int = 1) -> None:
        """A good record left out by policy."""
        if n:
            self.counts.dropped[reason] = self.counts.dropped.get(reason, 0) + n

    def quarantine(self, record: object, reason: str, detail: str = "", source: str = "") -> None:
        """A bad record: counted under its reason and written to `quarantine/`."""
        self.drop(reason)
        self.counts.bad += 1
        texts = {"id": shown(str(record)), "detail": shown(detail), "source": shown(source)}
        self._bad.append({"reason": reason, **texts})

    def stat(self, name: str, value: float) -> None:
        """Add a number to the shard's statistics."""
        self.stats[name] = self.stats.get(name, 0) + value

    def commit(self) -> Receipt:
        """Publish files, quarantine and timings, then the receipt.

        Raises StoreError: another run has taken the artifact over.
        """
        files = {suffix: _info(path, self._digests.get(suffix)) for suffix, path in sorted(self._files.items())}
        receipt = Receipt(self.shard, self.fingerprint, self.counts, files, dict(self.stats), dict(self.tags))
        text = receipt.to_json()  # fails here, before anything is published, when a stat is not JSON
        receipt_text = mended(text)
        receipt = receipt if receipt_text == text else Receipt.from_json(receipt_text)
        fs, artifact = self.artifact.fs, self.artifact
        self._check_owner()
        for suffix in files:
            publish(fs, self._files[suffix], artifact.shard_path(self.shard, suffix))
        if self._bad:
            lines = "".join(canonical_json(bad) + "\n" for bad in self._bad)
            publish_text(fs, artifact.path(f"quarantine/{self.shard:05d}.jsonl"), lines)
        timing = {
            "seconds": round(time.monotonic() - self._started, 3),
            "cpu_seconds": round(time.process_time() - self._cpu_started, 3),
            "peak_bytes": peak_bytes(),
            "host": socket.gethostname(),
        }
        compiling = spent().since(self._compiled_before)
        if compiling.seconds:
            timing |= {f"compile_{key}": round(value, 3) for key, value in compiling._asdict().items()}
        publish_text(fs, artifact.path(f"timings/{self.shard:05d}.json"), canonical_json(timing))
        publish_text(fs, artifact.path(f"receipts/{self.shard:05d}.json"), receipt_text)
        return receipt


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _info(path: Path, digest: str | None) -> FileInfo:
    if digest is None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileInfo(bytes=path.stat().st_size, sha256=digest)
