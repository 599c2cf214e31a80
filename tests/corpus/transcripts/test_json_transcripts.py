"""JSON transcripts as recognisers and players write them: read with their times, or refused with a reason."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from json_shapes import AMAZON, HELLO, SHAPES, WHISPER, amazon_word

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.json_cues import find, json_cues
from megahour.corpus.transcripts.json_words import seconds
from megahour.corpus.transcripts.pairing import group_files
from megahour.corpus.transcripts.read import read_transcript

RATE = 1000  # samples are milliseconds


def cues(value: Any) -> list[Cue]:
    return json_cues(json.dumps(value), RATE)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_and_its_times(name: str) -> None:
    assert cues(SHAPES[name]) == HELLO


def test_a_text_beside_an_empty_list_of_segments() -> None:
    """As services answer without timestamps; it was an empty transcript."""
    found = cues({"text": "Hello there. How are you?", "segments": [], "language": "en"})
    assert found == [Cue(-1, -1, "Hello there. How are you?")]
    assert cues({"segments": []}) == []


def test_youtubes_files_belong_to_their_media() -> None:
    (group,) = group_files(["talk.mp4", "talk.en.json3", "talk.en.txt", "talk.json"])
    assert group == ("talk.mp4", ("talk.json", "talk.en.json3"), ("talk.json",), ("talk.en.txt",))
    found = read_transcript(json.dumps(SHAPES["YouTube json3"]).encode(), ".json3", RATE).cues
    assert found == HELLO


def test_a_number_beyond_all_bounds_is_no_time() -> None:
    assert [math.isnan(seconds(number)) for number in (10**400, -(10**30), 1e18, 10**12)] == [True, True, True, False]


def test_speakers_by_name_and_by_number() -> None:
    speakers = [{**WHISPER[0], "speaker": "Ann"}, {**WHISPER[1], "speaker": 0}]
    assert [cue.speaker for cue in cues({"segments": speakers})] == ["Ann", "0"]
    turns = {"items": [{"start_time": "0.5", "speaker_label": "spk_0"}, {"start_time": "2", "speaker_label": "spk_1"}]}
    older = {"items": [AMAZON[0], AMAZON[3]], "speaker_labels": {"segments": [turns]}}
    assert [(cue.raw, cue.speaker) for cue in cues({"results": older})] == [("Hello", "spk_0"), ("Good", "spk_1")]


def test_both_channels_of_a_call_are_read() -> None:
    """Deepgram with `multichannel`: a list of words for each."""
    said = [[("Hello.", 0.1), ("Fine.", 4)], [("How are you?", 2)]]
    words = [[{"word": word, "start": at, "end": at + 0.5} for word, at in channel] for channel in said]
    channels = [{"alternatives": [{"transcript": "", "words": each}]} for each in words]
    found = cues({"results": {"channels": channels}})
    assert [(cue.raw, cue.channel) for cue in found] == [("Hello.", "0"), ("How are you?", "1"), ("Fine.", "0")]


def test_two_who_talk_at_once_on_amazons_channels_are_not_mixed() -> None:
    """`items` has the words of all channels in order of time."""
    said = [("Hello", 0.5, "ch_0"), ("Yes", 0.6, "ch_1"), ("there", 1.0, "ch_0"), (".", None, "ch_0")]
    items = [amazon_word(word, at, (at or 0) + 0.4, channel_label=channel) for word, at, channel in said]
    found = cues({"results": {"items": items}})
    assert [(cue.raw, cue.channel) for cue in found] == [("Hello there.", "ch_0"), ("Yes", "ch_1")]


def test_googles_first_word_at_0_has_no_offset() -> None:
    words = [{"word": "Hello", "endOffset": "0.400s"}, {"word": "there", "startOffset": "0.5s", "endOffset": "1s"}]
    assert cues({"results": [{"alternatives": [{"transcript": "Hello there", "words": words}]}]}) == [
        Cue(0, 1000, "Hello there")
    ]


@pytest.mark.parametrize(
    "value",
    [
        {"utterances": [{"start": 0, "end": 900, "text": "Hello.", "channel": "2"}]},  # AssemblyAI
        {"recognizedPhrases": [{"channel": 2, "offsetInTicks": 0, "nBest": [{"display": "Hello."}]}]},  # Azure
        {"results": [{"channelTag": 2, "alternatives": [{"transcript": "Hello."}]}]},  # Google
        {"segments": [{"start": 0, "end": 1, "text": "Hello.", "channel": 2}]},
    ],
)
def test_a_channel_is_named_beside_its_text(value: Any) -> None:
    assert [(cue.raw, cue.channel) for cue in cues(value)] == [("Hello.", "2")]


def test_azures_phrases_of_several_channels_are_in_order_of_time() -> None:
    """Those of one channel come before those of the next; one without a time comes last."""
    said = [("Fine.", {"offsetInTicks": 4e7}), ("Bye.", {}), ("Hello.", {"offsetInTicks": 1e6}), ("So.", {})]
    phrases = [{"nBest": [{"display": text}], "durationInTicks": 1e6} | at for text, at in said]
    assert [cue.raw for cue in cues({"recognizedPhrases": phrases})] == ["Hello.", "Fine.", "Bye.", "So."]


def test_watson_names_speakers_by_the_starts_of_words() -> None:
    words = [["good", 0.5, 0.9], ["morning", 0.9, 1.5], ["%HESITATION", 1.5, 1.6], ["hi", 2.0, 2.4]]
    value = {
        "results": [
            {"final": True, "alternatives": [{"transcript": "good morning %HESITATION hi", "timestamps": words}]}
        ],
        "speaker_labels": [{"from": start, "to": end, "speaker": 1 if start > 1.5 else 0} for _, start, end in words],
    }
    assert cues(value) == [Cue(500, 1500, "good morning", "0"), Cue(2000, 2400, "hi", "1")]


def test_elevenlabs_channels_and_speakers() -> None:
    said = [("Hello.", 0.5, 0), ("Fine.", 2.5, 0), ("How are you?", 1.5, 1)]
    words = [{"text": t, "start": at, "end": at + 0.5, "speaker_id": f"speaker_{n}", "channel": n} for t, at, n in said]
    of_channels = [[{**w, "channel": None} for w in words if w["channel"] == n] for n in (0, 1)]
    expected = [("Hello.", "speaker_0", "0"), ("How are you?", "speaker_1", "1"), ("Fine.", "speaker_0", "0")]
    for value in (
        {"words": words},
        {"transcripts": [{"channel_index": n, "words": w} for n, w in enumerate(of_channels)]},
    ):
        assert [(cue.raw, cue.speaker, cue.channel) for cue in cues(value)] == expected


def test_characters_between_which_elevenlabs_has_no_space_are_one_word() -> None:
    words = [{"text": char, "start": i / 10, "end": i / 10 + 0.1, "type": "word"} for i, char in enumerate("你好")]
    space = {"text": " ", "start": 0.2, "end": 0.2, "type": "spacing"}
    assert [cue.raw for cue in cues({"words": [*words, space, {**words[0], "start": 0.2, "end": 0.3}]})] == ["你好 你"]


def test_whole_seconds_of_utterances_are_no_milliseconds() -> None:
    """JavaScript writes 3.0 as 3: a fraction within one of the words decides."""
    words = [{"word": "Hello", "start": 1, "end": 1.5}]
    assert cues({"utterances": [{"start": 1, "end": 3, "text": "Hello", "words": words}]}) == [Cue(1000, 3000, "Hello")]


def test_words_without_marks_are_parted_at_pauses() -> None:
    spoken = [{"word": "one", "start": 0, "end": 0.4}, {"word": "two", "start": 0.5, "end": 1}]
    spoken += [{"word": "three", "start": 2.5, "end": 3}]
    assert [cue.raw for cue in cues({"result": spoken})] == ["one two", "three"]
    assert max(len(cue.raw.split()) for cue in cues({"result": [spoken[1]] * 200})) == 40


def test_a_text_that_lacks_one_of_its_words_is_left_for_the_words() -> None:
    spoken = [{"word": "one", "start": 0, "end": 0.4}, {"word": "two", "start": 0.5, "end": 1}]
    assert [cue.raw for cue in cues({"text": "One, two.", "words": spoken})] == ["one two"]
    assert [cue.raw for cue in cues({"text": "one, two.", "words": spoken})] == ["one, two."]
    assert [cue.raw for cue in cues({"text": "No words.", "words": ["no", "words"]})] == ["No words."]


def test_a_word_of_whisper_without_a_space_goes_on_with_the_one_before() -> None:
    parts = [{"word": word, "start": i, "end": i + 0.9} for i, word in enumerate((" A", " co", "-op", " closed."))]
    assert [cue.raw for cue in cues(parts)] == ["A co-op closed."]


@pytest.mark.parametrize(
    "value",
    [
        *(3, None, "a string", {}, {"licence": "CC0-1.0", "title": "A talk"}, {"transcript": "talk.srt"}),
        *([1, 2], {"segments": [1]}, {"chunks": [{"text": 3}]}, {"events": ["x"]}, {"transcription": [{}]}),
        *({"results": {"items": [{"type": "pronunciation"}]}}, {"results": {"channels": []}}, {"results": {}}),
        *({"recognizedPhrases": [{"nBest": []}]}, {"monologues": [{}]}, {"fragments": [{"lines": 3}]}),
        {"transcript": {"transcript": {"transcript": {"transcript": {"transcript": {"transcript": {"cues": []}}}}}}},
    ],
)
def test_what_is_no_transcript_is_refused_by_its_reason(value: Any) -> None:
    with pytest.raises(BadRecord) as caught:
        cues(value)
    assert caught.value.reason == "unreadable-transcript"


def test_the_reason_names_what_there_is() -> None:
    with pytest.raises(BadRecord, match="an object with licence, title"):
        cues({"licence": "CC0-1.0", "title": "A talk"})


def test_a_list_without_cues_is_empty() -> None:
    with pytest.raises(BadRecord) as caught:
        read_transcript(b'{"transcript": {"segments": []}}', ".json", RATE)
    assert caught.value.reason == "empty-transcript"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["segments", "results", "items", "text", "start", "chunks", "timestamp", "events", "phrases"]
            )
            | st.sampled_from(
                [
                    "utterances",
                    "result",
                    "word",
                    "words",
                    "transcript",
                    "channels",
                    "alternatives",
                    "speaker",
                    "segs",
                    "final",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
@example({"utterances": [{"text": None}]})
@example({"transcription": [{"text": 0}]})
@example({"results": {"items": [{"alternatives": [{"content": "a"}], "speaker_label": {"a": 1}}]}})
def test_any_json_is_read_or_refused(value: Any) -> None:
    if find(value) is None:
        with pytest.raises(BadRecord):
            cues(value)
    else:
        found = []
        with suppress(BadRecord):
            found = cues(value)
        assert all(isinstance(cue.raw, str) and isinstance(cue.speaker, str) for cue in found)
        assert all(cue.end_samples == -1 or cue.end_samples > cue.start_samples >= 0 for cue in found)


@pytest.mark.parametrize(
    ("written", "meant"), [("1.5", 1.5), ("1,5s", 1.5), ("1:02.5", 62.5), ("1:00:00", 3600), ("2 h", None), ("", None)]
)
def test_times_in_writing(written: str, meant: float | None) -> None:
    assert seconds(written) == meant if meant is not None else seconds(written) != seconds(written)


def test_long_paragraphs_are_cut_at_sentence_ends() -> None:
    sentence = "Dr. Smith paid 3.50 for it (said twice. Really!) on no. 5 Main Street. "
    raws = [cue.raw for cue in read_transcript((sentence * 20).encode(), ".txt", RATE).cues]
    assert raws == [sentence.strip()] * 20
    assert [cue.raw for cue in cues({"text": sentence * 20})] == raws
    assert [cue.raw for cue in read_transcript((sentence * 2).strip().encode(), ".txt", RATE).cues] == [
        (sentence * 2).strip()
    ]


@given(st.text("ab. (!?♪。\n", min_size=301, max_size=900))
def test_cutting_loses_nothing_but_space(text: str) -> None:
    from megahour.corpus.transcripts.sentences import in_sentences

    assert "".join("".join(in_sentences(text)).split()) == "".join(text.split())
