"""The files of a whole export: Kaldi's sorted directory, the credits, and a README with commands.

One task reads the tables (no audio) once, in order. It sorts in scratch files, so its memory does not grow with the
corpus. Lines are compared as bytes, as `LC_ALL=C sort` does.
"""

from __future__ import annotations

import heapq
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megahour.core.stage import Context, Inputs
from megahour.core.unicode import tsv_line
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange import kaldi
from megahour.corpus.interchange.export import part_of_rows, plan_parts, shard_records
from megahour.corpus.interchange.params import ExportParams
from megahour.corpus.interchange.record import Row

RUN_BYTES = 64 << 20
FAN_IN = 64
MOST_NAMES = 100  # splits, and tiers; with more, no name is called absent


class LineSorter:
    """Collects lines without newlines, and returns them sorted. Memory stays near `run_bytes`.

    folder: where the runs are written. A run is deleted once it is merged, and all are on exit.
    """

    def __init__(self, folder: Path, run_bytes: int = RUN_BYTES, fan_in: int = FAN_IN) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(dir=folder, prefix="sort-")
        self._run_bytes, self._fan_in = run_bytes, fan_in
        self._lines: list[bytes] = []
        self._bytes = 0
        self._runs: list[Path] = []
        self._made = 0

    def __enter__(self) -> LineSorter:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def add(self, line: bytes) -> None:
        """Add a line. Raises ValueError if it contains a newline."""
        if b"\n" in line:
            raise ValueError("a line to sort has a newline inside")
        self._lines.append(line)
        self._bytes += len(line) + 64  # overhead of the object
        if self._bytes >= self._run_bytes:
            self._runs.append(self._write(iter(sorted(self._lines))))
            self._lines, self._bytes = [], 0

    def lines(self) -> Iterator[bytes]:
        """All lines in order. Call it once."""
        while len(self._runs) > self._fan_in:
            head, self._runs = self._runs[: self._fan_in], self._runs[self._fan_in :]
            self._runs.append(self._write(_merged(head, [])))
            for path in head:
                path.unlink()
        yield from _merged(self._runs, sorted(self._lines))

    def _write(self, lines: Iterator[bytes]) -> Path:
        path = Path(self._scratch.name) / f"{self._made}.run"
        self._made += 1
        with path.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
        return path


def _merged(runs: list[Path], lines: list[bytes]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in runs]
        yield from heapq.merge(lines, *((line[:-1] for line in file) for file in files))


SNIPPETS = {
    "webdataset": ("{all}.tar", 'webdataset.WebDataset("{all}.tar", shardshuffle=False)'),
    "shar": (
        "{star}.shar.*",
        'CutSet.from_shar(fields={{"cuts": sorted(glob("{star}.shar.cuts.jsonl.gz")), '
        '"recording": sorted(glob("{star}.shar.recording.tar"))}})',
    ),
    "nemo": (
        "{all}.nemo.jsonl",
        "is_tarred=true manifest_filepath={op}.nemo.jsonl tarred_audio_filepaths={op}.tar",
    ),
    "parquet": ("{star}.hf.parquet", 'datasets.load_dataset("parquet", data_files="{star}.hf.parquet")'),
    "kaldi": ("shards/{last}.kaldi", "utils/validate_data_dir.sh --no-feats shards/{last}.kaldi"),
    "ctm": ("{all}.ctm", "cat shards/*.ctm"),
    "textgrid": ("{all}.textgrid.tar", "tar -xf shards/00000.textgrid.tar -C FOLDER"),
    "srt": ("{all}.srt.tar", "tar -xf shards/00000.srt.tar -C FOLDER"),
    "files": (
        "{star}.files.cuts.jsonl.gz, {all}.files.jsonl",
        'CutSet.from_files(sorted(glob("{star}.files.cuts.jsonl.gz")))',
    ),
}


@dataclass
class _Totals:
    utterances: int = 0
    seconds: float = 0.0
    licences: dict[str, float] = field(default_factory=dict)  # seconds by licence

    def add(self, record: Row) -> None:
        length = record["samples"] / record["rate_hz"]
        self.utterances += 1
        self.seconds += length
        self.licences[record["licence"]] = self.licences.get(record["licence"], 0.0) + length


