"""The scratch directory of one job: whose it is, which phases are done, how large it became."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from megahour.core.errors import StageError


class Scratch:
    """A directory, and the largest size in bytes that its files were seen to have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.most_bytes = 0

    def claim(self, print_of_job: str) -> None:
        """Keep what an earlier run of the same job left, remove what another job did.

        Raises StageError: the directory has other files.
        """
        mark = self.folder / ".megahour-lm"
        if self.folder.exists() and any(self.folder.iterdir()):
            if not mark.exists():
                raise StageError(
                    "the scratch directory is not empty, and not of an earlier run", where=str(self.folder),
                    remedy="give an empty or a new directory",
                )  # fmt: skip
            if mark.read_text() != print_of_job:
                shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(print_of_job)

    def phase(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of a phase unless it has been done."""
        mark = self.folder / f"{name}.done"
        if not mark.exists():
            work()
            mark.touch()

    def size(self) -> int:
        """Bytes of the files now."""
        held = sum(file.stat().st_size for file in self.folder.iterdir())
        self.most_bytes = max(self.most_bytes, held)
        return held
