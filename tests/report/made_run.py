"""A small run written with the real store: every artifact that the report reads, with audio and hostile text."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile

from megahour.core.receipts import Manifest
from megahour.core.schemas import ALIGNED_SEGMENTS, HYPOTHESES, UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.transfer import publish_text
from megahour.core.writer import ShardWriter
from megahour.report.stage import ROLES
from megahour.score.alignment import AlignmentCounts, recordings_table, spread

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
RATE_HZ = 16_000
CONDITIONS = ("clean", "office", "noisy")
WORDS = ["seven", "boats", "left", "the", "harbour", "before", "dawn", "and", "nobody", "saw", "them", "again"]
Fill = Callable[[ShardWriter], None]


def artifact(root: Path, name: str, stage: str, shards: list[Fill], summary: dict[str, Any] | None = None) -> Artifact:
    """A finished artifact whose shards are filled by the given functions."""
    made = Artifact(root / name)
    receipts = []
    for shard, fill in enumerate(shards):
        with ShardWriter(made, shard, "f") as out:
            fill(out)
            receipts.append(out.commit())
    made_with = {"megahour": "0.1.0", "commit": "a1b2c3", "torch": "2.7.0" if stage != "train" else f"2.8.0{HOSTILE}"}
    timing = {"seconds": 12.5 * (len(name) % 7), "workers": 2, "made_with": made_with}
    publish_text(made.fs, made.path("timings/total.json"), json.dumps(timing))
    counts = receipts[0].counts
    for receipt in receipts[1:]:
        counts.add(receipt.counts)
    digest = content_digest(receipts, summary or {})
    finish(made, receipts, Manifest(stage, 1, "f", digest, {}, {}, len(receipts), counts, summary or {}))
    return made


def spoken(key: int) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Words, their start and end samples, and a tone for each of them."""
    rng = np.random.default_rng(key)
    words = [WORDS[i] for i in rng.integers(0, len(WORDS), 5 + key % 4)]
    if key % 6 == 0:
        words[1] = HOSTILE.replace(" ", "\u00a0")
    lengths = rng.integers(3000, 7000, len(words))
    starts = np.cumsum([1600, *(lengths[:-1] + 1200)])
    signal = rng.normal(0, 0.004, int(starts[-1] + lengths[-1] + 1600))
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        t = np.arange(length) / RATE_HZ
        signal[start : start + length] += (
            np.sin(2 * np.pi * (180 + 40 * k) * t) * np.hanning(length) * rng.uniform(0.2, 0.7)
        )
    return words, starts, starts + lengths, signal


def fill_utterances(shard: int, n: int) -> Fill:
    def fill(out: ShardWriter) -> None:
        rows = []
        with out.open(".tar") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for key in range(shard * n, shard * n + n):
                words, starts, ends, signal = spoken(key)
                data = io.BytesIO()
                soundfile.write(data, np.clip(signal, -1, 1), RATE_HZ, format="FLAC", subtype="PCM_16")
                info = tarfile.TarInfo(f"{key}.flac")
                info.size = len(data.getvalue())
                offset = file.tell() + tarfile.BLOCKSIZE
                tar.addfile(info, io.BytesIO(data.getvalue()))
                sure = np.random.default_rng(key).beta(8, 2, len(words))
                rows.append(
                    {
                        "key": key,
                        "recording": shard,
                        "offset": offset,
                        "size": info.size,
                        "start_samples": 0,
                        "end_samples": len(signal),
                        "samples": len(signal),
                        "rate_hz": RATE_HZ,
                        "speaker": f"speaker {key % 5}",
                        "language": "en",
                        "licence": "CC0-1.0",
                        "attribution": "",
                        "condition": CONDITIONS[key % 3],
                        "created_s": 0,
                        "raw": " ".join(words),
                        "text": " ".join(words),
                        "words": words,
                        "word_start_samples": starts,
                        "word_end_samples": ends,
                        "word_confidence": sure,
                        "confidence": float(sure.mean()),
                        "split": "test",
                    }
                )
                out.came_in()
                out.kept()
        out.drop("too-long", 3)
        out.came_in(3)
        out.table(pa.Table.from_pylist(rows, schema=UTTERANCES))

    return fill


def fill_recordings(out: ShardWriter) -> None:
    out.came_in(40)
    out.kept(36)
    out.drop("licence", 2)
    out.quarantine("r1.wav", "truncated-audio", "the header says 9 s, the file holds 4 s")
    out.quarantine(HOSTILE, "empty-transcript", HOSTILE)


def fill_alignment(out: ShardWriter) -> None:
    rng = np.random.default_rng(0)
    confidence = rng.beta(6, 1.5, 400)
    kept = confidence > 0.6
    n, numbers = len(kept), np.arange(len(kept))
    values = [
        numbers,
        numbers,
        kept,
        np.where(kept, "", "low-confidence"),
        confidence.astype(np.float32),
        numbers,
        numbers,
        -np.log(confidence),
    ]
    columns = [pa.array(v, field.type) for v, field in zip(values, ALIGNED_SEGMENTS, strict=True)]
    out.table(pa.Table.from_arrays(columns, schema=ALIGNED_SEGMENTS), ".segments.parquet")
    out.came_in(n)
    out.kept(int(kept.sum()))
    out.drop("low-confidence", int((~kept).sum()))


