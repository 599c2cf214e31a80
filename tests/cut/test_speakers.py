"""The split for which the utterances of a recording are held out, with one or several speakers."""

from __future__ import annotations

from typing import Any

import pytest

from megahour.cut.params import CutParams
from megahour.cut.speakers import Speakers

P = CutParams(test_share=0.3, dev_share=0.3)


def speakers(own: str, *labels: str, channel: int = 0) -> Speakers:
    recording: dict[str, Any] = {"speaker": own, "source": "talk.wav", "name": "talk", "channel": channel}
    return Speakers(recording, [{"speaker": label} for label in labels])


@pytest.mark.parametrize("labels", [(), ("Speaker 1", "Speaker 2"), ("ANN", "BOB")])
def test_channels_of_a_file_are_in_one_split(labels: tuple[str, ...]) -> None:
    for file in range(20):
        sides = [speakers(f"call{file}.wav/{channel}", *labels, channel=channel) for channel in (0, 1)]
        splits = {side.split(P, speaker) for side in sides for speaker in side.everyone} - {""}
        assert len(splits) == 1


def test_who_has_only_a_number_is_held_out_with_the_recordings_speaker() -> None:
    for number in range(20):
        alone, dialogue = speakers(f"smith{number}"), speakers(f"smith{number}", "Speaker 1", "Speaker 2")
        split = alone.split(P, alone.own)
        assert {dialogue.split(P, speaker) for speaker in dialogue.everyone} == {split}


def test_a_number_where_no_speaker_is_known_is_held_out_with_the_recording() -> None:
    found = {
        Speakers({"speaker": "", "source": "", "name": f"talk{n}", "channel": 0}, cues).split(P, "/Speaker 1")
        for n in range(20)
        for cues in [[{"speaker": "Speaker 1"}, {"speaker": "Speaker 2"}]]
    }
    assert found == {"train", "dev", "test"}


def test_a_known_speaker_wins_over_one_label_and_several_labels_win_over_the_recording() -> None:
    assert speakers("ann", "BOB").of(["BOB"]) == "ann"
    assert speakers("ann", "BOB", "bob").of(["BOB"]) == "ann", "two spellings of one name"
    two = speakers("ann", "BOB", "CAROL", "")
    assert two.of(["BOB"]) == "BOB"
    assert two.of(["BOB", "bob"]) == "bob", "the same person, as the last in order writes it"
    assert two.of(["BOB", "CAROL"]) == "ann", "an utterance of two"
    assert two.of([]) == two.of([""]) == "ann"
    assert speakers("ann", "Ann", "BOB").of(["ANN"]) == "ann", "the recording's own spelling"
    assert two.everyone == {"BOB", "CAROL", "ann"}


def test_one_label_counts_where_the_recordings_speaker_is_not_known() -> None:
    for own in ("", "https://radio.org/talk.mp3", "talk.wav"):
        assert speakers(own, "BOB").of(["BOB"]) == "BOB"
    assert speakers("", "BOB").everyone == {"BOB"}
    assert speakers("").everyone == {""}


def test_a_label_that_names_no_one_is_this_recordings_alone() -> None:
    assert speakers("ann", "Speaker 1", "Speaker 2").of(["Speaker 1"]) == "ann/Speaker 1"


def test_nothing_of_a_recording_is_in_two_splits_whoever_speaks() -> None:
    for number in range(40):
        made = speakers("host", f"guest {number}", f"caller {number}")
        splits = {speaker: made.split(P, speaker) for speaker in made.everyone}
        kept = set(splits.values()) - {""}
        assert len(kept) == 1
        alone = {s: speakers(s).split(P, s) for s in made.everyone if s != "host"}
        strictest = next(split for split in ("test", "dev", "train") if split in {*alone.values(), *kept})
        assert kept == {strictest}
        assert all(splits[s] == (strictest if alone[s] == strictest else "") for s in alone)
