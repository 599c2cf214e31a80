"""One word at a time, from states: the numbers of `batch`, of the slow reference and of KenLM."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from kenlm_package import kenlm_or_skip
from models import SMALL
from scorer import Scorer
from test_batch import EXPECTED, sentences
from test_mapped import models

from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.read import read_arrays
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.query.batch import score_sentences
from megahour.lm.query.calls import SHORT
from megahour.lm.query.convert import convert
from megahour.lm.query.mapped import HEADER, MappedModel, open_mapped
from megahour.lm.query.mapped_import import build, from_model, load_arpa, to_arrays
from megahour.lm.query.mapped_sink import estimate_mapped
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.query.states import Ngrams, step, word_number
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, UNKNOWN


@settings(max_examples=60, deadline=None)
@given(models(), sentences)
def test_each_word_has_the_probability_that_a_batch_gives_it(model: NgramModel, text: list[str]) -> None:
    """Also of models that lack suffixes and histories of their n-grams, and that tell no state from its beginning."""
    mapped = from_model(model)
    expected = score_sentences(mapped, text)
    words = np.where(expected.tokens == BOUNDARY, END, expected.tokens).tolist()
    for lm in (NgramScorer(mapped), NgramScorer(replace(mapped, minimised=False))):
        state, states, found = lm.begin(), [], []
        for word in words:
            states.append(state)
            logp, length, state = lm.score(state, word)
            found.append((np.float32(logp), length))
            state = lm.begin() if word == END else state
        assert found == list(zip(expected.word_log10_prob, expected.ngram_length, strict=True))
        many = lm.score_states(np.array(states, np.int64), np.array(words, np.int64))
        assert list(zip(np.float32(many.log10_prob), many.ngram_length, strict=True)) == found
        assert [state for state, word in zip(many.state.tolist(), words, strict=True) if word != END] == [
            after for after, word in zip(states[1:], words, strict=False) if word != END
        ]
        flat = [each for sentence in text for each in lm.full_scores(sentence)]
        assert [(np.float32(each[0]), each[1]) for each in flat] == found
        assert [each[2] for each in flat] == (expected.tokens == UNKNOWN).tolist()


@settings(max_examples=40, deadline=None)
@given(models(), sentences)
def test_sentences_may_begin_anywhere_and_need_not_end(model: NgramModel, text: list[str]) -> None:
    lm, reference = NgramScorer(from_model(model)), Scorer(model)
    for sentence in text:
        words = model.vocabulary.encode(sentence.split())
        expected = [reference.log10_prob(word, words[:i]) for i, word in enumerate(words)]
        assert [each[0] for each in lm.full_scores(sentence, bos=False, eos=False)] == pytest.approx(expected, abs=1e-5)
        whole = sum(expected) + reference.log10_prob(END, words)
        assert lm.score_sentence(sentence, bos=False) == pytest.approx(whole, abs=1e-4)
        after_begin = sum(reference.log10_prob(word, [BOUNDARY, *words[:i]]) for i, word in enumerate(words))
        assert lm.score_sentence(sentence, eos=False) == pytest.approx(after_begin, abs=1e-4)


@pytest.fixture(scope="module")
def lm() -> NgramScorer:
    return NgramScorer(load_arpa(EXPECTED / "order5.arpa"))


def walked(lm: NgramScorer, text: list[str]) -> list[tuple[int, tuple[str, ...]]]:
    """States of all beginnings of sentences, with the words so far."""
    found = []
    for sentence in text:
        words, state = sentence.split(), lm.begin()
        for i, word in enumerate(words):
            found.append((state, ("<s>", *words[:i])))
            state = lm.score(state, word)[2]
    return found


def longest(words: tuple[str, ...], histories: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The longest ending of `words` that is a history."""
    return next((words[i:] for i in range(len(words)) if words[i:] in histories), ())


def test_a_state_is_the_longest_history_that_any_ngram_has(lm: NgramScorer, tmp_path: Path) -> None:
    """Of models that were read and that were estimated; of a file without marks it is the longest n-gram."""
    estimate_mapped(read_corpus(line_blocks(SMALL, "lines")).corpus, 5, tmp_path / "own.mlm", cutoffs=[0, 0, 1])
    text = [*SMALL, "the captain saw the whale zzz boat the", "boat boat old"]
    for each in (NgramScorer.open(tmp_path / "own.mlm"), lm):
        model = to_arrays(each.model)
        spelled = [[tuple(model.vocabulary.words[w] for w in gram) for gram in grams.tolist()] for grams in model.grams]
        histories = {gram[:-1] for grams in spelled for gram in grams}
        assert [each.history(state) for state, _ in walked(each, text)] == [
            longest(words, histories) for _, words in walked(each, text)
        ]
    ngrams = {gram for grams in spelled[:-1] for gram in grams} | {("<unk>",)}
    unmarked = NgramScorer(replace(lm.model, minimised=False))
    for state, words in walked(unmarked, text):
        known = tuple(word if (word,) in ngrams else "<unk>" for word in words)
        assert unmarked.history(state) == longest(known, ngrams)


