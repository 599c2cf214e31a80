"""Viterbi alignment against a search of all state sequences, and units as files."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.units.hmm import BOUNDARY, SILENCE, StatePath, Units, viterbi
from megahour.units.paths import transcript_path

COLUMN = {"a": 0, "b": 1, SILENCE: 2}
phones = st.sampled_from("ab")
transcripts = st.lists(
    st.lists(st.lists(phones, min_size=1, max_size=2), min_size=1, max_size=2), min_size=1, max_size=2
)


def predecessors(path: StatePath, state: int) -> list[int]:
    return path.before[path.first[state] : path.first[state + 1]].tolist()


def every_sequence(path: StatePath, frames: int) -> list[tuple[int, ...]]:
    """All sequences of states that the path allows, by trying each."""

    def allowed(sequence: tuple[int, ...]) -> bool:
        if -1 not in predecessors(path, sequence[0]) or sequence[-1] not in path.final:
            return False
        return all(b in predecessors(path, s) or (b == s and path.loops[s]) for b, s in itertools.pairwise(sequence))

    return [s for s in itertools.product(range(path.emission.size), repeat=frames) if allowed(s)]


def total(scores: NDArray[np.float32], path: StatePath, states: tuple[int, ...]) -> float:
    return float(sum(scores[t, path.emission[s]] for t, s in enumerate(states)))


@settings(max_examples=60)  # the first example compiles the kernel
@given(transcripts, st.integers(1, 4), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_viterbi_is_the_best_of_all_state_sequences(
    transcript: list[list[list[str]]], frames: int, min_frames: int, seed: int
) -> None:
    path = transcript_path(transcript, COLUMN, min_frames)
    if path.emission.size**frames > 20_000:
        path = transcript_path(transcript[:1], COLUMN, 1)
        frames = min(frames, 3)
    scores = np.random.default_rng(seed).normal(size=(frames, 3)).astype(np.float32)
    found = viterbi(scores, path)
    sequences = every_sequence(path, frames)
    if not sequences:
        assert found is None
        return
    assert found is not None
    best = max(sequences, key=lambda states: total(scores, path, states))
    assert found[1] == pytest.approx(total(scores, path, best), abs=1e-4)
    same = {tuple(path.slot[list(s)]) for s in sequences if abs(total(scores, path, s) - found[1]) < 1e-4}
    assert tuple(found[0]) in same
    with pytest.MonkeyPatch.context() as patch:
        for frames_of_a_block in (1, 2, 3):
            patch.setattr("megahour.units.hmm.MOST_POINTERS", frames_of_a_block * path.emission.size)
            in_blocks = viterbi(scores, path)
            assert in_blocks is not None
            assert in_blocks[0].tolist() == found[0].tolist()
            assert in_blocks[1] == found[1]


def test_a_phone_lasts_at_least_thirty_milliseconds() -> None:
    path = transcript_path([[["a", "b"]]], COLUMN)
    assert viterbi(np.zeros((5, 3), np.float32), path) is None
    found = viterbi(np.zeros((6, 3), np.float32), path)
    assert found is not None
    assert [path.slots[slot][1] for slot in found[0]] == ["a"] * 3 + ["b"] * 3


def test_silence_is_optional_and_the_better_pronunciation_wins() -> None:
    path = transcript_path([[["a"], ["b"]], [["a"]]], COLUMN, min_frames=1)
    wanted = [SILENCE, "b", "b", SILENCE, "a"]
    scores = np.full((5, 3), -5, np.float32)
    for t, phone in enumerate(wanted):
        scores[t, COLUMN[phone]] = 0
    found = viterbi(scores, path)
    assert found is not None
    assert [path.slots[slot][1] for slot in found[0]] == wanted
    assert found[1] == 0
    without = viterbi(scores[1:3], path)
    assert without is not None
    assert [path.slots[slot][1] for slot in without[0]] == ["b", "a"]


def test_contexts_end_at_the_word() -> None:
    path = transcript_path([[["a", "b"]], [["b"]]], COLUMN)
    spoken = [triple for triple in path.slots if triple[1] != SILENCE]
    assert spoken == [(BOUNDARY, "a", "b"), ("a", "b", BOUNDARY), (BOUNDARY, "b", BOUNDARY)]


def units() -> Units:
    tree = {"side": "left", "phones": ["b", "ɔ"], "yes": {"leaf": 2}, "no": {"leaf": 1}}
    return Units(("a", "b"), (SILENCE, "a_0", "a_1", "b_0"), 0, (0.4, 0.3, 0.2, 0.1), {"a": tree, "b": {"leaf": 3}})


def test_units_survive_their_file() -> None:
    assert Units.from_json(units().to_json()) == units()
    assert units().to_json() == Units.from_json(units().to_json()).to_json()


def test_senones_of_a_word() -> None:
    assert units().senones_of(["a", "b", "a"]) == [1, 3, 2]
    assert units().senone_of(BOUNDARY, SILENCE, BOUNDARY) == 0
    with pytest.raises(KeyError):
        units().senones_of(["z"])
