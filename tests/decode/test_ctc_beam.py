"""CTC prefix beam search and fusion, compared with the sum over all alignments of every text."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artifacts import write_artifact

from megahour.core.store import Artifact
from megahour.decode.ctc_beam import CtcBeam, align
from megahour.decode.fusion import make_fusion
from megahour.decode.params import DecodeParams
from megahour.decode.prefixes import FUSED, LM, MISSING, Fusion, grown_node, make_tree, with_room
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.query.batch import score_sentences
from megahour.lm.query.mapped_import import load_arpa
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.tokenise import UNKNOWN

CHARACTERS = ("<blank>", " ", "a", "b")
PIECES = ("<blank>", "▁a", "a", "▁", "b")
TEXTS = ["a b ab", "ab ab a", "b a", "ab b b", "a a ab", "ba ab"]
LN10 = np.log(10.0)


def log_probs(frames: int, outputs: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 2, (frames, outputs)).astype(np.float32)
    return values - np.logaddexp.reduce(values, axis=1, keepdims=True)


def search(values: np.ndarray, fusion: Fusion, beams: int) -> list[tuple[list[int], float, np.ndarray]]:
    beam = CtcBeam(fusion, beams)
    beam.advance(values)
    return beam.found()


def lm_artifact(folder: Path, texts: Sequence[str], order: int = 3) -> Artifact:
    folder.mkdir(parents=True)
    estimate(read_corpus(line_blocks(texts, "texts")).corpus, order, folder / "lm.arpa")
    return write_artifact(folder / "lm", [({}, {".arpa": (folder / "lm.arpa").read_bytes()})], {})


def by_paths(values: np.ndarray) -> dict[tuple[int, ...], float]:
    """ln p of every token sequence: the sum of all paths that spell it."""
    found: dict[tuple[int, ...], float] = defaultdict(lambda: -np.inf)
    for path in itertools.product(range(values.shape[1]), repeat=len(values)):
        tokens = tuple(token for token, _ in itertools.groupby(path) if token)
        found[tokens] = np.logaddexp(found[tokens], values[np.arange(len(path)), path].sum(dtype=np.float64))
    return found


def words_of(tokens: Sequence[int], names: Sequence[str]) -> list[str]:
    return "".join(names[token] for token in tokens).replace("▁", " ").split()


def ln_p(lm: Artifact, sentence: str) -> float:
    """ln p from the scorer of whole texts, which other tests compare with KenLM."""
    with lm.local(0, ".arpa") as path:
        return float(LN10 * score_sentences(load_arpa(path), [sentence]).log10_prob[0])


def fusion(names: Sequence[str], inputs: Mapping[str, Artifact] | None = None, **values: Any) -> Fusion:
    config = {"tokens": list(names), "marks": "▁" in "".join(names)}
    return make_fusion(DecodeParams(**values), config, inputs or {})


@pytest.mark.parametrize("names", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_a_wide_beam_finds_every_text_with_the_sum_of_its_paths(names: tuple[str, ...]) -> None:
    values = log_probs(5, len(names))
    found = search(values, fusion(names), beams=2000)
    assert {tuple(tokens): pytest.approx(score, abs=1e-5) for tokens, score, _ in found} == dict(by_paths(values))
    assert [score for _, score, _ in found] == sorted((score for _, score, _ in found), reverse=True)


def test_a_narrow_beam_keeps_the_best_and_repeats_itself() -> None:
    values = log_probs(60, 30, seed=3)
    wide = search(values, fusion(CHARACTERS[:1] + tuple("abcdefghijklmnopqrstuvwxyzäöü")), beams=64)
    narrow = search(values, fusion(CHARACTERS[:1] + tuple("abcdefghijklmnopqrstuvwxyzäöü")), beams=4)
    assert len(narrow) == 4
    assert wide[0][1] >= narrow[0][1]
    assert [tokens for tokens, _, _ in narrow] == [
        tokens for tokens, _, _ in search(values, fusion(["", *map(chr, range(97, 126))]), beams=4)
    ]
    assert search(values[:0], fusion(CHARACTERS), beams=4)[0][:2] == ([], 0.0)


def test_a_hot_word_under_way_stays_in_a_narrow_beam() -> None:
    """Each letter is a nat less likely than another one, so without its credit so far it would be pruned after two."""
    names = ("<blank>", *"abcxyz")
    values = np.full((3, len(names)), -12.0, np.float32)
    for frame, (wanted, other) in enumerate(["ax", "by", "cz"]):
        values[frame, names.index(wanted)], values[frame, names.index(other)] = -1.2, -0.2
    fused = [fusion(names, hot_words=words, hot_word_bonus=1.5) for words in ([], ["abc"])]
    texts = ["".join(names[token] for token in search(values, each, beams=2)[0][0]) for each in fused]
    assert texts == ["xyz", "abc"]


def test_letters_that_begin_no_word_leave_a_narrow_beam_at_once(tmp_path: Path) -> None:
    """Each letter of the word is a nat less likely than another one: an unknown word costs with the first."""
    names = ("<blank>", *"abcxyz")
    values = np.full((3, len(names)), -12.0, np.float32)
    for frame, (wanted, other) in enumerate(["ax", "by", "cz"]):
        values[frame, names.index(wanted)], values[frame, names.index(other)] = -1.2, -0.2
    fused = fusion(names, {"lm": lm_artifact(tmp_path / "lm", ["abc", "abc"], 1)}, unknown_word=-10, lm_scale=0.1)
    assert "".join(names[token] for token in search(values, fused, beams=2)[0][0]) == "abc"


@pytest.mark.parametrize("names", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_an_unknown_word_costs_as_soon_as_no_word_begins_so(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of all sequences of three tokens, by the words before and the letters of the last one."""
    lm = lm_artifact(tmp_path / "lm", ["ab a", "ab ab", "a ab"], 2)
    fused = fusion(names, {"lm": lm}, unknown_word=-3.0, lm_scale=0.7)
    with lm.local(0, ".arpa") as path:
        model = NgramScorer.open(path)
    costly = 0
    for tokens in itertools.product(range(1, len(names)), repeat=3):
        tree = with_room(make_tree(fused, 1), 8)
        node = 0
        for token in tokens:
            node = grown_node(fused, tree, node, token)
        text = "".join(names[token] for token in tokens).replace("▁", " ")
        *before, last = ["<s>", *text.split(" ")]
        expected = 0.0
        if last and not any(word.startswith(last) for word in ("a", "ab")):
            state = model.begin()
            for word in filter(None, before[1:]):
                state = model.score(state, word)[2]
            expected = -3.0 + 0.7 * LN10 * model.score(state, UNKNOWN)[0]
            costly += 1
        sums = tree.sums[node]
        assert sums[FUSED] - (0.7 * sums[LM] - 3.0 * sums[MISSING]) == pytest.approx(expected, abs=1e-9), text
    assert 10 < costly < len(names[1:]) ** 3 - 10


