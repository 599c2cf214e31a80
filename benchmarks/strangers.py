"""Alignment of speakers and sources unseen by the aligner, from your own clips and texts.

    python benchmarks/strangers.py CLIPS --out OUT                      # CLIPS/SPEAKER/NAME.wav with NAME.txt
    python benchmarks/strangers.py CLIPS --out OUT --aligner A B        # aligners of yours, instead of training them
    python benchmarks/strangers.py ../shared/data/fsdd --out OUT --digits [--write]

Each speaker's clips, each once, become recordings of some minutes whose subtitles are flawed: a tenth of the lines is
missing, a tenth was never spoken, times drift by up to 3 s, or there are none. Aligners learn from all other speakers'
clips, with as many passes as `--passes` says; one that has learnt longer goes on where the one before it ended. `align`
and `cut` run with their defaults but for the lengths of utterances. Then each recording gets the transcript of the next
one, and must be refused: it counts as placed if a line of it is kept where other words are spoken. A row per speaker
and aligner; the last ones have Wilson's 95 % intervals.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from page import command_line, machine, publish, python

from megahour.core.store import Artifact
from megahour.corpus.generate.clips import files_below

PATTERN = r"(?P<speaker>[^/]+)/(?P<name>.+)\.(?:wav|flac)"
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
OF_DIGITS = {
    "pattern": r"(?P<word>\d)_(?P<speaker>[a-z]+)_(?P<index>\d+)\.wav",
    "words": {str(i): word for i, word in enumerate(DIGITS)},
    "clips_per_string": [2, 7],
    "licence": "CC-BY-SA-4.0",
    "attribution": "Free Spoken Digit Dataset, Zohar Jackson and contributors",
}
FLAWED = {"style": "recordings", "missing": 0.1, "extra": 0.1, "gap_s": [0.5, 1.5]}
# Of `cut`: the others are what `align` refused.
REASONS = ("high-cer", "high-edge-cer", "low-confidence", "untranscribed-sound", "clipped", "low-snr")
Step = dict[str, Any]


@dataclass
class Found:
    """Counts of one speaker with one aligner, or of several together."""

    read: float = 0  # characters
    misread: float = 0
    lines: int = 0
    lost: int = 0
    lost_untimed: int = 0
    unspoken: int = 0
    unspoken_kept: int = 0
    unspoken_kept_untimed: int = 0
    starts: int = 0
    near: int = 0  # within 200 ms
    far: int = 0  # more than 2 s off
    starts_untimed: int = 0
    near_untimed: int = 0
    far_untimed: int = 0
    utterances: int = 0
    utterances_kept: int = 0
    wrong: int = 0  # transcripts of other recordings
    wrong_placed: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Found)))


def steps_of(speaker: str, a: argparse.Namespace, compose: Step) -> Iterator[tuple[str, Step]]:
    """Steps of a recipe that say how well recordings of one speaker are aligned."""
    own = re.escape(speaker)
    rate = {"rate_hz": a.rate_hz}
    if not a.aligner:
        yield from _training(speaker, a, {**compose, "leave_out": {"speaker": own}})
    flawed = {**compose, **FLAWED, "only": {"speaker": own}, "recording_minutes": a.minutes, "name": speaker}
    for kind, draw in kinds(a):
        forms = ["srt"] if kind.startswith("timed") else ["lines"]
        yield f"raw-{kind}-{speaker}", {**flawed, "forms": forms, "seed": a.seed + draw}
        yield f"recordings-{kind}-{speaker}", _step("ingest", raw=f"raw-{kind}-{speaker}", **rate)
        for name in a.names:
            made = {"recordings": f"recordings-{kind}-{speaker}", "aligner": _aligner(a, name, speaker)}
            yield f"alignment-{kind}-{speaker}-{name}", {"stage": "align", "inputs": made}
            aligned = {"recordings": made["recordings"], "alignment": f"alignment-{kind}-{speaker}-{name}"}
            yield f"score-{kind}-{speaker}-{name}", _step("score-alignment", raw=f"raw-{kind}-{speaker}", **aligned)


def kinds(a: argparse.Namespace) -> list[tuple[str, int]]:
    """Names of the recordings' kinds, each with the number of its draw."""
    return [(f"{kind}{draw or ''}", draw) for draw in range(a.draws) for kind in ("timed", "untimed")]


