"""Texts spoken by many voices of espeak-ng, and real and synthetic utterances as one artifact."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import soundfile
from made_artifacts import write_artifact
from made_voices import ran
from pydantic import ValidationError

from megahour.core.errors import ConfigError
from megahour.core.records import key_of
from megahour.core.store import Artifact
from megahour.corpus.generate.voices import voice
from megahour.select.combine_stage import Combine
from megahour.select.params import CombineParams
from megahour.tts.params import SpeakParams
from megahour.tts.speak_stage import Speak

LINES = ["one two", "three"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    shards: list[tuple[dict[str, str], dict[str, Any]]] = [({}, {".txt": f"{line}\n".encode()}) for line in LINES]
    return write_artifact(tmp_path_factory.mktemp("texts"), shards, {})


def spoken(texts: Artifact, folder: Path, **params: Any) -> Artifact:
    return ran(Speak(), SpeakParams(espeak="en-us", rate_hz=8_000, **params), {"texts": texts}, folder)


def rows_of(said: Artifact) -> list[dict[str, Any]]:
    return [row for receipt in said.receipts() for row in said.read_table(receipt.shard).to_pylist()]


def sound(said: Artifact, shard: int, row: dict[str, Any]) -> bytes:
    with said.open(shard, ".tar") as tar:
        tar.seek(row["offset"])
        samples, rate_hz = soundfile.read(io.BytesIO(tar.read(row["size"])), dtype="int16")
    assert (len(samples), rate_hz) == (row["samples"], row["rate_hz"])
    return bytes(samples.tobytes())


def test_each_text_is_spoken_several_times_by_drawn_voices_in_drawn_rooms(texts: Artifact, tmp_path: Path) -> None:
    said = spoken(texts, tmp_path / "many", voices=70, times=8, conditions=["clean", "far"])
    rows = rows_of(said)
    assert [row["text"] for row in rows] == [line for line in LINES for _ in range(8)]
    assert len({row["key"] for row in rows}) == 16
    known = {voice(number).name for number in range(70)}
    assert {row["speaker"] for row in rows} <= known
    assert len({row["speaker"] for row in rows}) > 8
    assert {row["condition"] for row in rows} == {"clean", "far"}
    assert len({sound(said, 0, row) for row in rows[:8]}) == 8
    assert [receipt.counts.came_in for receipt in said.receipts()] == [8, 8]


def test_the_first_time_is_as_without_the_others(texts: Artifact, tmp_path: Path) -> None:
    """What was spoken before there were `voices`, `times` and `conditions` is spoken so still."""
    once, twice = (rows_of(spoken(texts, tmp_path / str(times), times=times)) for times in (1, 2))
    assert [row["key"] for row in once] == [row["key"] for row in twice[::2]]
    assert [(row["samples"], row["snr_db"]) for row in once] == [(r["samples"], r["snr_db"]) for r in twice[::2]]
    assert {row["speaker"] for row in twice} == {"espeak-ng"}
    assert once[0]["key"] == key_of("speak", 0, "en-us", once[0]["recording"])
    assert {row["condition"] for row in once} == {"synthetic"}


def test_voices_are_those_of_espeak() -> None:
    with pytest.raises(ValidationError, match="for a model's voices, set speakers"):
        SpeakParams(voices=3)


def test_several_corpora_become_one(texts: Artifact, tmp_path: Path) -> None:
    one, other = spoken(texts, tmp_path / "one"), spoken(texts, tmp_path / "other", seed=1, voices=5)
    inputs = {"utterances": one, "second": other}
    both = ran(Combine(), CombineParams(prefixes=["", "tts-"]), inputs, tmp_path / "both")
    assert both.manifest.shards == 4
    assert both.summary["utterances"] == {"utterances": 2, "second": 2}
    for shard, (source, of) in enumerate([(one, 0), (one, 1), (other, 0), (other, 1)]):
        rows, before = both.read_table(shard).to_pylist(), source.read_table(of).to_pylist()
        prefix = "" if source is one else "tts-"
        assert [str(row) for row in rows] == [str({**row, "speaker": prefix + row["speaker"]}) for row in before]
        assert sound(both, shard, rows[0]) == sound(source, of, before[0])
        assert both.receipt_of(shard).stats == source.receipt_of(of).stats
    assert {row["speaker"] for row in rows_of(both)} >= {"espeak-ng"}


def test_what_cannot_be_combined_is_named(texts: Artifact, tmp_path: Path) -> None:
    one = spoken(texts, tmp_path / "one")
    with pytest.raises(ConfigError, match="nothing to combine"):
        Combine().check(CombineParams(), ["utterances"])
    with pytest.raises(ConfigError, match="1 prefixes for 2 inputs"):
        Combine().check(CombineParams(prefixes=["a"]), ["utterances", "third"])
    with pytest.raises(ConfigError, match="utterances and second have equal contents"):
        Combine().plan(CombineParams(), {"utterances": one, "second": one})


def test_an_unknown_speaker_gets_no_prefix(tmp_path: Path) -> None:
    table = {".parquet": pa.table({"key": [1, 2], "speaker": ["", "a"]}), ".tar": b""}
    one, other = (write_artifact(tmp_path / name, [({}, table)], {"of": name}) for name in "ab")
    both = ran(Combine(), CombineParams(prefixes=["x-", ""]), {"utterances": one, "second": other}, tmp_path / "both")
    assert [both.read_table(shard)["speaker"].to_pylist() for shard in (0, 1)] == [["", "x-a"], ["", "a"]]
