"""The clips of a selection: speakers take turns, and only what may have its turn is held."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from made_artifacts import write_artifact
from made_audio import RATE_HZ, audio_artifact, speech

from megahour.core.errors import ConfigError
from megahour.core.schemas import RECORDINGS
from megahour.core.store import Artifact
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer
from megahour.export import clips
from megahour.export.clips import clips_at, clips_of_files, clips_of_sets


class Row(dict[str, Any]):
    """A row of a selection that counts how many of them are held."""

    held = most = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        Row.held += 1
        Row.most = max(Row.most, Row.held)

    def __del__(self) -> None:
        Row.held -= 1


class Shard:
    """A shard of audio, of whose clips the samples are their sizes."""

    def __init__(self, *place: Any) -> None: ...
    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *error: object) -> None: ...
    def read(self, offset: int, size: int) -> Any:
        return np.array([size], np.int16)


@pytest.mark.parametrize("speakers", [1, 2, 40])
def test_speakers_take_turns_and_only_as_many_are_held_as_have_one(
    speakers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(speakers)
    spoken = [(f"s{rng.integers(speakers)}", int(rng.choice([8000, 16_000]))) for _ in range(400)]
    columns = {"shard": 0, "offset": 0, "text": ""}
    monkeypatch.setattr(clips, "ShardAudio", Shard)
    monkeypatch.setattr(
        clips,
        "_rows",
        lambda *_: (
            Row(key=key, size=key, speaker=who, rate_hz=rate, **columns) for key, (who, rate) in enumerate(spoken)
        ),
    )
    Row.held = Row.most = 0
    found = clips_of_sets("selection", "utterances", 5, 8000)
    of_speaker: dict[str, list[str]] = {}
    for key, (who, rate) in enumerate(spoken):
        if rate == 8000:
            of_speaker.setdefault(who, []).append(str(key))
    turns = chain.from_iterable(zip_longest(*of_speaker.values()))
    assert [clip.name for clip in found] == [name for name in turns if name is not None][:5]
    assert Row.most <= 5 * 5 + 3


def test_the_mark_of_an_editor_is_no_part_of_a_clips_text(tmp_path: Path) -> None:
    """Windows' editors begin a text with a byte-order mark: the first word of each clip counted as an error."""
    soundfile.write(tmp_path / "talk.wav", np.zeros(1600), 8000)
    (tmp_path / "talk.txt").write_bytes(b"\xef\xbb\xbfnine  one\r\n")
    assert [clip.said for clip in clips_of_files([str(tmp_path)], 8000)] == ["nine one"]


@pytest.mark.parametrize(
    ("written", "language", "said"),
    [("Nine, ONE!\n", "en", "nine one"), ("Um 5.\n", "de", "um fünf"), ("[noise]\n", "en", "")],
)
def test_the_text_of_a_clip_is_normalised_as_training_texts_are(
    written: str, language: str, said: str, tmp_path: Path
) -> None:
    """Capitals, punctuation and digits counted as errors of the model: 100 % of the words of `Nine, ONE!`."""
    soundfile.write(tmp_path / "talk.wav", np.zeros(1600), 8000)
    (tmp_path / "talk.txt").write_text(written, "utf-8")
    assert [clip.said for clip in clips_of_files([str(tmp_path)], 8000, language)] == [said]


def test_an_artifact_of_utterances_gives_clips_beside_files(tmp_path: Path) -> None:
    """One in turn of each speaker, as many as asked for, at the model's rate."""
    spoken = [speech(key, 0.5 + 0.1 * key) for key in range(5)]
    made = audio_artifact(tmp_path / "utterances", [spoken[:2], spoken[2:]])
    soundfile.write(tmp_path / "talk.wav", spoken[0], RATE_HZ)
    found = clips_at([made.url, str(tmp_path / "talk.wav")], 3, RATE_HZ)
    assert [clip.name for clip in found] == ["0", "1", "2", "talk"]
    for clip, samples in zip(found, [*spoken[:3], spoken[0]], strict=True):
        np.testing.assert_array_equal(clip.samples, samples)
    (half,) = clips_at([made.url], 1, RATE_HZ // 2)
    assert len(half.samples) == len(spoken[0]) // 2


def recordings(folder: Path, spoken: list[Any]) -> Artifact:
    """A *recordings* artifact of one shard."""
    rows = []
    with (folder.parent / "tar").open("w+b") as file:
        with tar_writer(file) as tar:
            for key, samples in enumerate(spoken):
                offset, size = tar.add(f"{key}.flac", encode_flac(samples, RATE_HZ))
                place = {"key": key, "offset": offset, "size": size, "samples": len(samples), "rate_hz": RATE_HZ}
                rows.append({name: place.get(name) for name in RECORDINGS.names})
        file.seek(0)
        files = {".tar": file.read(), ".parquet": pa.Table.from_pylist(rows, RECORDINGS)}
    return write_artifact(folder, [({}, files)], {}, stage="ingest")


def test_long_recordings_give_their_middle(tmp_path: Path) -> None:
    """A graph takes all of a clip at once, in memory that may grow with the square of its length."""
    spoken = [speech(0, 1.0), speech(1, 50.0)]
    short, middle = clips_at([recordings(tmp_path / "recordings", spoken).url], 8, RATE_HZ)
    np.testing.assert_array_equal(short.samples, spoken[0])
    np.testing.assert_array_equal(middle.samples, spoken[1][15 * RATE_HZ : 35 * RATE_HZ])


def test_what_is_neither_audio_nor_an_artifact_with_audio_is_refused_with_what_would_do(tmp_path: Path) -> None:
    empty = recordings(tmp_path / "empty", [])
    features = write_artifact(tmp_path / "features", [], {}, stage="features")
    for url in (empty.url, features.url, str(tmp_path / "nothing")):
        with pytest.raises(ConfigError, match="artifacts of utterances or recordings, such as RUN/utterances"):
            clips_at([url], 8, RATE_HZ)
