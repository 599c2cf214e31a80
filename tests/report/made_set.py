"""A data set with every column of the *utterances* table, what was dropped, its recordings, and hostile text."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile
from made_run import HOSTILE, RATE_HZ, artifact, spoken

from megahour.core.receipts import Manifest
from megahour.core.schemas import CUES, DROPPED, LEFT_OUT, RECORDINGS, UTTERANCES
from megahour.core.store import Artifact
from megahour.core.transfer import publish_text
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import tar_writer

BIDI = "abc \u202egnp.exe \u2067\u05d0\u05d1"
LONG = "endless " * 13_000  # 104 kB
REASONS = ("high-cer", "low-snr", HOSTILE)


def utterance(key: int, sounds: list[tuple[int, int, int]], special: bool) -> dict[str, Any]:
    """A row whose sound is one of eight; of the special ones the first four have hostile text."""
    words, starts, ends, _ = spoken(key % 8)
    words = [word.replace("\u00a0", " ") for word in words]
    offset, size, samples = sounds[key % 8]
    starts, ends = list(map(int, starts)), list(map(int, ends))
    if special and key == 2:
        words[0] = BIDI
    if special and key == 3:
        words[2], ends[1] = LONG, starts[1]  # and a word of no length
    raw, places, stops = "", [], []
    for i, word in enumerate(words):
        written = "7" if word == "seven" else word.capitalize() if i == 0 else word
        places.append(len(raw) + 1)
        raw += f" {written}"
        stops.append(len(raw))
    cer = float("nan") if key % 11 == 0 else (key % 37) / 100
    return {
        **dict.fromkeys(UTTERANCES.names, 0),
        **{"key": key, "recording": key % 3, "offset": offset, "size": size, "samples": samples, "rate_hz": RATE_HZ},
        **{
            "speaker": f"speaker {key % 23}",
            "language": ("en", "de")[key % 2],
            "licence": ("CC0-1.0", "CC-BY-4.0")[key % 2],
        },
        **{"attribution": f"author {key % 2}", "condition": "", "source": f"site {key % 4}", "split": "train"},
        **{"raw": raw, "text": " ".join(words), "words": words, "word_start_samples": starts, "word_end_samples": ends},
        **{"word_offset": places, "word_end": stops, "word_confidence": [0.9] * len(words), "name": f"talk-{key % 3}"},
        **{"heard": " ".join([*words[1:], "indeed"]), "cer": cer, "edge_cer": cer / 2, "snr_db": float(key % 40)},
        **{"confidence": (key % 100) / 100, "tier": "clean" if key % 37 < 10 else "dirty", "wildcard_share": 0.0},
    }


def fill_set(first: int, n: int, special: bool = True) -> Any:
    def fill(out: ShardWriter) -> None:
        sounds = []
        with out.open(".tar") as file, tar_writer(file) as tar:
            for k in range(8):
                signal = spoken(k)[3]
                data = io.BytesIO()
                soundfile.write(data, np.clip(signal, -1, 1), RATE_HZ, format="FLAC", subtype="PCM_16")
                offset, size = tar.add(f"{k}.flac", data.getvalue())
                sounds.append((offset, size, len(signal)))
        rows = [utterance(key, sounds, special) for key in range(first, first + n)]
        out.table(pa.Table.from_pylist(rows, UTTERANCES))
        lost = [
            {"recording": i % 3, "name": f"talk-{i % 3}", "cue": i, "start_samples": 1000 * i if i % 2 else -1}
            | {
                "end_samples": 1000 * i + 9000,
                "text": f"lost {i} {HOSTILE}",
                "reason": REASONS[i % 3],
                "detail": "0.61",
            }
            for i in range(60)
        ]
        out.table(pa.Table.from_pylist(lost, DROPPED), ".dropped.parquet")
        out.came_in(n + 60)
        out.stat("audio_s", 60.0)
        out.kept(n)
        for reason in REASONS:
            out.drop(reason, 20)

    return fill


def fill_recordings(out: ShardWriter) -> None:
    signal = np.concatenate([spoken(k)[3] for k in range(4)])
    rows = []
    with out.open(".tar") as file, tar_writer(file) as tar:
        for key in range(3):
            data = io.BytesIO()
            soundfile.write(data, np.clip(signal, -1, 1), RATE_HZ, format="FLAC", subtype="PCM_16")
            offset, size = tar.add(f"{key}.flac", data.getvalue())
            row = {**dict.fromkeys(RECORDINGS.names, 0), "key": key, "offset": offset, "size": size}
            texts = {field.name: "" for field in RECORDINGS if pa.types.is_string(field.type)}
            rows.append({**row, **texts, "samples": len(signal), "rate_hz": RATE_HZ, "language": "en"})
    out.table(pa.Table.from_pylist(rows, RECORDINGS))
    cues = [
        {"key": i % 3, "cue": i, "start_samples": 500 * i, "end_samples": 500 * i + 8000, "raw": "", "transcript": 0}
        for i in range(0, 60, 4)
    ]
    out.table(pa.Table.from_pylist(cues, CUES), ".cues.parquet")
    lost = [
        {"name": HOSTILE, "reason": "truncated-audio", "bad": True, "seconds": 1800.0},
        {"name": "talk", "reason": "licence-unknown", "bad": False, "seconds": float("nan")},
    ]
    out.table(pa.Table.from_pylist(lost, LEFT_OUT), ".left_out.parquet")
    out.stat("audio_s", 5400.0)
    out.came_in(5)
    out.kept(3)
    out.quarantine(HOSTILE, "truncated-audio", f"{HOSTILE}: ends early")
    out.drop("licence-unknown")
    out.stats["examples"] = {"licence-unknown": [{"name": f"talk {HOSTILE}", "detail": "ask Bob"}]}


def make_set(root: Path, shards: int = 2, n: int = 40, special: bool = True) -> Artifact:
    """The utterances, with the recordings they were cut from beside them."""
    recordings = artifact(root, "recordings", "ingest", [fill_recordings])
    made = artifact(root, "utterances", "cut", [fill_set(i * n, n, special) for i in range(shards)])
    manifest = json.loads(made.manifest.to_json())
    manifest["inputs"] = {"recordings": recordings.manifest.digest}
    del manifest["format"]
    publish_text(
        made.fs, made.path("manifest.json"), Manifest.from_json(json.dumps({**manifest, "format": 1})).to_json()
    )
    return Artifact(made.url)


__all__ = ["HOSTILE", "LONG", "REASONS", "make_set"]
