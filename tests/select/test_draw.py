"""Hours drawn from a set: exact, equal for every day, and independent of speakers and sharding."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_utterances import merge_by_hand, utterance, write_utterances

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.select.draw import UsableRows, level_of, limits_of, taken, taken_of_speakers
from megahour.select.params import SelectParams
from megahour.select.stage import Select

DAY_S = 86_400
UTTERANCES = st.lists(
    st.tuples(st.integers(0, 2**12 - 1), st.integers(0, 3), st.integers(1, 9_000_000)),
    min_size=1,
    max_size=60,
    unique_by=lambda each: each[0],
)


@given(UTTERANCES, st.floats(0.0, 1.0), st.lists(st.integers(0, 60), max_size=3))
@example([(0, 1, 1), (3, 0, 784), (2, 0, 796), (1, 0, 23)], 0.875, [])
def test_a_sets_hours_are_exact_to_half_an_utterance_and_periods_equal(
    made: list[tuple[int, int, int]], share: float, cuts: list[int]
) -> None:
    """And the smallest hashes do, in whatever shards they come."""
    hashes, periods, times = (np.array(column, np.int64) for column in zip(*made, strict=True))
    hashes <<= 63 - 12  # in all buckets
    bounds = sorted({0, len(made), *(min(cut, len(made)) for cut in cuts)})
    shards = [UsableRows("u", hashes[a:b], periods[a:b], times[a:b]) for a, b in pairwise(bounds)]
    wanted_us = int(share * times.sum())
    limits = limits_of({"u": wanted_us / 3.6e9}, lambda: shards)
    drawn = np.concatenate([taken(rows, limits) for rows in shards])
    has = {p: int(times[periods == p].sum()) for p in sorted(set(periods.tolist()))}
    got = {p: int(times[drawn & (periods == p)].sum()) for p in has}
    longest = int(times.max())
    assert abs(sum(got.values()) - wanted_us) <= longest / 2 + 4
    for p, us in got.items():
        for other in has:
            all_it_has = got[other] >= has[other] - longest - 4  # to one utterance, as the period before gave too much
            assert us <= got[other] + 2 * longest + 4 or all_it_has, "equal, or all that it has"
        own = np.sort(hashes[periods == p])
        assert np.array_equal(np.sort(hashes[drawn & (periods == p)]), own[: int((drawn & (periods == p)).sum())])


def test_a_period_makes_good_what_the_one_before_it_gave_too_much() -> None:
    """Of 11 s, the first period, with utterances of 10 s, gives 10, and the second, with 1 s each, gives 1."""
    long = UsableRows("u", np.array([1, 2]) << 53, np.array([0, 0]), np.array([10, 10]) * 1_000_000)
    short = UsableRows("u", np.arange(20) << 53, np.full(20, 1), np.full(20, 1_000_000))
    limits = limits_of({"u": 11 / 3600}, lambda: [long, short])
    assert [int(taken(rows, limits).sum()) for rows in (long, short)] == [1, 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**20), st.integers(0, 4), st.integers(0, 2), st.integers(1, 9_000_000)),
        min_size=1,
        max_size=60,
        unique_by=lambda each: each[0],
    ),
    st.floats(0.0, 1.0),
    st.randoms(use_true_random=False),
)
def test_speakers_give_equal_hours_and_their_periods_too(
    made: list[tuple[int, int, int, int]], share: float, random: Any
) -> None:
    """And the smallest hashes of each do, in whatever order the utterances come."""
    random.shuffle(made)
    hashes, who, periods, times = (np.array(column, np.int64) for column in zip(*made, strict=True))
    names = np.array([f"s{speaker}" for speaker in who], object)
    has = {speaker: int(times[who == speaker].sum()) for speaker in set(who.tolist())}
    wanted_us, longest = int(share * times.sum()), int(times.max())
    level = level_of(np.array(list(has.values())), wanted_us)
    assert wanted_us - len(has) < sum(min(level, us) for us in has.values()) <= wanted_us
    drawn = taken_of_speakers(UsableRows("u", hashes, periods, times), names, level)
    assert abs(int(times[drawn].sum()) - wanted_us) <= longest / 2 + len(has)
    for speaker, us in has.items():
        got = int(times[drawn & (who == speaker)].sum())
        assert abs(got - min(us, level)) <= longest
        of_periods = [
            (int(times[own & drawn].sum()), int(times[own].sum()))
            for period in range(3)
            if (own := (who == speaker) & (periods == period)).any()
        ]
        for gave, _ in of_periods:
            assert all(gave <= other + 2 * longest + 4 or other >= all_ - longest for other, all_ in of_periods)
        for period in range(3):
            own = (who == speaker) & (periods == period)
            assert set(hashes[own & drawn]) == set(np.sort(hashes[own])[: int((own & drawn).sum())].tolist())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Ten days, the last with eight times the speech of the first nine; speaker 0 has half of all speech."""
    rng = np.random.default_rng(5)
    made = []
    for i in range(2400):
        day = i % 10 if i < 1400 else 9
        speaker = f"s{0 if i % 2 else i // 2 % 40}"
        at = {"created_s": 1_000 * DAY_S + day * DAY_S + i, "recording": i}
        made.append(utterance(f"u{i}", speaker, float(rng.uniform(1, 4)), **at))
    return made


