"""`ingest --recognised`: a folder of a recogniser's JSON in addition to human transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_media import encode, murmur, put
from test_candidates import ENGLISH, FRENCH, srt

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

SENTENCES = [f"{part}." for part in ENGLISH.rstrip(".").split(". ")]


def whisper(texts: list[str], starts: list[float]) -> str:
    """As faster-whisper writes it."""
    segments = [
        {
            "id": i,
            "start": start,
            "end": start + 1,
            "text": f" {text}",
            "words": [{"start": start, "end": start, "word": text}],
        }
        for i, (start, text) in enumerate(zip(starts, texts, strict=True))
    ]
    return json.dumps({"language": "en", "segments": segments})


def ingest(tmp_path: Path, **params: Any) -> tuple[Artifact, dict[str, list[tuple[int, int, int]]]]:
    """The recordings, and (cue, transcript, start) of each by name."""
    p = IngestParams(source=str(tmp_path / "talks"), recognised=str(tmp_path / "whisper"), licence="CC0-1.0", **params)
    out = Artifact(tmp_path / "out")
    run_stage(Ingest(), p, {}, out, LocalEngine(1))
    names = {row["key"]: row["name"] for row in out.read_table(0).to_pylist()}
    cues: dict[str, list[tuple[int, int, int]]] = {name: [] for name in names.values()}
    for cue in out.read_table(0, ".cues.parquet").to_pylist():
        cues[names[cue["key"]]].append((cue["cue"], cue["transcript"], cue["start_samples"]))
    return out, cues


def talk(tmp_path: Path, name: str, seed: int, text: str = "") -> None:
    put(tmp_path, f"talks/{name}.wav", encode(murmur(4.0, seed=seed)))
    if text:
        put(tmp_path, f"talks/{name}.srt", text.encode())


def test_it_stands_behind_the_others_under_a_number_of_its_own(tmp_path: Path) -> None:
    talk(tmp_path, "a/both", 1, srt((0.5, SENTENCES[0])))
    talk(tmp_path, "only", 2)
    talk(tmp_path, "none", 3, srt((0.5, SENTENCES[0])))
    put(tmp_path, "whisper/both.json", whisper(SENTENCES, [0.0, 2.0]).encode())
    put(tmp_path, "whisper/only.json", whisper(SENTENCES, [0.0, 2.0]).encode())
    out, cues = ingest(tmp_path)
    assert cues == {
        "a/both": [(0, 0, 8000), (1, -1, 0), (2, -1, 32000)],
        "only": [(0, -1, 0), (1, -1, 32000)],
        "none": [(0, 0, 8000)],
    }
    stats = out.receipts()[0].stats
    assert (stats["not_recognised"], stats["transcripts"]) == (1, 2)


@pytest.mark.parametrize("starts", [[9.0, 0.0], [900.0, 901.0]])
def test_times_that_cannot_be_true_go_and_the_words_stay(tmp_path: Path, starts: list[float]) -> None:
    talk(tmp_path, "talk", 1)
    put(tmp_path, "whisper/talk.json", whisper(SENTENCES, starts).encode())
    assert ingest(tmp_path)[1] == {"talk": [(0, -1, -1), (1, -1, -1)]}


def test_one_that_cannot_be_read_costs_no_recording(tmp_path: Path) -> None:
    for i, text in enumerate(["{", '{"segments": []}', whisper([FRENCH], [0.0])]):
        talk(tmp_path, f"talk{i}", i, srt((0.5, SENTENCES[0])))
        put(tmp_path, f"whisper/talk{i}.json", text.encode())
    talk(tmp_path, "alone", 4)
    put(tmp_path, "whisper/alone.json", b"{")
    out, cues = ingest(tmp_path, max_bad=1.0)
    assert cues == {f"talk{i}": [(0, 0, 8000)] for i in range(3)}
    stats = out.receipts()[0].stats
    reasons = ("recognised_unreadable-transcript", "recognised_empty-transcript", "recognised_language-mismatch")
    assert [stats[name] for name in reasons] == [1, 1, 1]
    (left,) = out.read_table(0, ".left_out.parquet").to_pylist()
    assert (left["name"], left["reason"]) == ("alone", "unreadable-transcript")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    talk(tmp_path, "talk", 1)
    put(tmp_path, "whisper", b"")
    with pytest.raises(ConfigError, match="not a folder"):
        ingest(tmp_path)
