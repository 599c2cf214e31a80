"""Errors of word edges against labels set by hand, as TIMIT has them, of clips that each are a recording.

    python benchmarks/hand_labels.py CLIPS --aligner ALIGNER [ALIGNER ...] --out OUT [--write]

CLIPS/SPEAKER/NAME.wav with NAME.txt, the text, and NAME.wrd, lines of first sample, last sample and word. "{speaker}"
in an aligner's path stands for the speaker, so that each has one that has not heard him. The clips are aligned without
times, with the defaults, as they are and in rooms and noise, which move no label. "Outer" edges are the first word's
start and the last word's end; an edge inside a sentence is often a matter of opinion.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from page import command_line, machine, publish, python
from strangers import Step, _step, rows_of, run

from megahour.core.store import Artifact
from megahour.corpus.generate import rooms
from megahour.corpus.media.audio import to_int16
from megahour.corpus.text.edit_distance import match

CONDITIONS = ("clean", "office", "room", "noisy", "far")
HEAD = (
    "| aligner | rate | condition | clips aligned | words | outer starts: median error, bias ms | outer ends "
    "| all starts | all ends | outer starts, ends ≤ 50 ms |\n|" + "---|" * 10
)


@dataclass
class Errors:
    """Aligned minus labelled times in milliseconds, of all edges and of those that begin or end a clip's speech."""

    clips: int = 0
    aligned: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    outer_starts: list[float] = field(default_factory=list)
    outer_ends: list[float] = field(default_factory=list)


def prepared(clips: Path, speaker: str, condition: str, out: Path) -> Path:
    """A folder of one speaker's clips in a condition, and their texts."""
    folder = out / f"clips-{speaker}-{condition}"
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted((clips / speaker).glob("*.wav"))):
        samples, had_hz = soundfile.read(path, dtype="float32")
        if condition != "clean":
            samples = rooms.apply(condition, samples, had_hz, np.random.default_rng([1, number]))
        soundfile.write(folder / path.name, to_int16(samples), had_hz)
        shutil.copy(path.with_suffix(".txt"), folder)
    return folder


def labels(path: Path, rate_hz: int) -> list[tuple[str, float, float]]:
    """Words with their start and end in seconds."""
    lines = (line.split() for line in path.read_text("utf-8").splitlines() if line.strip())
    return [(word, int(start) / rate_hz, int(end) / rate_hz) for start, end, word in lines]


def counted(clips: Path, recordings: Artifact, alignment: Artifact) -> Errors:
    """Errors of one speaker's clips."""
    found = Errors()
    rows: dict[int, list[Step]] = {}
    for row in rows_of(alignment):
        rows.setdefault(row["key"], []).append(row)
    for recording in rows_of(recordings):
        found.clips += 1
        aligned, rate_hz = rows.get(recording["key"], []), recording["rate_hz"]
        found.aligned += bool(aligned)
        path = clips / f"{recording['name']}.wrd"
        truth = labels(path, soundfile.info(path.with_suffix(".wav")).samplerate)
        partners = match([row["text"] for row in aligned], [word for word, _, _ in truth]).tolist()
        for row, partner in zip(aligned, partners, strict=True):
            if partner < 0 or row["start_samples"] < 0:
                continue
            start, end = (
                1000 * (row[f"{edge}_samples"] / rate_hz - truth[partner][n]) for n, edge in ((1, "start"), (2, "end"))
            )
            found.starts.append(start)
            found.ends.append(end)
            found.outer_starts += [start] if partner == 0 else []
            found.outer_ends += [end] if partner == len(truth) - 1 else []
    return found


def steps_of(folder: Path, aligner: str, rate_hz: int) -> Iterator[tuple[str, Step]]:
    source = {"source": str(folder), "language": "en", "licence": "CC0-1.0", "rate_hz": rate_hz}
    yield "recordings", {"stage": "ingest", **source, "on_language_mismatch": "keep"}
    yield "alignment", _step("align", recordings="recordings", aligner=aligner)


def row_of(name: str, rate_hz: int, condition: str, each: list[Errors]) -> str:
    """A line of the table, over all speakers."""

    def middle(errors: list[float]) -> str:
        return f"{np.median(np.abs(errors)):.0f}, {np.median(errors):+.0f}" if errors else "–"

    kinds = [
        [e for one in each for e in getattr(one, kind)] for kind in ("outer_starts", "outer_ends", "starts", "ends")
    ]
    near = ", ".join(f"{np.mean(np.abs(errors) <= 50):.0%}" if errors else "–" for errors in kinds[:2])
    aligned = f"{sum(one.aligned for one in each)} of {sum(one.clips for one in each)}"
    cells = [name, f"{rate_hz // 1000} kHz", condition, aligned, str(len(kinds[2])), *map(middle, kinds), near]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--aligner", nargs="+", required=True, help='artifacts; "{speaker}" stands for the speaker')
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--conditions", nargs="*", default=CONDITIONS, choices=CONDITIONS)
    parser.add_argument(
        "--rate-hz", type=int, default=16_000, help="that the clips are brought to, and the aligners had"
    )
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    a.seed, a.workers, load = 1, 1, os.getloadavg()[0]
    speakers = sorted(path.name for path in a.clips.iterdir() if path.is_dir())
    table = [HEAD]
    for aligner in a.aligner:
        name = Path(aligner).name.replace("{speaker}-", "")
        for condition in a.conditions:
            each = []
            for speaker in speakers:
                folder = prepared(a.clips, speaker, condition, a.out)
                recipe = a.out / f"{name}-{speaker}-{condition}-{a.rate_hz}.yaml"
                model = str(Path(aligner.replace("{speaker}", speaker)).resolve())
                made = run(recipe, dict(steps_of(folder.resolve(), model, a.rate_hz)), a)
                each.append(counted(a.clips / speaker, Artifact(made / "recordings"), Artifact(made / "alignment")))
            table.append(row_of(name, a.rate_hz, condition, each))
    lines = ["# Word edges beside labels set by hand", "", f"    {command_line(__file__)}", ""]
    publish(__file__, [*lines, machine(python(), load=load), "", *table], write=a.write)


if __name__ == "__main__":
    main()