def test_bounds_of_hot_words_leave_nothing_out() -> None:
    hot = fusion(CHARACTERS, hot_words=["ab a :1.5", "bb :3"])
    unbounded = hot._replace(most=np.full(len(CHARACTERS), np.inf))
    for seed in range(20):
        values = log_probs(12, len(CHARACTERS), seed)
        expected, found = (search(values, each, beams=3) for each in (unbounded, hot))
        assert [each[:2] for each in found] == [each[:2] for each in expected]


def test_bounds_leave_nothing_out(tmp_path: Path) -> None:
    """A narrow beam finds what it finds when every candidate is looked up."""
    spelled = [" ".join(text.replace(" ", "▁")) for text in TEXTS]
    inputs = {"lm": lm_artifact(tmp_path / "lm", TEXTS), "low_order_lm": lm_artifact(tmp_path / "low", spelled, 2)}
    given = {"word_bonus": 1.5, "unknown_word": 0.5, "low_order_scale": 0.6, "hot_words": ["ab a :1.5", "bb"]}
    bounded = fusion(CHARACTERS, inputs, **given)
    unbounded = bounded._replace(most=np.full(len(CHARACTERS), np.inf))
    for seed in range(20):
        values = log_probs(12, len(CHARACTERS), seed)
        expected, found = (search(values, each, beams=3) for each in (unbounded, bounded))
        assert [each[:2] for each in found] == [each[:2] for each in expected]


def test_frames_may_come_in_parts(tmp_path: Path) -> None:
    """The tree grows on the way."""
    values, fused = log_probs(300, 4, seed=6), fusion(CHARACTERS, {"lm": lm_artifact(tmp_path / "lm", TEXTS)})
    beam = CtcBeam(fused, 8)
    for part in np.split(values, [1, 1, 7, 220]):
        beam.advance(part)
    whole, parts = search(values, fused, 8), beam.found()
    assert [each[:2] for each in parts] == [each[:2] for each in whole]
    assert np.array_equal([each[2] for each in parts], [each[2] for each in whole])


