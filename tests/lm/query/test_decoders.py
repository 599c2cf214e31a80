"""Other decoders run with our models, and find what they find with KenLM's."""

from __future__ import annotations

import numpy as np
import pytest
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
    kenlm = pytest.importorskip("kenlm", reason="pip install kenlm to compare with it")
    alphabet, words = pyctcdecode.Alphabet.build_alphabet(LABELS), lm.model.spelled()[3:]
    theirs = pyctcdecode.BeamSearchDecoderCTC(alphabet, pyctcdecode.LanguageModel(kenlm.Model(str(ARPA)), words))
    ours = pyctcdecode.BeamSearchDecoderCTC(alphabet, PyctcdecodeModel(lm))
    for seed, text in enumerate([*SMALL[:5], "a zebra saw the boat"]):
        outputs = heard(text, seed)
        one, other = (decoder.decode_beams(outputs, beam_width=20) for decoder in (ours, theirs))
        assert [beam[0] for beam in one] == [beam[0] for beam in other]
        assert [beam[-1] for beam in one] == pytest.approx([beam[-1] for beam in other], abs=1e-3)


def test_flashlights_decoder_scores_its_texts_as_the_model_does(lm: NgramScorer) -> None:
    decoder = pytest.importorskip("flashlight.lib.text.decoder", reason="pip install flashlight-text to decode with it")
    words = [word for word in lm.model.spelled()[3:] if set(word) <= set(LABELS[2:])]
    model = flashlight_model(lm, words)
    trie = decoder.Trie(len(LABELS), 1)
    for number, word in enumerate(words):
        first = model.score(model.start(False), number)[1]
        trie.insert([*(LABELS.index(letter) for letter in word), 1], number, first)
    trie.smear(decoder.SmearingMode.MAX)
    options = decoder.LexiconDecoderOptions(
        beam_size=200, beam_size_token=len(LABELS), beam_threshold=1e3, lm_weight=2.0, word_score=0.0,
        unk_score=-np.inf, sil_score=0.0, log_add=False, criterion_type=decoder.CriterionType.CTC,
    )  # fmt: skip
    search = decoder.LexiconDecoder(options, trie, model, 1, 0, len(words), [], False)
    for seed, text in enumerate(SMALL[:4]):
        outputs = heard(f"{text} ", seed, 40.0)
        found = search.decode(outputs.ctypes.data, *outputs.shape)
        texts = [" ".join(words[number] for number in each.words if number >= 0) for each in found[:5]]
        assert texts[0] == text
        for each, spelled in zip(found[:5], texts, strict=True):
            assert each.lmScore == pytest.approx(lm.score_sentence(spelled), abs=1e-3)


def test_flashlights_states_are_shared_where_ours_are_one(lm: NgramScorer) -> None:
    pytest.importorskip("flashlight.lib.text.decoder", reason="pip install flashlight-text to ask its class")
    model = flashlight_model(lm, ["the", "zzz", "boat"])
    begun = model.start(False)
    first, logp = model.score(begun, 1)
    assert logp == pytest.approx(lm.score(lm.begin(), "zzz")[0])
    assert first is model.start(True), "nothing is known after an unknown word"
    assert model.score(begun, 17) == (first, logp), "a number that has no word"
    assert model.finish(begun)[1] == pytest.approx(lm.score(lm.begin(), "</s>")[0])
