"""Metrics of the disks that a command writes to, and of the machine's GPUs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from megahour.metrics.background import Fetched
from megahour.metrics.names import MetricSample

QUERY = ("index", "name", "utilization.gpu", "memory.used", "memory.total")
TIMEOUT_S = 10.0
MIB = 2**20


def disks(folders: Iterable[str]) -> Iterator[MetricSample]:
    """Free space and size of each folder's disk, once per mount point; folders need not exist yet."""
    for path in dict.fromkeys(map(_mount, folders)):
        room = shutil.disk_usage(path)
        yield MetricSample("megahour_disk_free_bytes", room.free, {"path": str(path)})
        yield MetricSample("megahour_disk_size_bytes", room.total, {"path": str(path)})


def _mount(folder: str) -> Path:
    """Mount point of a folder's disk; the folder need not exist."""
    path = Path(folder).resolve()
    while not path.is_mount():
        path = path.parent
    return path


class Gpus:
    """GPU metrics from `nvidia-smi`; none if the program is not installed."""

    def __init__(self) -> None:
        self._program = shutil.which("nvidia-smi")
        self._rows = Fetched(self._ask)

    def __call__(self) -> Iterator[MetricSample]:
        if self._program is None:
            return
        self._rows.look()
        for index, name, busy, used, memory in self._rows.value or ():
            labels = {"device": f"cuda:{index}", "name": name}
            for metric, text, unit in (
                ("megahour_device_utilisation_ratio", busy, 0.01),
                ("megahour_device_memory_used_bytes", used, MIB),
                ("megahour_device_memory_bytes", memory, MIB),
            ):
                if text.isdecimal():  # else "[N/A]", as for a MIG slice of a GPU
                    yield MetricSample(metric, int(text) * unit, labels)

    def close(self) -> None:
        self._rows.close()

    def _ask(self) -> list[list[str]]:
        assert self._program is not None  # called only if the program exists
        words = [self._program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        return [row for row in rows if len(row) == len(QUERY)]