def _training(speaker: str, a: argparse.Namespace, compose: Step) -> Iterator[tuple[str, Step]]:
    """Strings of all other speakers' clips, and aligners trained on them for more and more passes."""
    strings = {**compose, "style": "prompts", "hours": a.hours, "gap_s": [0.1, 0.5], "speeds": [0.9, 1.1]}
    fewest, most = compose.get("clips_per_string", [1, 1])
    yield f"prompts-raw-{speaker}", {**strings, "clips_per_string": [1, max(fewest, most // 2)]}
    yield f"prompts-recordings-{speaker}", _step("ingest", raw=f"prompts-raw-{speaker}", rate_hz=a.rate_hz)
    made = f"prompts-utterances-{speaker}"
    yield made, {**_step("cut", recordings=f"prompts-recordings-{speaker}"), "min_s": 0.3, "max_s": 70}
    yield f"prompts-{speaker}", {**_step("select", utterances=made), "sets": [{"name": "prompts"}]}
    features = _step("features", selection=f"prompts-{speaker}", utterances=made, mels=a.mels)
    own = {"mean": "utterance", "range_db": a.range_db} if a.range_db else {}
    yield f"prompts-features-{speaker}", {**features, **own}
    before, initial = 0, a.initial
    shape = {"kind": "tdnn", "criterion": "ctc", "sets": ["prompts"], "layers": 5, "hidden": 128, "warp": 0.1}
    shape |= {key: Artifact(initial).manifest.params[key] for key in ("kind", "layers", "hidden")} if initial else {}
    for passes in a.passes:
        inputs = {"features": f"prompts-features-{speaker}"}
        inputs |= {"initial": initial} if initial else {}
        length = {"epochs": 0, "whole_epochs": passes - before, "batch_frames": 1024, "held_out_by": "utterance"}
        rates = {"learning_rate": 1.0e-3, "final_learning_rate": 2.0e-4}
        yield _aligner(a, f"{passes}-passes", speaker), {"stage": "train", "inputs": inputs, **shape, **length, **rates}
        before, initial = passes, _aligner(a, f"{passes}-passes", speaker)


def _aligner(a: argparse.Namespace, name: str, speaker: str) -> str:
    return str(a.aligner[a.names.index(name)]) if a.aligner else f"aligner-{speaker}-{name}"


def _step(stage: str, rate_hz: int = 0, mels: int = 0, **inputs: str) -> Step:
    more = {name: value for name, value in (("rate_hz", rate_hz), ("mels", mels)) if value}
    return {"stage": stage, "inputs": inputs, **more}


def files_of(raw: Artifact) -> dict[str, dict[str, bytes]]:
    """The files of each recording by suffix."""
    files: dict[str, dict[str, bytes]] = {}
    for receipt in raw.receipts():
        with raw.open(receipt.shard, ".tar") as packed, tarfile.open(fileobj=io.BytesIO(packed.read())) as tar:
            for member in tar.getmembers():
                stem, _, suffix = Path(member.name).name.rpartition(".")
                part = tar.extractfile(member)
                files.setdefault(stem, {})[suffix] = part.read() if part else b""
    return files


def swapped(raw: Artifact, folder: Path) -> Path:
    """A folder of each recording with the transcript of the next one."""
    files = files_of(raw)
    names = sorted(files)
    folder.mkdir(parents=True, exist_ok=True)
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        for suffix, data in files[name].items():
            if suffix in ("wav", "flac"):
                (folder / f"{name}.{suffix}").write_bytes(data)
        for suffix, data in files[other].items():
            if suffix in ("srt", "txt"):
                (folder / f"{name}.{suffix}").write_bytes(data)
    return folder if len(names) > 1 else Path()


def run(recipe: Path, steps: dict[str, Step], a: argparse.Namespace) -> Path:
    """Run steps as a recipe; gives the folder of its artifacts."""
    engine = {"kind": "local", "workers": a.workers}
    about = "alignment of speakers that no aligner has heard (benchmarks/strangers.py)"
    text = {"about": about, "run": str(recipe.with_suffix("")), "seed": a.seed, "threads": a.workers, "engine": engine}
    recipe.write_text(yaml.safe_dump({**text, "steps": steps}, sort_keys=False, allow_unicode=True), "utf-8")
    done = subprocess.run([sys.executable, "-m", "megahour", "run", str(recipe)], stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{recipe} did not end: see above")
    return recipe.with_suffix("")


def utterances(made: Path, timed: str, name: str) -> tuple[int, int, int, int]:
    """Of the utterances of allowed length that `cut` made from timed recordings: characters read, those read wrong, the
    number of utterances, and how many it kept."""
    out = made / f"utterances-{timed}-{name}"
    inputs = {"recordings": f"recordings-{timed}", "alignment": f"alignment-{timed}-{name}"}
    words = [word for role, step in inputs.items() for word in (f"--{role}", str(made / step))]
    command = [sys.executable, "-m", "megahour", "cut", *words, "--min-s", "0.5", "--out", str(out)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:  # of an aligner that hears nothing
        return 0, 0, 0, 0
    manifest = Artifact(out).manifest
    read, counts = manifest.summary, manifest.counts
    came_in = counts.kept + sum(counts.dropped.get(reason, 0) for reason in REASONS)
    return read.get("characters_read", 0), read.get("characters_misread", 0), came_in, counts.kept


def counted(made: Path, wrong: Path | None, speaker: str, name: str, a: argparse.Namespace) -> Found:
    """The figures of one speaker and aligner over all draws, from the artifacts."""
    found = sum((_of_draw(made, f"{draw or ''}-{speaker}", name) for draw in range(a.draws)), Found())
    for kind, _ in kinds(a) if wrong else ():
        tried = Artifact(wrong / f"recordings-{kind}-{speaker}").manifest.counts.came_in  # it may refuse some itself
        raw, recordings = made / f"raw-{kind}-{speaker}", wrong / f"recordings-{kind}-{speaker}"
        placed = misplaced(*map(Artifact, (raw, recordings, wrong / f"alignment-{kind}-{speaker}-{name}")))
        found += Found(wrong=tried, wrong_placed=placed)
    return found


def misplaced(raw: Artifact, recordings: Artifact, alignment: Artifact) -> int:
    """The number of recordings with a line that is kept where other words are spoken, by the truth of `raw`.

    A line of a wrong transcript may be spoken all the same: of two digits, most pairs are.
    """
    names = {row["key"]: row["name"] for row in rows_of(recordings)}
    spoken: dict[str, list[Step]] = {}
    for row in rows_of(raw, ".truth.parquet"):
        spoken.setdefault(row["name"], []).append(row)
    wrong = {
        row["key"]
        for row in rows_of(alignment)
        if not any(
            word["text"] == row["text"]
            and word["start_samples"] < row["end_samples"]
            and row["start_samples"] < word["end_samples"]
            for word in spoken[names[row["key"]]]
        )
    }
    return len(wrong)


def rows_of(artifact: Artifact, suffix: str = ".parquet") -> Iterator[Step]:
    """Rows of all shards' tables."""
    for receipt in artifact.receipts():
        yield from artifact.read_table(receipt.shard, suffix).to_pylist()


def _of_draw(made: Path, of: str, name: str) -> Found:
    timed, untimed = (
        Artifact(made / f"score-{kind}{of}-{name}").read_json(0, ".json")["table"][-1] for kind in ("timed", "untimed")
    )
    read, misread, came_in, kept = utterances(made, f"timed{of}", name)
    return Found(
        read,
        misread,
        timed["spoken_lines"],
        timed["spoken_lines_dropped"],
        untimed["spoken_lines_dropped"],
        timed["unspoken_lines"],
        timed["unspoken_lines_kept"],
        untimed["unspoken_lines_kept"],
        *_starts(timed),
        *_starts(untimed),
        came_in,
        kept,
    )


def _starts(row: dict[str, Any]) -> tuple[int, int, int]:
    n = row["sentences"]
    return n, round(n * (row["sentence_start_within_200_ms"] or 0)), round(n * (row["sentence_start_far"] or 0))


def wilson(part: int, whole: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    if not whole:
        return 0.0, 1.0
    z, share = 1.96, part / whole
    middle, half = share + z * z / (2 * whole), z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return max(0.0, (middle - half) / (1 + z * z / whole)), min(1.0, (middle + half) / (1 + z * z / whole))


HEAD = (
    "| speaker | aligner | CER of its reading | lines lost: timed / untimed | unspoken kept | starts ≤ 200 ms "
    "| starts > 2 s off | utterances kept of those cut | wrong transcripts placed |\n|" + "---|" * 9
)


def row_of(speaker: str, name: str, found: Found) -> str:
    cer = f"{found.misread / found.read:.0%}" if found.read else "–"
    near = " / ".join(
        f"{part / whole:.1%}" if whole else "–"
        for part, whole in ((found.near, found.starts), (found.near_untimed, found.starts_untimed))
    )
    cells = (
        speaker, name, cer,
        f"{found.lost} / {found.lost_untimed} of {found.lines}",
        f"{found.unspoken_kept} / {found.unspoken_kept_untimed} of {found.unspoken}",
        near,
        f"{found.far} / {found.far_untimed} of {found.starts}",
        f"{found.utterances_kept} of {found.utterances}",
        f"{found.wrong_placed} of {found.wrong}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def intervals(found: Found) -> Iterator[str]:
    """Lines of a list: shares of timed and untimed recordings together, with their intervals."""
    for what, part, whole in (
        ("lines lost", found.lost + found.lost_untimed, 2 * found.lines),
        ("unspoken lines kept", found.unspoken_kept + found.unspoken_kept_untimed, 2 * found.unspoken),
        ("starts within 200 ms", found.near + found.near_untimed, found.starts + found.starts_untimed),
        ("starts more than 2 s off", found.far + found.far_untimed, found.starts + found.starts_untimed),
        ("wrong transcripts placed", found.wrong_placed, found.wrong),
    ):
        low, high = wilson(part, whole)
        yield f"  - {what}: {part} of {whole}, {part / max(1, whole):.1%} ({low:.1%} … {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--aligner", nargs="*", default=[], help="artifacts of train or import-aligner")
    parser.add_argument("--speakers", nargs="*", default=[], help="only these are strangers; without it, all in turn")
    parser.add_argument("--passes", nargs="*", type=int, default=[8, 16, 32])
    parser.add_argument("--initial", default="", help="an aligner whose weights training starts from")
    parser.add_argument("--mels", type=int, default=40, help="as the initial aligner has them")
    parser.add_argument("--range-db", type=float, default=0.0, help="of features with each utterance's own mean")
    parser.add_argument("--pattern", default=PATTERN)
    parser.add_argument("--listing", default="", help="file of lines `name: text`, where no text lies beside a clip")
    parser.add_argument("--digits", action="store_true", help="clips are those of the Free Spoken Digit Dataset")
    parser.add_argument("--language", default="en")
    parser.add_argument("--licence", default="CC0-1.0", help="of the clips")
    parser.add_argument("--rate-hz", type=int, default=8000)
    parser.add_argument("--hours", type=float, default=0.3, help="of strings that an aligner learns from")
    parser.add_argument("--minutes", type=float, default=2.0, help="of a recording")
    parser.add_argument("--draws", type=int, default=1, help="of recordings and flaws, from the same clips")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    a.names = [Path(each).name for each in a.aligner] or [f"{passes}-passes" for passes in a.passes]
    compose: Step = {"stage": "compose", "source": a.clips, "pattern": a.pattern, "licence": a.licence}
    compose |= {"language": a.language, "rate_hz": a.rate_hz, **({"listing": a.listing} if a.listing else {})}
    compose |= OF_DIGITS if a.digits else {}
    load = os.getloadavg()[0]
    table, seen = measured(a, compose)
    lines = ["# Alignment of voices that the aligner has not heard", "", f"    {command_line(__file__)}", ""]
    lines += [machine(python(), load=load), "", *table, ""]
    for name in a.names:
        lines += [
            f"- {name}, all speakers:",
            *intervals(sum((seen[each, name] for each, n in seen if n == name), Found())),
        ]
    publish(__file__, lines, write=a.write)


def measured(a: argparse.Namespace, compose: Step) -> tuple[list[str], dict[tuple[str, str], Found]]:
    """The table's lines, and the figures by speaker and aligner."""
    expression = re.compile(compose["pattern"])
    matches = (expression.fullmatch(name) for name in files_below(a.clips).names)
    speakers = a.speakers or sorted({match["speaker"] for match in matches if match})
    table, seen = [HEAD], dict[tuple[str, str], Found]()
    a.out.mkdir(parents=True, exist_ok=True)
    for speaker in speakers:
        made = run(a.out / f"{speaker}.yaml", dict(steps_of(speaker, a, compose)), a)
        wrong = run_swapped(speaker, made, a)
        for name in a.names:
            seen[speaker, name] = counted(made, wrong, speaker, name, a)
            table.append(row_of(speaker, name, seen[speaker, name]))
            print(table[-1], file=sys.stderr, flush=True)
    return table, seen


def run_swapped(speaker: str, made: Path, a: argparse.Namespace) -> Path | None:
    """Align each recording with the transcript of the next one; None where there is only one recording."""
    steps: dict[str, Step] = {}
    for kind, _ in kinds(a):
        folder = swapped(Artifact(made / f"raw-{kind}-{speaker}"), a.out / f"swapped-{kind}-{speaker}")
        if not folder.name:
            return None
        ingest = {"stage": "ingest", "source": str(folder), "rate_hz": a.rate_hz, "licence": "CC0-1.0"}
        steps[f"recordings-{kind}-{speaker}"] = {
            **ingest,
            "language": a.language,
            "on_language_mismatch": "keep",
            "max_bad": 1.0,
        }
        for name in a.names:
            own = _aligner(a, name, speaker)
            aligner = own if a.aligner else str(made / own)
            inputs = {"recordings": f"recordings-{kind}-{speaker}", "aligner": aligner}
            steps[f"alignment-{kind}-{speaker}-{name}"] = {"stage": "align", "inputs": inputs}
    return run(a.out / f"{speaker}-swapped.yaml", steps, a)


if __name__ == "__main__":
    main()
