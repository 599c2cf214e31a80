"""Trainings with `faults: continue` by the coordinator itself, with forked workers that a test can disturb."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gloo import CALLS_FIRST, LASTS_UNTIL, ForkedWorker

from megahour.core.store import Artifact
from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.workers.coordinator import Coordinator
from megahour.train.workers.launch import SPEC

SMALL: dict[str, Any] = {
    **{"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 6},
    **{"workers": 4, "threads": 1, "whole_epochs": 0, "tensorboard": False, "timeout_s": 60.0, "checkpoint_s": 0.5},
}


class Forked(Coordinator):
    """A coordinator of forked workers; `act` is called with it in a thread, and has returned when the training ends.

    first: MODULE:FUNCTION, which each worker calls before it trains.
    """

    error: BaseException | None

    def __init__(
        self, folder: Path, inputs: dict[str, Artifact], act: Callable[[Forked], None], first: str = "", **values: Any
    ) -> None:
        self.folder, self.first = folder / "work", first
        self.folder.mkdir(parents=True)
        p, spec = TrainParams(**{**SMALL, "faults": "continue", **values}), self.folder / SPEC
        urls = {role: artifact.url for role, artifact in inputs.items()}
        spec.write_text(
            json.dumps({"params": p.model_dump(mode="json"), "inputs": urls, "work": str(self.folder), "durable": ""})
        )
        super().__init__(p, self.folder, spec)
        self.workers: list[ForkedWorker] = []
        self.lost: list[int] = []
        self.holds_back = threading.Event()
        self.acted, self.error = self.folder / "acted", None
        acting = threading.Thread(target=self._act, args=(act,), daemon=True)
        acting.start()
        self.run()
        acting.join()
        if self.error is not None:
            raise self.error
        self.result = result.read(self.folder)

    def _act(self, act: Callable[[Forked], None]) -> None:
        try:
            act(self)
        except BaseException as error:
            self.error = error
        finally:
            self.acted.touch()

    def _spawn(self, env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
        env = {**env, LASTS_UNTIL: str(self.acted), CALLS_FIRST: self.first}
        self.workers.append(ForkedWorker(str(self.folder / SPEC), env, folder / "stderr.log"))
        return cast("subprocess.Popen[bytes]", self.workers[-1])

    def _start_due(self) -> None:
        if not self.holds_back.is_set():
            super()._start_due()

    def logs(self) -> list[str]:
        """What each worker has written, in the order of their starts."""
        return [log.read_text() for log in sorted(self.folder.glob("workers/*/*/stderr.log"))]

    def living(self) -> list[int]:
        return [n for n in range(len(self.workers)) if n not in self.lost]

    def together(self, workers: int = 4, after: str = "") -> str:
        """The group of all living workers, if it has this number of them and is not `after`.

        One that breaks or fails to form has another number: on a busy machine there may be several.
        """
        logs = [log for n, log in enumerate(self.logs()) if n not in self.lost]
        newest = {(re.findall(r"group (\d+): rank \d of (\d)", log) or [("", "")])[-1] for log in logs}
        group, size = newest.pop() if len(newest) == 1 else ("", "")
        return group if size == str(workers) and len(logs) == workers and group != after else ""

    def going_on(self, workers: int, after: str) -> str:
        """The newest group, if this number of living workers are in it and it is newer than `after`; others wait."""
        groups = [re.findall(r"group (\d+): rank \d of (\d)", log)[-1:] for log in self.logs()]
        newest = max((group for group in groups if group), key=lambda group: int(group[0][0]), default=[("-1", "")])
        members = [n for n, group in enumerate(groups) if group == newest and n not in self.lost]
        number, size = newest[0]
        return number if size == str(workers) == str(len(members)) and int(number) > int(after) else ""
