"""Measures of an utterance: signal to noise, clipping, error rates against a second reading, tiers and splits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.core.schemas import HEARD
from megahour.corpus.text.edit_distance import distance
from megahour.cut.limits import ReadingLimits
from megahour.cut.params import CutParams
from megahour.cut.second_reading import Reading, rates
from megahour.cut.sound_quality import clipped_share, snr_db
from megahour.cut.tiers import split_of, tier_of, why_dropped

RATE_HZ = 16_000


def bursts(seconds: float, level: float) -> NDArray[np.float64]:
    """Noise in words of 0.3 s with pauses of 0.1 s: power `level`² while it sounds."""
    n = round(seconds * RATE_HZ)
    on = np.arange(n) / RATE_HZ % 0.4 < 0.3
    return np.random.default_rng(1).normal(0, level, n) * on


@pytest.mark.parametrize("true_db", [5.0, 10.0, 20.0, 30.0])
@pytest.mark.parametrize("seconds", [2.0, 12.0])
def test_the_ratio_of_levels_follows_the_true_one(true_db: float, seconds: float) -> None:
    speech = bursts(seconds, 3000)
    noise = np.random.default_rng(2).normal(0, 3000 / 10 ** (true_db / 20), len(speech))
    assert snr_db((speech + noise).clip(-32768, 32767).astype(np.int16), RATE_HZ) == pytest.approx(true_db, abs=3.0)


def test_noise_alone_has_hardly_a_ratio_and_too_little_sound_has_none() -> None:
    noise = np.random.default_rng(3).normal(0, 900, 5 * RATE_HZ).astype(np.int16)
    assert 0 <= snr_db(noise, RATE_HZ) < 3
    assert snr_db(noise + np.int16(4000), RATE_HZ) == pytest.approx(snr_db(noise, RATE_HZ), abs=0.1), (
        "offset is no level"
    )
    assert math.isnan(snr_db(noise[:400], RATE_HZ))
    assert snr_db(np.zeros(RATE_HZ, np.int16), RATE_HZ) == 0


@pytest.mark.parametrize("gain", [1.0, 2.0, 0.5])
def test_clipping_is_seen_after_a_change_of_gain(gain: float) -> None:
    loud = np.random.default_rng(4).normal(0, 6000, 5 * RATE_HZ)
    slow = np.convolve(loud, np.ones(40) / 6, "same")
    flat = np.clip(slow, -10_000, 10_000)
    truth = float((np.abs(flat) == 10_000).mean())
    assert 0.01 < truth < 0.2
    assert clipped_share(np.rint(gain * flat).astype(np.int16)) == pytest.approx(truth, rel=0.25)
    assert clipped_share(np.rint(gain * slow / 3).astype(np.int16)) == 0


def test_full_scale_is_clipped_sample_by_sample() -> None:
    samples = np.zeros(1000, np.int16)
    samples[[3, 500]], samples[700] = 32767, -32768
    assert clipped_share(samples) == pytest.approx(0.003)
    assert clipped_share(samples[:0]) == 0


def by_table(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


@given(st.text("abc é", max_size=12), st.text("abc é", max_size=12))
def test_the_distance_is_that_of_the_whole_table(one: str, other: str) -> None:
    assert distance(one, other) == by_table(one, other)


def test_distances_of_hundreds_of_characters() -> None:
    rng = np.random.default_rng(5)
    one, other = ("".join(rng.choice(list("abcd "), 200)) for _ in range(2))
    assert distance(one, other) == by_table(one, other)


def test_edges_show_a_text_that_is_off_by_a_word() -> None:
    right = rates("the cat sat on the mat", "the cat sat on the mat", spaced=True)
    assert (right.cer, right.edge_cer) == (0, 0)
    off = rates("the cat sat on the mat", "the cat sat on the mat again", spaced=True)
    assert off.cer == pytest.approx(6 / 22)
    assert off.edge_cer == 1.0
    assert rates("the cat", "thecat", spaced=False).cer == 0
    assert rates("the cat", "", spaced=True).cer == 1
    assert math.isnan(rates("", "x", spaced=True).cer)


def reading(tokens: list[str], start: list[int]) -> Reading:
    return Reading.of(pa.Table.from_pylist([{"key": 1, "tokens": tokens, "start_samples": start}], HEARD))


@pytest.mark.parametrize(
    ("tokens", "heard"),
    [
        (["o", "h", " ", "n", "o", " ", "w"], "h no"),
        (["▁o", "h", "▁", "n", "o", "▁w", "e"], "h no w"),
    ],
)
def test_a_reading_is_read_within_the_utterance_only(tokens: list[str], heard: str) -> None:
    found = reading(tokens, [0, 100, 150, 200, 300, 320, 500])
    assert found.spaced
    assert found.between(100, 400) == heard
    assert found.between(600, 900) == ""


def test_what_is_heard_outside_of_words_is_the_wildcards_share() -> None:
    found = reading(["a", "b", "c", "d"], [100, 200, 300, 900])
    words = np.array([[90, 220], [310, 400]])
    assert found.wildcard_share(0, 1000, words, slack=10) == 0.25
    assert found.wildcard_share(0, 1000, words, slack=0) == 0.5
    assert found.wildcard_share(950, 1000, words, slack=0) == 0
    assert Reading.of(HEARD.empty_table()).between(0, 100) == ""


GOOD: dict[str, Any] = {
    "text": "good morning",
    "cer": 0.1,
    "edge_cer": 0.2,
    "wildcard_share": 0.0,
    "clipped_share": 0.0,
    "snr_db": 25.0,
}


@pytest.mark.parametrize(
    ("change", "tier", "reason"),
    [
        ({}, "clean", ""),
        ({"cer": 0.2}, "clean", ""),
        ({"cer": 0.25}, "dirty", ""),
        ({"cer": 0.4}, "", "high-cer"),
        ({"edge_cer": 0.8}, "dirty", ""),
        ({"edge_cer": 1.0}, "", "high-edge-cer"),
        ({"wildcard_share": 0.3}, "dirty", ""),
        ({"clipped_share": 0.01}, "dirty", ""),
        ({"clipped_share": 0.2}, "", "clipped"),
        ({"snr_db": 7.0}, "dirty", ""),
        ({"snr_db": 4.0}, "", "low-snr"),
        ({"snr_db": math.nan}, "clean", ""),
    ],
)
def test_tiers_follow_the_declared_limits(change: dict[str, float], tier: str, reason: str) -> None:
    p, row = CutParams.model_validate({"min_snr_db": 5}), {**GOOD, **change}
    found, detail = why_dropped(p, row, ReadingLimits(p, p.min_confidence))
    assert found == reason
    if reason:
        assert "the limit" in detail
    else:
        assert tier_of(p, row) == tier


def test_who_takes_any_reading_takes_that_of_the_edges() -> None:
    row = {**GOOD, "cer": 0.9, "edge_cer": 1.0}
    any_reading, some = CutParams(dirty_cer=100), CutParams(dirty_cer=0.95)
    assert why_dropped(any_reading, row, ReadingLimits(any_reading, 0.5)) == ("", "")
    assert why_dropped(some, row, ReadingLimits(some, 0.5))[0] == "high-edge-cer"


def test_without_a_second_reading_there_is_no_tier() -> None:
    assert tier_of(CutParams(), {**GOOD, "cer": math.nan}) == ""


@pytest.mark.parametrize(
    "values",
    [
        {"clean_cer": 0.5},
        {"dev_share": 0.7, "test_share": 0.4},
        {"min_snr_db": 20},
        {"least_pause_s": 0.2},
        {"min_s": 15},
    ],
)
def test_limits_that_contradict_each_other_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is above|must be below"):
        CutParams.model_validate(values)


def recording(i: int, speaker: str = "") -> dict[str, Any]:
    return {"name": f"talk-{i}", "speaker": speaker or f"s{i % 400}", "source": f"https://{i % 300}.org"}


@pytest.mark.parametrize(("by", "column"), [("speaker", "speaker"), ("recording", "name"), ("source", "source")])
def test_what_is_held_out_is_held_out_whole_and_in_its_share(by: str, column: str) -> None:
    p = CutParams.model_validate({"dev_share": 0.1, "test_share": 0.2, "split_by": by})
    rows = [recording(i) for i in range(3000)]
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row[column], set()).add(split_of(p, row))
    assert all(len(found) == 1 for found in splits.values())
    values = [found.pop() for found in splits.values()]
    assert values.count("test") / len(values) == pytest.approx(0.2, abs=0.07)
    assert values.count("dev") / len(values) == pytest.approx(0.1, abs=0.06)


def test_a_larger_test_share_keeps_its_members_and_an_unknown_speaker_is_his_recordings() -> None:
    small, large = CutParams(test_share=0.1), CutParams(test_share=0.3)
    rows = [recording(i) for i in range(500)]
    held = {row["speaker"] for row in rows if split_of(small, row) == "test"}
    assert held < {row["speaker"] for row in rows if split_of(large, row) == "test"}
    assert {split_of(CutParams(), row) for row in rows} == {"train"}
    nobody = [{**row, "speaker": ""} for row in rows]
    assert {split_of(large, row) for row in nobody} == {"train", "test"}


def test_a_name_in_other_letters_is_the_same_speaker() -> None:
    p = CutParams(test_share=0.5)
    for i in range(50):
        splits = {split_of(p, recording(i, speaker)) for speaker in (f"anna {i}", f"ANNA {i}", f" Anna  {i}")}
        assert len(splits) == 1