def params(**values: Any) -> SelectParams:
    sets = [{"name": "test", "speakers": 4}, {"name": "unlabelled"}]
    return SelectParams.model_validate({"sets": sets, "shard_hours": 0.1, **values})


def selected(folder: Path, p: SelectParams, shards: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The rows of each shard of the selection."""
    made = merge_by_hand(p, write_utterances(folder / "utterances", shards), folder / "selection")
    return [table.to_pylist() for table in made]


def test_a_set_is_drawn_evenly_over_days_and_as_often_as_speakers_speak(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    shards = selected(tmp_path, params(draw_hours={"unlabelled": 0.4}), [rows[:700], rows[700:]])
    hours: dict[str, dict[Any, float]] = {"day": defaultdict(float), "speaker": defaultdict(float)}
    for row in (row for shard in shards for row in shard if row["set"] == "unlabelled"):
        hours["day"][row["created_s"] // DAY_S] += row["samples"] / 16_000 / 3600
        hours["speaker"][row["speaker"]] += row["samples"] / 16_000 / 3600
    assert sum(hours["day"].values()) == pytest.approx(0.4, abs=2 / 3600), "half an utterance"
    assert list(hours["day"].values()) == pytest.approx([0.04] * 10, abs=4 / 3600), "an utterance"
    assert hours["speaker"]["s0"] / 0.4 == pytest.approx(0.5, abs=0.1)
    tests = [row for shard in shards for row in shard if row["set"] == "test"]
    assert len(tests) == sum(row["speaker"] in {each["speaker"] for each in tests} for row in rows), "whole"
    assert len([shard for shard in shards if shard[0]["set"] == "unlabelled"]) == 4, "of the hours that are drawn"


def test_a_set_is_drawn_evenly_over_speakers(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Speaker 0, who has half of all speech, contributes the same as every other one; shards have the drawn hours."""
    p = params(draw_hours={"unlabelled": 0.4}, draw_evenly="speakers", shard_hours=0.05, sets=[{"name": "unlabelled"}])
    shards = selected(tmp_path / "one", p, [rows[:700], rows[700:]])
    hours: dict[str, float] = defaultdict(float)
    for row in (row for shard in shards for row in shard):
        hours[row["speaker"]] += row["samples"] / 16_000 / 3600
    assert sum(hours.values()) == pytest.approx(0.4, abs=len(shards) * 2 / 3600), "half an utterance a shard"
    assert list(hours.values()) == pytest.approx([0.4 / len(hours)] * len(hours), abs=4 / 3600)
    days = Counter(row["created_s"] // DAY_S for shard in shards for row in shard if row["speaker"] == "s0")
    assert days.keys() == {row["created_s"] // DAY_S for row in rows if row["speaker"] == "s0"}
    assert max(days.values()) <= 6, "of 14, though he says three quarters on the last day"
    sizes = [sum(row["samples"] for row in shard) / 16_000 / 3600 for shard in shards]
    assert len(sizes) == 8
    assert sizes == pytest.approx([0.05] * 8, abs=0.4 / len(hours) + 0.002), "to a speaker"
    again = selected(tmp_path / "again", p, [rows[::-1][:100], rows[:2300]])
    assert [[row["key"] for row in shard] for shard in again] == [[row["key"] for row in shard] for shard in shards]


def test_many_shards_of_like_utterances_do_not_all_round_the_same_way(tmp_path: Path) -> None:
    """Each of 60 speakers, in a shard each, is to give 360 s of utterances of 100 s."""
    rows = [utterance(f"u{i}", f"s{i % 60}", 100.0, recording=i % 60) for i in range(1200)]
    p = params(draw_hours={"all": 6.0}, draw_evenly="speakers", sets=[{"name": "all"}])
    given = [len(shard) for shard in selected(tmp_path, p, [rows])]
    assert len(given) == 60
    assert set(given) == {3, 4}
    assert sum(given) * 100 / 3600 == pytest.approx(6.0, abs=0.2), "6.67 if all gave 400 s"


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_sharding(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    def keys(name: str, shards: list[list[dict[str, Any]]], **values: Any) -> list[int]:
        p = params(draw_hours={"unlabelled": 0.4}, sets=[{"name": "unlabelled"}], **values)
        return [row["key"] for shard in selected(tmp_path / name, p, shards) for row in shard]

    one = keys("one", [rows])
    assert keys("other", [rows[::-1][:100], rows[:2300]]) == one
    assert sorted(keys("seed", [rows], seed=1)) != sorted(one)
    busy = keys("busy", [rows], period_s=0)
    last = {row["key"] for row in rows if row["created_s"] // DAY_S == 1_009}
    assert sum(key in last for key in one) / len(one) < 0.15
    assert sum(key in last for key in busy) / len(busy) > 0.4, "one period: a busy day counts more"


def test_what_is_not_drawn_is_counted(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    shards = selected(tmp_path, params(draw_hours={"test": 0.01, "unlabelled": 0.1}), [rows])
    receipts = [Artifact(tmp_path / "selection").receipt(shard) for shard in range(len(shards))]
    counts = [receipt.counts for receipt in receipts if receipt]
    assert [each.kept for each in counts] == [len(shard) for shard in shards]
    assert sum(each.kept + each.dropped["not-drawn"] for each in counts) == 2400


def test_draws_that_cannot_be_are_refused(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    inputs = {"utterances": write_utterances(tmp_path / "utterances", [rows])}
    for evenly in ("time", "speakers"):
        with pytest.raises(ConfigError, match=r"9\.00 hours are to be drawn of the set 'unlabelled', which has 1\."):
            Select().partitions(params(draw_hours={"unlabelled": 9}, draw_evenly=evenly), inputs)
    moments = np.arange(10_001)
    with pytest.raises(ConfigError, match="more than 10,000 periods"):
        limits_of({"all": 1}, lambda: [UsableRows("all", moments, moments, moments)])
    for values, message in (
        ({"draw_hours": {"moon": 1}}, "no sets"),
        ({"draw_hours": {"test": 0}}, "above 0"),
        ({"draw_hours": {"test": 1}, "speaker_hours": 1}, "leave it out with draw_hours"),
        ({"draw_hours": {"test": 1}, "draw_evenly": "speakers", "shared_recordings": "drop"}, "recordings=join"),
    ):
        with pytest.raises(ValueError, match=message):
            params(**values)


def test_a_selection_that_draws_nothing_is_what_it_was() -> None:
    """Its fingerprint does not include draws, so finished runs stay valid."""
    assert not {"draw_hours", "period_s", "draw_evenly", "languages"} & params().identity().keys()
