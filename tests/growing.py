"""A small corpus in several numbers of shards, in a store that counts requests, and stages to run on it."""

from __future__ import annotations

import cProfile
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from engine_here import EngineHere
from exported import MELS, model
from made_artifacts import write_artifact
from slow_store import SlowStore

from megahour.core.records import key_of
from megahour.core.schemas import DUPLICATES, UTTERANCES
from megahour.core.stage import Context, Inputs, Stage, Task
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.export_stage import Export
from megahour.corpus.interchange.params import ExportParams
from megahour.corpus.media.audio import encode_flac
from megahour.features.params import FeaturesParams
from megahour.features.stage import Features
from megahour.foreign.hypotheses_stage import ImportHypotheses
from megahour.foreign.params import ImportHypothesesParams
from megahour.report.params import ReportParams
from megahour.report.stage import Report
from megahour.runner.runner import run_stage
from megahour.select.duplicates_stage import Duplicates
from megahour.select.params import DuplicatesParams, SelectParams, SetRule
from megahour.select.stage import Select
from megahour.teach.params import TargetsParams
from megahour.teach.stage import Targets

EACH = 4  # utterances per shard, speakers per shard, and utterances per speaker, each in another shard
TEXTS = 16  # utterances per shard without audio: from each of them some go to each of its partitions
RATE_HZ, SECONDS = 8000, 0.4
SELECT = SelectParams(sets=[SetRule(name="labelled")], shard_hours=EACH * SECONDS / 3600)
FEATURES = FeaturesParams(mels=MELS, max_bad=0.0)


class Asked(NamedTuple):
    """What a stage requested from the store in one process, and its CPU time.

    lists: reads of all receipts of an artifact. blocks: those that exchanges sent. calls: function calls, including C
    functions; unlike times they do not depend on the load of the machine.
    """

    requests: int
    bytes: int
    lists: int
    blocks: int
    cpu_s: float
    calls: int = 0