def fill_model(role: str) -> Fill:
    best = {"baseline": 0.71, "teacher": 0.8, "student": 0.78}[role]

    def fill(out: ShardWriter) -> None:
        rows = []
        for i in range(1, 21):
            accuracy = best * (1 - np.exp(-i / 4))
            data = "unlabelled" if role == "student" and i % 4 else "labelled"
            row = {"epoch": i // 5, "step": 50 * i, "data": data, "loss": 3.2 * np.exp(-i / 6) + 0.7}
            row |= {"accuracy": accuracy + 0.03, "held_out_accuracy": accuracy, "learning_rate": 1e-3}
            rows.append(row | {"held_out_loss": 3.1 * np.exp(-i / 7) + 1.6 - best})
        out.text("".join(json.dumps(row) + "\n" for row in rows), ".curves.jsonl")
        out.came_in(900)
        out.kept(900)

    return fill


def said(key: int, system: str) -> str:
    """A system's text with occasional errors, fewer for the student."""
    words = spoken(key)[0]
    rng = np.random.default_rng([key, len(system)])
    heard = []
    for word in words:
        luck = rng.random() * (1 if system == "baseline" else 2)
        heard += [] if luck < 0.08 else ["votes"] if luck < 0.25 else [word, "the"] if luck < 0.3 else [word]
    return " ".join(heard)


def fill_hypotheses(system: str, keys: range) -> Fill:
    def fill(out: ShardWriter) -> None:
        rows = [{"key": k, "model": system, "text": said(k, system), "score": 0.0, "frames": 1} for k in keys]
        out.table(pa.Table.from_pylist(rows, schema=HYPOTHESES))
        out.came_in(len(keys))
        out.kept(len(keys))

    return fill


def fill_score(keys: range) -> Fill:
    def fill(out: ShardWriter) -> None:
        table = []
        for i, condition in enumerate((*CONDITIONS, "all")):
            base, student = (0.12 + 0.09 * i, 0.08 + 0.07 * i) if condition != "all" else (0.212, 0.151)
            row = {
                "condition": condition,
                "utterances": 240 if condition == "all" else 80,
                "speakers": 8,
                "words": 2160,
            }
            row |= {"wer_baseline": base, "wer_baseline_interval": [base * 0.9, base * 1.12], "cer_baseline": base / 2}
            row |= {"wer_student": student, "wer_student_interval": [student * 0.88, student * 1.1]}
            row |= {"werr": 1 - student / base, "werr_interval": [0.15, 0.36], "probability_of_improvement": 0.994}
            table.append(row)
        rates = {"utterances": 10, "words": 70, "wer_baseline": 0.2}
        speakers = [{"speaker": f"s{i}", **rates, "wer_student": 0.1 * i} for i in range(5)]
        out.json({"table": table, "references": "text", "missing_hypotheses": {}, "speakers": speakers}, ".json")
        columns = {
            "key": list(keys),
            "condition": [CONDITIONS[k % 3] for k in keys],
            "speaker": [f"s{k % 5}" for k in keys],
        }
        columns["reference"] = [" ".join(spoken(k)[0]) for k in keys]
        for system in ("baseline", "student"):
            columns[system] = [said(k, system) for k in keys]
        out.table(pa.table(columns))
        out.came_in(len(keys))
        out.kept(len(keys))

    return fill


def fill_alignment_scores(out: ShardWriter) -> None:
    """Three recordings: one right, one late, and one that was refused."""
    rows, total = [], AlignmentCounts()
    for number, (name, late_ms) in enumerate({"right": 0.0, HOSTILE: 900.0, "refused": None}.items()):
        tally = AlignmentCounts(
            recordings=1, refused=int(late_ms is None), spoken_cues=5, unspoken_cues=2, unspoken_kept=number % 2
        )
        if late_ms is not None:
            tally.start_ms, tally.end_ms = [np.full(40, late_ms)], [np.full(40, late_ms / 2)]
        rows.append({"key": number, "name": name, **tally.row("clean")})
        total.add(tally)
    edges = [*range(-500, 501, 20)]
    histogram = {"edges_ms": edges, "start": spread(total.start_ms, edges), "end": spread(total.end_ms, edges)}
    out.json({"table": [total.row("clean"), total.row("all")], "histogram": histogram}, ".json")
    out.table(recordings_table(rows))
    out.came_in(3)
    out.kept(3)


def make_run(root: Path) -> dict[str, Artifact]:
    """Artifacts by their role in the report."""
    sets = {
        "labelled": {"utterances": 300, "hours": 0.31, "speakers": 4},
        "test": {"utterances": 240, "hours": 0.2, "speakers": 8},
    }
    run = {
        "recordings": artifact(root, "recordings", "ingest", [fill_recordings], {"hours": 3.27}),
        "alignment": artifact(root, "alignment", "align", [fill_alignment]),
        "utterances": artifact(root, "utterances", "cut", [fill_utterances(0, 30), fill_utterances(1, 30)]),
        "selection": artifact(
            root, "selection", "select", [lambda out: (out.came_in(540), out.kept(540))[0]], {"sets": sets}
        ),
        "baseline": artifact(root, "baseline", "train", [fill_model("baseline")]),
        "teacher": artifact(root, "teacher", "train", [fill_model("teacher")]),
        "student": artifact(root, "student", "train", [fill_model("student")]),
        "score": artifact(root, "score", "score", [fill_score(range(10, 60))]),
        "score_alignment": artifact(root, "score-alignment", "score-alignment", [fill_alignment_scores]),
    }
    for system in ("baseline", "student"):
        run[f"{system}_hypotheses"] = artifact(
            root, f"{system}-decoded", "decode", [fill_hypotheses(system, range(10, 60))]
        )
    assert set(run) <= set(ROLES)
    return run


__all__ = ["HOSTILE", "artifact", "make_run"]
