"""Speakers to sets and shards: whole speakers, by rules, in a seeded order that nothing else affects."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megahour.select.params import SetRule
from megahour.select.sample import Layout, lay_out, speaker_hash

speakers = st.dictionaries(st.text("abcdé", min_size=1, max_size=6), st.floats(0.001, 3.0), min_size=1, max_size=30)
amounts = st.one_of(
    st.fixed_dictionaries({"speakers": st.integers(1, 6)}),
    st.fixed_dictionaries({"share": st.floats(0.05, 1.0)}),
    st.fixed_dictionaries({"hours": st.floats(0.1, 10.0)}),
)


def rules(*each: dict[str, Any]) -> list[SetRule]:
    return [SetRule(**rule) for rule in each]


def by_set(layout: Layout, hours: dict[str, float]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for speaker in hours:
        shard = layout.shard_of(speaker)
        found["-" if shard is None else layout.shards[shard].set].add(speaker)
    return found


@given(speakers, st.lists(amounts, max_size=3), st.integers(0, 5), st.floats(0.05, 5.0))
def test_with_a_last_rule_that_takes_the_rest_every_speaker_has_one_place(
    hours: dict[str, float], first: list[dict[str, Any]], seed: int, shard_hours: float
) -> None:
    made = [{"name": f"set-{i}", **amount} for i, amount in enumerate(first)]
    layout = lay_out(hours, rules(*made, {"name": "rest"}), seed, shard_hours)
    held: dict[int, float] = defaultdict(float)
    for speaker, value in hours.items():
        shard = layout.shard_of(speaker)
        assert shard is not None
        held[shard] += value
    assert sorted(held) == list(range(len(layout.shards))), "no shard is empty"
    assert [held[i] for i in sorted(held)] == pytest.approx([shard.hours for shard in layout.shards])


@given(speakers, st.randoms(use_true_random=False), st.integers(0, 3))
def test_the_layout_does_not_depend_on_the_order_in_which_speakers_are_met(
    hours: dict[str, float], random: Any, seed: int
) -> None:
    order = list(hours)
    random.shuffle(order)
    three = rules({"name": "test", "share": 0.2}, {"name": "labelled", "hours": 2.0}, {"name": "unlabelled"})
    assert lay_out(hours, three, seed, 0.5) == lay_out({s: hours[s] for s in order}, three, seed, 0.5)


@given(speakers, st.text("xyz", min_size=1, max_size=5), st.integers(0, 3))
def test_a_new_speaker_leaves_the_others_where_a_count_put_them(hours: dict[str, float], new: str, seed: int) -> None:
    """A test set of N speakers changes by at most one speaker when the corpus grows by one."""
    two = rules({"name": "test", "speakers": 3}, {"name": "rest"})
    before = by_set(lay_out(hours, two, seed, 1.0), hours)["test"]
    grown = {**hours, new: 1.0}
    after = by_set(lay_out(grown, two, seed, 1.0), grown)["test"]
    assert len(before - after) <= 1


def test_rules_take_from_what_earlier_ones_left() -> None:
    hours = {f"s{i}": 1.0 for i in range(100)}
    four = rules(
        {"name": "held", "named": ["s7", "s8"]},
        {"name": "test", "speakers": 8},
        {"name": "labelled", "share": 0.1},
        {"name": "more", "hours": 20.0},
    )
    sets = by_set(lay_out(hours, four, 1, 5.0), hours)
    assert sets["held"] == {"s7", "s8"}
    assert {name: len(sets[name]) for name in ("test", "labelled", "more", "-")} == {
        "test": 8,
        "labelled": 9,  # a tenth of the 90 hours that are left
        "more": 20,
        "-": 61,
    }


def test_shards_have_nearly_equal_hours() -> None:
    hours = {f"s{i}": 0.5 + (i % 7) / 10 for i in range(200)}
    layout = lay_out(hours, rules({"name": "all"}), 0, 10.0)
    sizes = [shard.hours for shard in layout.shards]
    assert len(sizes) == round(sum(hours.values()) / 10)
    assert max(sizes) - min(sizes) < 2 * max(hours.values())


@example({"c": 1, "aaa": 1, "aaaaa": 0.025, "a": 1, "b": 1, "aa": 1}, 0.05, 1, 0.05)
@given(speakers, st.floats(0.05, 5.0), st.integers(0, 3), st.none() | st.floats(0.001, 2.0))
def test_no_shard_is_larger_than_its_part_and_a_speaker(
    hours: dict[str, float], shard_hours: float, seed: int, most: float | None
) -> None:
    """Of the hours that stay, where speakers give at most some."""
    stay = {speaker: min(value, most or value) for speaker, value in hours.items()}
    layout = lay_out(hours, rules({"name": "all"}), seed, shard_hours, levels={"all": most} if most else {})
    sizes: dict[Any, float] = defaultdict(float)
    for speaker, value in stay.items():
        sizes[layout.shard_of(speaker)] += value
    total = sum(stay.values())
    # Halfway between two numbers of shards the order of a sum decides.
    fewest, highest = (max(1, min(len(hours), round(total / shard_hours + by))) for by in (-1e-9, 1e-9))
    assert len(sizes) <= highest
    assert max(sizes.values()) <= total / fewest + max(stay.values()) + 1e-9


def test_another_seed_is_another_draw() -> None:
    hours = {f"s{i}": 1.0 for i in range(50)}
    two = rules({"name": "test", "speakers": 10}, {"name": "rest"})
    draws = [by_set(lay_out(hours, two, seed, 5.0), hours)["test"] for seed in range(3)]
    assert draws[0] != draws[1] != draws[2]
    assert draws[0] == set(sorted(hours, key=lambda s: speaker_hash(0, s))[:10])


def test_a_rule_has_one_kind() -> None:
    with pytest.raises(ValueError, match="give one of speakers, share, hours, named"):
        SetRule(name="test", speakers=3, share=0.1)
