"""The clips of a selection: speakers take turns, and only what may have its turn is held."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from megahour.export import clips
from megahour.export.clips import clips_of_files, clips_of_sets


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
    assert Row.most <= 5 * 5 + 2


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
