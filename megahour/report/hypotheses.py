"""All hypotheses of a scored test set: which words are confused, and rows to sort, filter and read word by word.

Read in batches. A page holds at most N utterances, sampled by the hashes of their keys when there are more; the file of
`write_all` then holds all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow.parquet
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.core.unicode import tsv_line
from megahour.report.counters import Sample
from megahour.report.listen import SYSTEMS, Step, difference
from megahour.report.markup import Markup, tag
from megahour.report.rows import coded
from megahour.report.sections import section
from megahour.report.tables import paged_frame

MOST_WORDS = 400  # words shown per utterance
BATCH = 4096
LETTERS = {"ok": "=", "sub": "s", "del": "d", "ins": "i"}


@dataclass
class Readings:
    """Errors of each system, the page's rows, and how many there are in all."""

    confusions: dict[str, Counter[Step]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    utterances: int = 0

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.utterances


def read(score: Artifact, *, most: int, seed: int) -> Readings:
    """Align every utterance of a *score* artifact, and keep at most `most` of them."""
    keys: NDArray[Any] = score.read_table(0, columns=["key"])["key"].to_numpy()
    sample = Sample(most, seed)
    sample.add(0, keys)
    chosen = set(sample.by_shard().get(0, []))
    readings = Readings(utterances=len(keys))
    for number, row in enumerate(_rows(score)):
        reference = row["reference"].split()
        steps = {name: difference(reference, row[name].split()) for name in SYSTEMS if name in row}
        for name, here in steps.items():
            readings.confusions.setdefault(name, Counter()).update(step for step in here if step[0] != "ok")
        if number in chosen:
            kept = {name: row[name] for name in ("key", "speaker", "condition")}
            readings.rows.append({**kept, "words": len(reference), "reference": reference, "steps": steps})
    return readings


def _rows(score: Artifact) -> Iterator[dict[str, Any]]:
    with score.open(0, ".parquet") as file:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(BATCH):
            for row in batch.to_pylist():
                yield {name: "" if value is None else value for name, value in row.items()}


def payload(rows: Sequence[Mapping[str, Any]], heard: Mapping[int, int]) -> dict[str, Any]:
    """Columns for the page. heard: key of an utterance → number of the example with its audio.

    `steps` has, per system, one letter per alignment step. `texts` has the reference, and per system the words that
    differ from it.
    """
    systems = list(rows[0]["steps"]) if rows else []
    numbers: dict[str, list[Any]] = {"words": [row["words"] for row in rows]}
    wrong = {name: [sum(step[0] != "ok" for step in row["steps"][name]) for row in rows] for name in systems}
    for name, counts in wrong.items():
        numbers[f"wer_{name}"] = [
            round(n / row["words"], 4) if row["words"] else None for n, row in zip(counts, rows, strict=True)
        ]
    if {"baseline", "student"} <= set(systems):
        numbers["change"] = [b - a for a, b in zip(wrong["baseline"], wrong["student"], strict=True)]
    cut = {name: [row["steps"][name][:MOST_WORDS] for row in rows] for name in systems}
    return {
        "key": [str(row["key"]) for row in rows],  # 63 bits do not fit in a JavaScript number
        "names": {name: coded([row[name] for row in rows]) for name in ("speaker", "condition")},
        "numbers": numbers,
        "errors": wrong,
        "texts": {"reference": [" ".join(row["reference"][:MOST_WORDS]) for row in rows]}
        | {name: [" ".join(s[2] for s in steps if s[0] in ("sub", "ins")) for steps in cut[name]] for name in systems},
        "steps": {name: ["".join(LETTERS[s[0]] for s in steps) for steps in cut[name]] for name in systems},
        "sound": [heard.get(row["key"], -1) for row in rows],
    }


def table(found: Readings, sidecar: str) -> Markup | None:
    """The frame that `hypotheses.js` fills. sidecar: name of the file with all hypotheses."""
    if not found.utterances:
        return None
    shown, all_of_them = f"{len(found.rows):,}", f"{found.utterances:,}"
    how_many: list[Any] = [f"All {all_of_them} utterances are shown."]
    if not found.whole:
        link = tag("a", sidecar, href=sidecar, download=True)
        how_many = [f"A sample of {shown} of {all_of_them} utterances, drawn by key. All are in ", link, "."]
    note = [
        *how_many,
        " Below each word of the reference is what each system recognised: ",
        *(tag("span", "wrong", class_="sub"), " ", tag("span", "missing", class_="del"), " "),
        tag("span", "extra", class_="ins"),
        ".",
    ]
    frame = paged_frame("readings", "Hypotheses") if found.rows else None
    return section("hypotheses", "Hypotheses", note, frame)


def write_all(score: Artifact, file: BinaryIO) -> None:
    """Every row of a *score* artifact as tab-separated text in UTF-8, its columns named in the first line."""
    names: list[str] = []
    for row in _rows(score):
        if not names:
            names = list(row)
            file.write(tsv_line(names).encode())
        file.write(tsv_line(row[name] for name in names).encode("utf-8", "replace"))
