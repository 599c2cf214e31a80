"""Errors of word edges for speakers unseen by the aligner, clean, in rooms and in noise.

    python benchmarks/edges.py ../shared/data/fsdd --out OUT [--speakers jackson lucas] [--write]

Clips of the Free Spoken Digit Dataset, each once, become recordings of a minute in five conditions, strings of two to
seven digits with pauses of 50 to 300 ms inside; the truth is where a clip is within 35 dB of its peak, before the room.
The aligner learns from the other speakers' clips in the same conditions. `align` runs with its defaults.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from page import machine, publish, python
from strangers import OF_DIGITS, Step, _step, _training, run

from megahour.core.store import Artifact

CONDITIONS = ["clean", "office", "room", "noisy", "far"]
HEAD = (
    "| speaker | condition | words | start: median error, bias ms | end: median error, bias ms "
    "| starts, ends ≤ 50 ms |\n|" + "---|" * 6
)


def steps_of(speaker: str, a: argparse.Namespace) -> dict[str, Step]:
    """Steps of a recipe that align one speaker's recordings and compare them with the truth."""
    digits: Step = {"stage": "compose", "source": a.clips, "rate_hz": a.rate_hz, **OF_DIGITS, "conditions": CONDITIONS}
    steps = dict(_training(speaker, a, {**digits, "leave_out": {"speaker": speaker}}))
    own = {"only": {"speaker": speaker}, "recording_minutes": 1.0, "gap_s": [0.5, 1.5], "forms": ["srt"]}
    steps["raw"] = {**digits, "style": "recordings", "name": speaker, **own}
    steps["recordings"] = _step("ingest", raw="raw", rate_hz=a.rate_hz)
    aligner = f"aligner-{speaker}-{a.passes[-1]}-passes"
    steps["alignment"] = _step("align", recordings="recordings", aligner=aligner)
    steps["score"] = _step("score-alignment", raw="raw", recordings="recordings", alignment="alignment")
    return steps


def row_of(speaker: str, row: dict[str, Any]) -> str:
    """A line of the table."""
    cells = [speaker, row["condition"], str(row["words"])]
    cells += [f"{row[f'{edge}_median_ms']:.0f}, {row[f'{edge}_bias_ms']:+.0f}" for edge in ("start", "end")]
    cells += [f"{row['start_within_50_ms']:.0%}, {row['end_within_50_ms']:.0%}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--speakers", nargs="*", default=["jackson", "lucas"], help="each in turn is the stranger")
    parser.add_argument("--passes", nargs="*", type=int, default=[32])
    parser.add_argument("--rate-hz", type=int, default=8000)
    parser.add_argument("--hours", type=float, default=0.6, help="of strings that an aligner learns from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    a.aligner, a.names, a.initial, a.mels, a.range_db, load = [], [], "", 40, 0.0, os.getloadavg()[0]
    a.out.mkdir(parents=True, exist_ok=True)
    table = [HEAD]
    for speaker in a.speakers:
        made = run(a.out / f"{speaker}.yaml", steps_of(speaker, a), a)
        rows = Artifact(made / "score").read_json(0, ".json")["table"]
        table += [row_of(speaker, row) for row in rows if row["words"]]
    command = f"python benchmarks/edges.py CLIPS --out OUT --speakers {' '.join(a.speakers)}"
    lines = ["# Word edges of voices that the aligner has not heard", "", f"    {command}", ""]
    publish(__file__, [*lines, machine(python(), load=load), "", *table], write=a.write)


if __name__ == "__main__":
    main()
