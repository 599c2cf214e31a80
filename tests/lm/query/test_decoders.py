"""Other decoders run with our models, and give the same results as with KenLM's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kenlm_package import kenlm_or_skip
from models import SMALL
from test_batch import EXPECTED

from megahour.lm.query.decoders import LN10, PyctcdecodeModel, flashlight_model
from megahour.lm.query.mapped_import import load_arpa
from megahour.lm.query.scorer import NgramScorer

ARPA = EXPECTED / "order3.arpa"
LABELS = ["", " ", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture(scope="module")
def lm() -> NgramScorer:
    return NgramScorer(load_arpa(ARPA))


def heard(text: str, seed: int, clearness: float = 4.0) -> np.ndarray:
    """ln p (T, V) of CTC that hears `text`, and noise beside it."""
    rng, rows = np.random.default_rng(seed), []
    for letter in text:
        for label in (LABELS.index(letter), 0):
            row = rng.exponential(1.0, len(LABELS))
            row[label] += rng.exponential(clearness)
            rows.append(np.log(row / row.sum()))
    return np.array(rows, np.float32)


def test_words_and_ends_have_the_scores_that_pyctcdecode_wants(lm: NgramScorer) -> None:
    model = PyctcdecodeModel(lm, alpha=0.7, beta=0.2)
    state, total = model.get_start_state(), 0.0
    for i, word in enumerate(["the", "captain", "zzz", "boat"]):
        found, state = model.score(state, word, is_last_word=i == 3)
        total += found
    expected = 0.7 * LN10 * (lm.score_sentence("the captain zzz boat") - 10.0) + 4 * 0.2
    assert total == pytest.approx(expected, abs=1e-5)
    assert [model.score_partial_token(text) for text in ("cap", "", "zz", "zzzzzzzzz")] == [0.0, 0.0, -10.0, -15.0]
    model.reset_params(alpha=0.0, beta=None, unk_score_offset=-4.0, score_boundary=False)
    assert model.score(model.get_start_state(), "zzz", is_last_word=True)[0] == 0.2
    assert model.score_partial_token("zz") == -4.0
    assert model.get_start_state() == lm.begin(bos=False)
    assert PyctcdecodeModel(lm, ["boat", "zzz"]).score_partial_token("cap") == -10.0
    assert model.order == 3


def test_pyctcdecode_finds_the_texts_that_it_finds_with_kenlm(lm: NgramScorer) -> None:
    pyctcdecode = pytest.importorskip("pyctcdecode", reason="pip install pyctcdecode to decode with it")
    kenlm = kenlm_or_skip()
    alphabet, words = pyctcdecode.Alphabet.build_alphabet(LABELS), lm.model.spelled()[3:]
    theirs = pyctcdecode.BeamSearchDecoderCTC(alphabet, pyctcdecode.LanguageModel(kenlm.Model(str(ARPA)), words))
    ours = pyctcdecode.BeamSearchDecoderCTC(alphabet, PyctcdecodeModel(lm))
    for seed, text in enumerate([*SMALL[:5], "a zebra saw the boat"]):
        outputs = heard(text, seed)
        one, other = (decoder.decode_beams(outputs, beam_width=20) for decoder in (ours, theirs))
        assert [beam[0] for beam in one] == [beam[0] for beam in other]
        assert [beam[-1] for beam in one] == pytest.approx([beam[-1] for beam in other], abs=1e-3)


def flashlight_search(decoder: Any, model: Any, words: list[str]) -> Any:
    """A beam search for `words` in which hypotheses are weighed by a model."""
    trie = decoder.Trie(len(LABELS), 1)
    begun = model.start(False)
    for number, word in enumerate(words):
        trie.insert([*(LABELS.index(letter) for letter in word), 1], number, model.score(begun, number)[1])
    trie.smear(decoder.SmearingMode.MAX)
    options = decoder.LexiconDecoderOptions(
        beam_size=200, beam_size_token=len(LABELS), beam_threshold=1e3, lm_weight=2.0, word_score=0.0,
        unk_score=-np.inf, sil_score=0.0, log_add=False, criterion_type=decoder.CriterionType.CTC,
    )  # fmt: skip
    return decoder.LexiconDecoder(options, trie, model, 1, 0, len(words), [], False)


@pytest.fixture(scope="module")
def spelled(lm: NgramScorer) -> list[str]:
    """Words that the labels spell."""
    return [word for word in lm.model.spelled()[3:] if set(word) <= set(LABELS[2:])]


def test_flashlights_decoder_finds_the_n_best_lists_that_it_finds_with_kenlm(
    lm: NgramScorer, spelled: list[str]
) -> None:
    decoder = pytest.importorskip("flashlight.lib.text.decoder", reason="pip install flashlight-text to decode with it")
    kenlm = pytest.importorskip("flashlight.lib.text.decoder.kenlm", reason="pip install kenlm to compare with it")
    from flashlight.lib.text.dictionary import Dictionary

    theirs = kenlm.KenLM(str(ARPA), Dictionary(spelled))
    models = [flashlight_model(lm, spelled), theirs, flashlight_model(lm, spelled, merged=True)]
    ours, other, merged = (flashlight_search(decoder, model, spelled) for model in models)
    for seed, text in enumerate(SMALL[:4]):
        outputs = heard(f"{text} ", seed)
        found, expected, fewer = (
            search.decode(outputs.ctypes.data, *outputs.shape) for search in (ours, other, merged)
        )
        lists = [[tuple(n for n in each.words if n >= 0) for each in one[:20]] for one in (found, expected)]
        assert lists[0] == lists[1]
        assert len(set(lists[0])) == 20
        assert [each.score for each in found[:20]] == pytest.approx([each.score for each in expected[:20]], abs=1e-3)
        assert len(fewer) < len(found)
        assert fewer[0].score >= found[0].score - 1e-3
        for each in found[:5]:
            known = " ".join(spelled[number] for number in each.words if number >= 0)
            assert each.lmScore == pytest.approx(lm.score_sentence(known), abs=1e-3)


def test_states_of_earlier_sentences_are_forgotten(lm: NgramScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flashlight.lib.text.decoder", reason="pip install flashlight-text to ask its class")
    monkeypatch.setattr("megahour.lm.query.decoders.MOST_STATES", 3)
    model = flashlight_model(lm, ["the", "boat"])
    begun = model.start(False)
    for word in (0, 1, 0):
        state, _ = model.score(begun, word)
        assert model.score(begun, word)[0] is state
    assert model.start(False) is not begun
    model.score(model.start(True), 0)
    with pytest.raises(KeyError):
        model.score(state, 0)


def test_flashlights_states_are_shared_where_ours_are_one(lm: NgramScorer) -> None:
    pytest.importorskip("flashlight.lib.text.decoder", reason="pip install flashlight-text to ask its class")
    model = flashlight_model(lm, ["the", "zzz", "boat"], merged=True)
    begun = model.start(False)
    first, logp = model.score(begun, 1)
    assert logp == pytest.approx(lm.score(lm.begin(), "zzz")[0])
    assert first is model.start(True), "nothing is known after an unknown word"
    assert model.score(begun, 17) == (first, logp), "a number that has no word"
    assert model.finish(begun)[1] == pytest.approx(lm.score(lm.begin(), "</s>")[0])
