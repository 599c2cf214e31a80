"""`score-speech` finds the reference of every utterance, in whatever shard it is."""

from __future__ import annotations

from pathlib import Path

from made_utterances import utterance, write_utterances

from megahour.tts.score_shard import _heard, places_of


def test_utterances_of_one_recording_are_found_in_all_shards_of_the_reference(tmp_path: Path) -> None:
    rows = [utterance(f"u{number}", "someone", key=number) for number in range(6)]
    reference = write_utterances(tmp_path / "reference", [rows[:4], rows[4:5], rows[5:]])
    found = places_of([(99, key) for key in range(6)], reference, 0)
    assert {key: shard for key, (shard, _) in found.items()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 2}
    assert set(places_of([(2, 98), (3, 97)], reference, 0)) == {2, 3}


def test_the_dots_of_a_russian_letter_are_no_error() -> None:
    row = {"text": "нажмите решётку или ещё", "language": "ru"}
    assert _heard(row, "Нажмите решетку, или ещё.") == {"heard": "нажмите решетку или ещё", "words": 4, "errors": 0}
    assert _heard(row, "нажмите решетки")["errors"] == 3