class Seen:
    """The splits and tiers of utterances, a bounded number of each."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {"splits": set(), "tiers": set()}

    def add(self, row: Row) -> None:
        """Note the split and the tier of a row."""
        for names, value in zip(self._names.values(), (row["split"], row["tier"]), strict=True):
            if len(names) < MOST_NAMES:
                names.add(value or "")

    def absent(self, p: ExportParams) -> dict[str, Any]:
        """{option: {"asked": names that no utterance has, "present": those that are there}} of `splits` and `tiers`."""
        asked = {"splits": p.splits, "tiers": p.tiers}
        lacking = {option: sorted(set(asked[option]) - names) for option, names in self._names.items()}
        return {
            option: {"asked": names, "present": sorted(self._names[option])}
            for option, names in lacking.items()
            if names and len(self._names[option]) < MOST_NAMES
        }


def export_whole(p: ExportParams, inputs: Inputs, out: ShardWriter, ctx: Context) -> None:
    """Write `.credits.tsv`, `.README.md` and, if asked, `.kaldi/`."""
    totals, seen = _Totals(), Seen()
    with ExitStack() as stack:
        credits_ = stack.enter_context(LineSorter(ctx.work / "credits"))
        ids = stack.enter_context(LineSorter(ctx.work / "kaldi"))
        for record, audio in _placed(p, inputs, ctx, seen):
            totals.add(record)
            credit = [record["licence"], record["attribution"], record["source"], record["name"]]
            length = record["samples"] / record["rate_hz"]
            credits_.add(tsv_line([*credit, f"{length:.6f}"]).rstrip("\n").encode())
            if "kaldi" in p.formats:
                ids.add(kaldi.sort_line(record, audio))
        with out.open(".credits.tsv") as file:
            file.write(b"licence\tattribution\tsource\trecording\tutterances\tseconds\n")
            file.writelines(line.encode() for line in _credit_lines(credits_.lines()))
        if "kaldi" in p.formats:
            kaldi.write_directory(out, _parsed(ids.lines()))
    out.text(_readme(p, totals, out.shard), ".README.md")
    if absent := seen.absent(p):
        out.stats["absent"] = absent
    out.stats["utterances"] = totals.utterances
    out.stats["hours"] = round(totals.seconds / 3600, 4)
    out.stats["licences"] = {name: round(value / 3600, 4) for name, value in sorted(totals.licences.items())}


def _placed(p: ExportParams, inputs: Inputs, ctx: Context, seen: Seen) -> Iterator[tuple[Row, str]]:
    """Each exported record with the `path:offset` of its WAV in the archives of `export_part`, computed from sizes.

    seen: gets all records, also those that are left out.
    """
    utterances = inputs["utterances"]
    specs = plan_parts(utterances, p.max_tar_mb * 1e6)
    first = {spec["shard"]: i for i, spec in reversed(list(enumerate(specs)))}
    for done, spec in enumerate(spec for spec in specs if spec["part"] == 0):
        shard, parts = spec["shard"], spec["parts"]
        table = utterances.read_table(shard, columns=["key", "size"])
        part = dict(zip(table["key"].to_pylist(), part_of_rows(table["size"].to_numpy(), parts), strict=True))
        offsets = [0] * parts
        for record, row in shard_records(p, inputs, shard, lambda row, reason: seen.add(row)):
            seen.add(row)
            own_part = part[row["key"]]
            head, entry = kaldi.entry_bytes(record)
            yield record, f"{p.prefix}shards/{first[shard] + own_part:05d}{kaldi.ARK}:{offsets[own_part] + head}"
            offsets[own_part] += entry
        ctx.progress(done + 1, len(first), "shards")


def _parsed(lines: Iterator[bytes]) -> Iterator[tuple[str, Row]]:
    for line in lines:
        utterance, _, text = line.decode().partition(" ")
        yield utterance, json.loads(text)


def _credit_lines(lines: Iterator[bytes]) -> Iterator[str]:
    """A line per (licence, attribution, source, recording), with its number of utterances and its seconds."""
    last, count, seconds = "", 0, 0.0
    for line in lines:
        credit, _, length = line.decode().rpartition("\t")
        if credit != last and count:
            yield f"{last}\t{count}\t{seconds:.3f}\n"
            count, seconds = 0, 0.0
        last, count, seconds = credit, count + 1, seconds + float(length)
    if count:
        yield f"{last}\t{count}\t{seconds:.3f}\n"


def _readme(p: ExportParams, totals: _Totals, shards: int) -> str:
    last = f"{max(0, shards - 1):05d}"
    span = f"{{00000..{last}}}"
    names = {
        "all": f"shards/{span}",
        "star": "shards/*",
        "op": f"shards/__OP_00000..{last}_CL_",
        "last": f"{shards:05d}",
    }
    lines = [f"# {p.title}", "", f"{totals.utterances:,} utterances, {totals.seconds / 3600:.2f} hours.", ""]
    lines += [
        f"Whom to credit: `shards/{shards:05d}.credits.tsv`, by recording.",
        "",
        "| licence | hours |",
        "|---|---|",
    ]
    lines += [f"| {name or 'unknown'} | {value / 3600:.2f} |" for name, value in sorted(totals.licences.items())]
    lines += ["", "| format | files | open it with |", "|---|---|---|"]
    for name in p.formats:
        files, snippet = (text.format(**names) for text in SNIPPETS[name])
        lines.append(f"| {name} | `{files}` | `{snippet}` |")
    return "\n".join(lines) + "\n"