def test_sentences_meet_in_one_state_where_kenlms_do(lm: NgramScorer) -> None:
    kenlm = kenlm_or_skip()
    theirs = kenlm.Model(str(EXPECTED / "order5.arpa"))
    ours, others = {}, {}
    for sentence in [*SMALL, "zzz the old", "the zzz the old boat", "saw the old boat"]:
        state, other = lm.begin(), kenlm.State()
        theirs.BeginSentenceWrite(other)
        for word in [*sentence.split(), "</s>"]:
            assert ours.setdefault(state, other) == other
            assert others.setdefault(other, state) == state
            after = kenlm.State()
            full = theirs.BaseFullScore(other, word, after)
            logp, length, state = lm.score(state, word)
            assert (logp, length) == (pytest.approx(full.log_prob, abs=1e-6), full.ngram_length)
            assert (word in lm) == (word in theirs)
            other = after
        for bos, eos in ((True, True), (False, False)):
            expected = theirs.score(sentence, bos=bos, eos=eos)
            assert lm.score_sentence(sentence, bos=bos, eos=eos) == pytest.approx(expected, abs=1e-4)
    assert len(ours) > 50


def test_arrays_and_tensors_go_together_as_in_arithmetic(lm: NgramScorer) -> None:
    torch = pytest.importorskip("torch")
    states = np.array([state for state, _ in walked(lm, SMALL)])[:70]
    words = np.array([lm.number(word) for word in ["the", "old", "whale", "</s>", "zzz", "boat"]])
    grid = lm.score_states(states[:, None], words)
    assert grid.state.shape == (70, 6)
    for i, state in enumerate(states.tolist()):
        for j, word in enumerate(words.tolist()):
            assert lm.score(state, word) == (grid.log10_prob[i, j], grid.ngram_length[i, j], grid.state[i, j])
    tensors = lm.score_states(torch.from_numpy(states)[:, None], torch.from_numpy(words))
    for one, other in zip(tensors, grid, strict=True):
        assert one.equal(torch.from_numpy(other))
    assert lm.score_states(np.zeros(0, np.int64), np.int64(3)).state.shape == (0,)


def test_compiled_code_walks_by_itself(lm: NgramScorer) -> None:
    numba = pytest.importorskip("numba")

    @numba.njit
    def total(ngrams, state, words):  # type: ignore[no-untyped-def]
        result = 0.0
        for word in words:
            logp, _, state = step(ngrams, state, word)
            result += logp
        return result

    words = np.array([lm.number(word) for word in f"{SMALL[0]} </s>".split()])
    assert total(lm.ngrams, lm.begin(), words) == pytest.approx(lm.score_sentence(SMALL[0]), abs=1e-6)


def test_states_that_a_model_lacks_are_refused() -> None:
    small = NgramScorer(load_arpa(EXPECTED / "order2.arpa"))
    beyond = len(small.model.words) // 4
    for state in (-1, beyond + 1, 1 << 40, (1 << 32) | (1 << 31), 1 << 32):
        with pytest.raises(ValueError, match=f"state {state}"):
            small.score(state, "the")
        with pytest.raises(ValueError, match=f"state {state} or word 5 is not of this model"):
            small.score_states(np.array([0, state]), np.array([5, 5]))
    for word in (-1, beyond):
        with pytest.raises(ValueError, match=f"word {word}: not of this model, which has {beyond} words"):
            small.score(0, word)
    with pytest.raises(ValueError, match="not of this model"):
        small.history(beyond + 1)
    assert small.score(beyond, beyond - 1)[1] >= 1


def test_a_word_is_text_or_its_number(lm: NgramScorer) -> None:
    assert lm.score(lm.begin(), np.int64(5)) == lm.score(lm.begin(), 5)
    with pytest.raises(TypeError, match="a word is text or its number, not b'boat'"):
        lm.score(lm.begin(), b"boat")  # type: ignore[arg-type]


def test_a_line_break_in_a_sentence_is_an_error(lm: NgramScorer) -> None:
    for call in (lm.score_sentence, lm.full_scores):
        with pytest.raises(ValueError, match="contains a line break: 'the\\\\nboat'"):
            call("the\nboat")
    assert lm.full_scores("the\tboat </s>") == lm.full_scores("the boat")


