"""Alignments with contexts across words, against all phone strings of a transcript."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from test_hmm import predecessors
from test_senones import LEXICON, PARAMS, PHONES, contents, features_artifact, right_share, run, speak, write

from megahour.units.hmm import BOUNDARY, SILENCE, StatePath, Units, read_units
from megahour.units.paths import path_of, transcript_path

COLUMN = {"a": 0, "b": 1, "n": 2, SILENCE: 3}
Triples = tuple[tuple[str, str, str], ...]
TRANSCRIPTS = [
    [[["a"]]],
    [[["a", "b"]], [["b"], ["a", "b", "a"]], [["a"]]],
    [[["a"]], [["n"]], [["b", "a"], ["a"]]],
    [[["n"]], [["b"]], [["n"]]],
]


def allowed(path: StatePath, longest: int) -> set[Triples]:
    """The phones in context of every state sequence without repeats, of up to `longest` states."""
    states = range(path.emission.size)
    after = {s: [t for t in states if s in predecessors(path, t)] for s in (-1, *states)}
    found: set[Triples] = set()
    waiting: list[tuple[int, ...]] = [(s,) for s in after[-1]]
    while waiting:
        sequence = waiting.pop()
        if sequence[-1] in path.final:
            found.add(tuple(path.slots[path.slot[s]] for s in sequence))
        if len(sequence) < longest:
            waiting += [(*sequence, s) for s in after[sequence[-1]]]
    return found


def by_hand(transcript: list[list[list[str]]], noises: list[str], longest: int) -> set[Triples]:
    """Every choice of pronunciations and pauses, each phone with its neighbours, `#` next to pauses."""
    gaps = [
        gap
        for length in range(longest)
        for gap in product([SILENCE, *noises], repeat=length)
        if all(a != b for a, b in pairwise(gap))
    ]
    found: set[Triples] = set()
    for ways in product(*transcript):
        room = longest - sum(map(len, ways))
        for between in product([gap for gap in gaps if len(gap) <= room], repeat=len(ways) + 1):
            if sum(map(len, between)) <= room:
                sounds = [*between[0], *(s for way, gap in zip(ways, between[1:], strict=True) for s in (*way, *gap))]
                around = [BOUNDARY, *(BOUNDARY if s in (SILENCE, *noises) else s for s in sounds), BOUNDARY]
                found.add(
                    tuple(
                        (BOUNDARY, s, BOUNDARY) if around[i + 1] == BOUNDARY else (around[i], s, around[i + 2])
                        for i, s in enumerate(sounds)
                    )
                )
    return found


@pytest.mark.parametrize("transcript", TRANSCRIPTS)
def test_a_transcript_allows_every_choice_in_its_context_and_no_other(transcript: list[list[list[str]]]) -> None:
    path = transcript_path(transcript, COLUMN, 1, noises=["n"], cross_word=True)
    assert allowed(path, 6) == by_hand(transcript, ["n"], 6)
    plain = transcript_path(transcript, COLUMN, 1, noises=["n"])
    assert path.shortest == plain.shortest == min(map(len, allowed(path, 6)))


def test_the_units_choose_the_path() -> None:
    units = Units(("a", "b"), (SILENCE, "a", "b"), 0, (0.4, 0.3, 0.3), {"a": {"leaf": 1}, "b": {"leaf": 2}})
    across = Units(**{**vars(units), "cross_word": True})
    assert Units.from_json(across.to_json()) == across
    assert "cross_word" not in units.to_json()
    words = [[["a"]], [["b"]]]
    assert ("a", "b", BOUNDARY) in path_of(across, words, COLUMN).slots
    assert ("a", "b", BOUNDARY) not in path_of(units, words, COLUMN).slots


def test_a_word_has_a_spelling_for_each_set_of_neighbours() -> None:
    tree = {"side": "left", "phones": ["b"], "yes": {"leaf": 1}, "no": {"leaf": 2}}
    units = Units(("a", "b"), (SILENCE, "a", "a", "b"), 0, (0.25,) * 4, {"a": tree, "b": {"leaf": 3}}, {}, True)
    assert units.spellings(["a"]) == [[2], [1]]
    assert units.spellings(["a", "b", "a"]) == [[2, 3, 1], [1, 3, 1]]
    assert units.spellings(["b"]) == [[3]]


def test_trees_see_neighbouring_words_and_find_the_phones(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    corpus = []
    for key in range(40):
        words = rng.choice(list(LEXICON), int(rng.integers(2, 6))).tolist()
        corpus.append((key, " ".join(words), *speak(rng, words)))
    features = features_artifact(tmp_path / "features", [(key, text, x) for key, text, x, _ in corpus], cuts=[9])
    lines = "".join(f"{word}  {phones}\n" for word, phones in LEXICON.items())
    lexicon = write(tmp_path / "lexicon", [("", {".lexicon.txt": lines})], {})
    p = PARAMS.model_copy(update={"cross_word": True, "senone_mixtures": 1})
    units = run(tmp_path / "units", p, features=features, lexicon=lexicon)
    assert read_units(units).cross_word
    assert right_share(units, corpus) > 0.97
    assert list(read_units(units).phones) == PHONES
    whole = features_artifact(tmp_path / "whole", [(key, text, x) for key, text, x, _ in corpus], cuts=())
    again = run(tmp_path / "again", p, features=whole, lexicon=lexicon)
    assert contents(units) == contents(again), "whatever the shards"