@pytest.mark.parametrize("names", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_words_are_scored_when_they_are_complete(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Total = ln p(paths) + scale · ln p(words </s>) + bonus · words + unknown · unknown words."""
    lm, values = lm_artifact(tmp_path / "words", TEXTS), log_probs(5, len(names), seed=1)
    given = {"lm_scale": 0.7, "word_bonus": 0.3, "unknown_word": -0.4}
    found = search(values, fusion(names, {"lm": lm}, **given), beams=2000)
    expected = {}
    for tokens, score in by_paths(values).items():
        words = words_of(tokens, names)
        unknown = sum(word not in {"a", "b", "ab", "ba"} for word in words)
        expected[tokens] = score + 0.7 * ln_p(lm, " ".join(words)) + 0.3 * len(words) - 0.4 * unknown
    assert {tuple(tokens): pytest.approx(score + sums[FUSED], abs=1e-4) for tokens, score, sums in found} == expected
    best = [tokens for tokens, _, _ in found[:3]]
    narrow = search(values, fusion(names, {"lm": lm}, **given), beams=300)
    assert [tokens for tokens, _, _ in narrow[:3]] == best


def test_tokens_are_scored_one_by_one_and_a_low_order_model_is_taken_off(tmp_path: Path) -> None:
    spelled = [" ".join(text.replace(" ", "▁")) for text in TEXTS]
    inputs = {"lm": lm_artifact(tmp_path / "lm", spelled, 4), "low_order_lm": lm_artifact(tmp_path / "low", spelled, 2)}
    values = log_probs(5, 4, seed=2)
    given = {"lm_scale": 0.6, "low_order_scale": 0.3, "word_bonus": 0.1}
    found, paths = search(values, fusion(CHARACTERS, inputs, **given), beams=2000), by_paths(values)
    assert len(found) == len(paths)
    for tokens, score, sums in found:
        sentence = " ".join(CHARACTERS[token].replace(" ", "▁") for token in tokens)
        main, low = (ln_p(inputs[role], sentence) for role in ("lm", "low_order_lm"))
        assert sums[FUSED] == pytest.approx(0.6 * main - 0.3 * low + 0.1 * len(tokens), abs=1e-4)
        assert paths[tuple(tokens)] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("names", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_hot_words_are_rewarded_where_they_are_whole_words_and_nowhere_else(names: tuple[str, ...]) -> None:
    values = log_probs(6, len(names), seed=4)
    found = search(values, fusion(names, hot_words=["ab", "a ab :2", "ba*"], hot_word_bonus=0.5), beams=6000)
    assert len(found) == len(by_paths(values))
    for tokens, _, sums in found:
        words = words_of(tokens, names)
        pairs = sum(pair == ["a", "ab"] for pair in (words[i : i + 2] for i in range(len(words))))
        reward = 2 * 0.5 * words.count("ab") + 4 * 2.0 * pairs + 2 * 0.5 * sum(w.startswith("ba") for w in words)
        assert sums[FUSED] == pytest.approx(reward, abs=1e-9), words


def test_a_hot_word_wins_where_it_is_nearly_as_likely_and_is_given_back_where_it_is_not_said() -> None:
    names = ("<blank>", " ", *"acrst")
    said = np.full((9, len(names)), -9.0, np.float32)
    for frame, token in enumerate("cat rats "):
        said[frame, names.index(token)] = -0.1
    said[3:5, :] = -9.0
    said[3, names.index("s")], said[3, names.index(" ")] = -0.9, -0.6
    said[4, names.index(" ")], said[4, 0] = -0.7, -0.7
    plain, hot = (search(said, fusion(names, hot_words=words), beams=8)[0][0] for words in ([], ["cats", "raster"]))
    assert words_of(plain, names)[0] == "cat"
    assert words_of(hot, names) == [words_of(plain, names)[0] + "s", *words_of(plain, names)[1:]]


def test_the_best_alignment_of_a_text_is_the_best_path_that_spells_it() -> None:
    values = log_probs(6, 4, seed=5)
    for tokens in [(), (1,), (2, 2), (1, 2, 1), (3, 3, 3)]:
        paths = [
            path
            for path in itertools.product(range(4), repeat=6)
            if tuple(token for token, _ in itertools.groupby(path) if token) == tokens
        ]
        best = max(paths, key=lambda path: values[np.arange(6), path].sum(dtype=np.float64))
        assert tuple(align(values, np.array(tokens, np.int64)).tolist()) == best