@pytest.mark.parametrize("words", range(SHORT // 2 - 3, SHORT // 2 + 4))
def test_sentences_that_just_fit_on_the_stack_have_the_sum_of_their_words(lm: NgramScorer, words: int) -> None:
    dense = " ".join(["a"] * words)
    assert lm.score_sentence(dense) == pytest.approx(sum(each[0] for each in lm.full_scores(dense)))
    for breaks in (2 * words, 2 * words + 1):
        with pytest.raises(ValueError, match="contains a line break"):
            lm.score_sentence("\n" * breaks)


def test_sentences_at_any_place_in_memory_have_the_sum_of_their_words(lm: NgramScorer) -> None:
    """One in four of these ends so near the end of a page that it is copied."""
    text = ["x" * (SHORT - 20 - i % 7) + f" the old {i}" for i in range(300)]
    assert {lm.score_sentence(each) for each in text} == {lm.score_sentence("zzz the old zzz")}


def test_words_and_sentences_may_be_long_or_of_other_bytes_than_utf_8(lm: NgramScorer, tmp_path: Path) -> None:
    begin = lm.begin()
    assert lm.score_sentence("the\udce4 old boat") == lm.score_sentence("zzz old boat")
    for word in ("\udce4", "x" * 2 * SHORT):
        assert word not in lm
        assert lm.score(begin, word) == lm.score(begin, "<unk>")
    known, odd = "ä" * SHORT, "\udce4"
    words = [b"<unk>", b"<s>", b"</s>", known.encode(), b"\xe4"]
    lines = [b"-1\t" + word for word in words]
    arpa = tmp_path / "long.arpa"
    arpa.write_bytes(b"\\data\\\nngram 1=5\n\n\\1-grams:\n" + b"\n".join(lines) + b"\n\n\\end\\\n")
    long = NgramScorer.open(arpa)
    assert long.score(long.begin(), known) == long.score(long.begin(), long.number(known))
    assert long.number(odd) not in (UNKNOWN, long.number(known))
    with pytest.raises(TypeError):
        lm.score_sentence(b"the old boat")  # type: ignore[arg-type]


def test_threads_that_score_at_once_do_not_mix(lm: NgramScorer) -> None:
    text = [f"{sentence} {word}" for sentence in SMALL for word in ("the", "whale", "zzz", "boat the")] * 20
    expected = [(lm.score_sentence(each), lm.score(0, each.split()[-1])) for each in text]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(
                lambda part: [(lm.score_sentence(each), lm.score(0, each.split()[-1])) for each in part],
                [text[i:] + text[:i] for i in range(4)],
            )
            assert [sorted(each) for each in found] == [sorted(expected)] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_copied_scorer_has_arrays_of_its_own(lm: NgramScorer) -> None:
    """It had the addresses of the other one's, which another process does not have."""
    copied = pickle.loads(pickle.dumps(lm))
    assert copied.ngrams.entries_at == copied.model.entries.ctypes.data
    assert copied.score_sentence(SMALL[0]) == lm.score_sentence(SMALL[0])


def test_old_files_are_read_and_made_new(tmp_path: Path) -> None:
    """A file of an earlier version says nothing of marks, and may lack histories."""
    path, new = tmp_path / "old.mlm", tmp_path / "new.mlm"
    with ThreadedFile(path) as file:
        build(read_arrays(EXPECTED / "order3.arpa"), file, "order3")
    made = path.read_bytes()
    path.write_bytes(_aged(made))
    old = open_mapped(path)
    assert not old.minimised
    convert(path, new)
    assert open_mapped(new).minimised
    assert NgramScorer(replace(old, closed=False)).score_sentence(SMALL[0]) == pytest.approx(
        NgramScorer.open(new).score_sentence(SMALL[0]), abs=1e-6
    )
    with pytest.raises(ValueError, match="need every n-gram's history"):
        Ngrams.of(replace(old, closed=False))


def _aged(data: bytes) -> bytes:
    """The file with a header that says nothing of marks."""
    import hashlib
    import json
    import struct

    fixed = struct.Struct("<8sII32s")
    magic, version, size, _ = fixed.unpack(data[: fixed.size])
    header = json.loads(data[fixed.size : fixed.size + size])
    del header["minimised"]
    text = json.dumps(header, sort_keys=True).encode()
    head = fixed.pack(magic, version, len(text), hashlib.sha256(text).digest()) + text
    return head.ljust(HEADER, b"\0") + data[HEADER:]


@settings(max_examples=5, deadline=None)
@given(models())
def test_words_are_numbered_by_their_bytes(model: NgramModel) -> None:
    mapped: MappedModel = from_model(model)
    lm = NgramScorer(mapped)
    for number, word in enumerate([*model.vocabulary.words, "not there, and longer than eight bytes"]):
        text = np.zeros(len(word.encode()) + PADDING, np.uint8)
        text[: len(word.encode())] = np.frombuffer(word.encode(), np.uint8)
        known = number if number < len(model.vocabulary.words) else UNKNOWN
        assert lm.number(word) == known
        assert word_number(lm.ngrams, text, len(word.encode())) == (known if known > END else UNKNOWN)