class TargetsHere(Targets):
    """`targets` whose tasks have the model in their own process."""

    def accelerator(self, p: TargetsParams, inputs: Inputs) -> Any:
        return None

    def run(self, p: TargetsParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.teach.targets import write_targets

        spec = super().accelerator(p, inputs)
        write_targets(p, inputs["features"], inputs["teacher"], task["shard"], spec, out, ctx)


class Corpus:
    """A corpus of `size` shards and artifacts that other stages made from it. folder: for files outside the store."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self._runs = size, folder, 0
        flac = encode_flac(_sound(), RATE_HZ)
        rows = [_row(size, at) for at in range(EACH * size)]
        shards = []
        for shard in range(size):
            own = rows[shard::size]
            places = [{**row, "offset": at * len(flac), "size": len(flac)} for at, row in enumerate(own)]
            shards.append(({}, {".tar": flac * len(own), ".parquet": pa.Table.from_pylist(places, UTTERANCES)}))
        alike = [{"key": row["key"], "duplicate_of": 0, "kind": "text", "similarity": 1.0} for row in rows[::5]]
        listed = [({}, {".parquet": pa.Table.from_pylist(alike[at::size], DUPLICATES)}) for at in range(size)]
        self.inputs = {
            "utterances": write_artifact(self.url("utterances"), shards, {}),
            "duplicates": write_artifact(self.url("duplicates"), listed, {}),
        }
        texts = [_row(size, at) for at in range(TEXTS * size)]
        each = [({}, {".parquet": pa.Table.from_pylist(texts[at::size], UTTERANCES)}) for at in range(size)]
        self.inputs["texts"] = write_artifact(self.url("texts"), each, {})
        self.inputs["selection"] = self.run(Select(), SELECT, "utterances")
        self.inputs["features"] = self.run(Features(), FEATURES, "selection", "utterances")
        summary = self.inputs["features"].summary
        stats = {name: summary[name] for name in ("mean", "inv_std")}
        self.inputs["teacher"] = model(folder / f"teacher-{size}", "mlp", FEATURES, stack=8, stats=stats)
        lines = [json.dumps({"key": row["key"], "text": "a"}) for row in rows]
        self.heard = folder / f"heard-{size}.jsonl"
        self.heard.write_text("\n".join(lines))

    def url(self, name: str) -> Any:
        return f"slow://growing-{self.size}/{name}"

    def run(self, stage: Stage[Any], p: Any, *roles: str, **others: str) -> Artifact:
        """A new artifact, made in this process. others: roles whose artifacts have another name."""
        self._runs += 1
        output = Artifact(self.url(f"{stage.name}-{self._runs}"))
        names = {role: role for role in roles} | others
        inputs = {role: Artifact(self.inputs[name].url) for role, name in names.items()}
        run_stage(stage, p, inputs, output, EngineHere(), work=self.folder / "work")
        return output


def _sound() -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.random.default_rng(0).normal(0, 3000, int(SECONDS * RATE_HZ)).astype(np.int16)


def _row(size: int, at: int) -> dict[str, Any]:
    fixed = {
        "key": key_of(size, at),
        "recording": at // EACH,
        "speaker": f"s{at // EACH}",
        "text": f"{key_of(size, at // 2):x}",
    }
    sound = {"samples": int(SECONDS * RATE_HZ), "rate_hz": RATE_HZ, "confidence": 1.0}
    return {field.name: _empty(field.type) for field in UTTERANCES} | fixed | sound


def _empty(kind: pa.DataType) -> Any:
    return [] if pa.types.is_list(kind) else "" if pa.types.is_string(kind) else 0


def select(corpus: Corpus) -> None:
    assert corpus.run(Select(), SELECT, "utterances").manifest.shards == corpus.size


def select_without_duplicates(corpus: Corpus) -> None:
    counts = corpus.run(Select(), SELECT, "utterances", "duplicates").manifest.counts
    assert counts.dropped == {"duplicate": -(-EACH * corpus.size // 5)}


def duplicates(corpus: Corpus) -> None:
    p = DuplicatesParams(audio=False, text="any-speaker", min_text_chars=1)
    assert corpus.run(Duplicates(), p, utterances="texts").manifest.counts.kept == TEXTS * corpus.size


def export(corpus: Corpus) -> None:
    p = ExportParams(formats=["webdataset"], sets=["labelled"])
    assert corpus.run(Export(), p, "utterances", "selection").summary["utterances"] == EACH * corpus.size


def features(corpus: Corpus) -> None:
    assert corpus.run(Features(), FEATURES, "selection", "utterances").manifest.counts.kept == EACH * corpus.size


def targets(corpus: Corpus) -> None:
    p = TargetsParams(top_k=2, offsets=[0], sets=["labelled"])
    assert corpus.run(TargetsHere(), p, "features", "teacher").manifest.counts.kept == EACH * corpus.size


def report(corpus: Corpus) -> None:
    corpus.run(Report(), ReportParams(examples=2), "utterances", "selection", "features")


def import_hypotheses(corpus: Corpus) -> None:
    p = ImportHypothesesParams(source=[str(corpus.heard)], sets=["labelled"])
    assert corpus.run(ImportHypotheses(), p, "features").manifest.counts.kept == EACH * corpus.size


def verified(corpus: Corpus) -> None:
    for role in ("utterances", "features"):
        assert verify(Artifact(corpus.inputs[role].url), EngineHere()) == []


WORK: Mapping[str, Callable[[Corpus], None]] = {
    "select": select,
    "select, with duplicates": select_without_duplicates,
    "duplicates": duplicates,
    "export": export,
    "features": features,
    "targets": targets,
    "report": report,
    "import-hypotheses": import_hypotheses,
    "verify": verified,
}


def asked(work: Callable[[Corpus], None], corpus: Corpus, *, calls: bool = False) -> Asked:
    """Runs a stage and counts. calls: also count function calls, which slows it down."""
    profile = cProfile.Profile() if calls else None
    before, started = _counted(), time.process_time()
    if profile:
        profile.runcall(work, corpus)
    else:
        work(corpus)
    cpu_s = time.process_time() - started
    numbers = [after - at_first for after, at_first in zip(_counted(), before, strict=True)]
    return Asked(*numbers, cpu_s, sum(entry.callcount for entry in profile.getstats()) if profile else 0)


def _counted() -> tuple[int, int, int, int]:
    return SlowStore.requests.total(), SlowStore.bytes_read, SlowStore.lists_read, EngineHere.blocks


def growth(values: Sequence[float]) -> float:
    """For doubling sizes: the increase of the last doubling over twice that of the one before; 1 is linear growth."""
    first, second, third = values
    return (third - second) / (2 * (second - first))
