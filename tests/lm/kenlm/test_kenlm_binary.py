"""KenLM's binary files: the bytes of its build_binary, and scores of models that it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from kenlm_package import kenlm_or_skip
from scorer import Scorer

from megahour.cli.main import app
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel, read_arpa, write_arpa
from megahour.lm.kenlm import hashes, probing
from megahour.lm.kenlm.write import write_kenlm
from megahour.lm.query.mapped_import import load_arpa
from megahour.lm.query.scorer import NgramScorer

LMPLZ = Path(__file__).parents[1] / "lmplz"
FORMS = pytest.mark.parametrize("form", ["kenlm-probing", "kenlm-trie"])
BUILT = {
    ("order2", "kenlm-probing"): "2786931305f92278be0d0ee882cb833ed8aec599d1bdf1533c2316d974d0cc86",
    ("order2", "kenlm-trie"): "f567fb91dc57e8641b0bfc3f44fa94e55b8d0b600a1265eed66748f0152f09ca",
    ("order4-prune01", "kenlm-probing"): "3898c49fb6782291c4f1a29343492458b74b078cf8db580bfac769410a4894ba",
    ("order4-prune01", "kenlm-trie"): "356bfc9597a66afa9abb150133936273ee44bbe59dae7d35750fe6d1e7ed7b51",
    ("order7", "kenlm-probing"): "58e730dfc423bf2bc7caa8e565c6f58c0541810f20fadf5a8c700f973ee12ee7",
    ("order7", "kenlm-trie"): "aa24c4c1d726efad3cfc4d55230517c98b35d637c7fd66d78533152e856bfa00",
}
"""SHA-256 of what `build_binary probing|trie` of kpu/kenlm (4cb443e) makes of the ARPA files in `lmplz`."""


def convert(source: Path, out: Path, form: str) -> Path:
    done = CliRunner().invoke(app, ["lm", "convert", str(source), str(out), "--to", form], catch_exceptions=False)
    assert done.exit_code == 0
    return out


@pytest.mark.parametrize(("name", "form"), BUILT)
def test_the_bytes_are_those_of_build_binary(name: str, form: str, tmp_path: Path) -> None:
    out = convert(LMPLZ / f"{name}.arpa", tmp_path / "any.name", form)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == BUILT[name, form]


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that lacks beginnings and endings of its longer n-grams, which build_binary refuses; no <unk> either."""
    model = read_arpa(LMPLZ / "order5.arpa")
    grams, logp, backoff = ([*each] for each in (model.grams, model.log10_prob, model.log10_backoff))
    for k in (1, 2, 3):
        kept = np.random.default_rng(k).random(len(grams[k])) < 0.5
        grams[k], logp[k], backoff[k] = grams[k][kept], logp[k][kept], backoff[k][kept]
    path = tmp_path_factory.mktemp("gaps") / "gaps.arpa"
    with path.open("wb") as file:
        write_arpa(NgramModel(model.vocabulary, grams, logp, backoff), file)
    lines = path.read_text("utf-8").replace("ngram 1=32", "ngram 1=31").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "<unk>" not in line), "utf-8")
    return path


@FORMS
def test_scores_of_models_with_gaps_are_those_of_their_arpa_file(form: str, gaps: Path, tmp_path: Path) -> None:
    kenlm = kenlm_or_skip()
    theirs, ours = kenlm.Model(str(convert(gaps, tmp_path / "lm", form))), Scorer(read_arpa(gaps))
    mapped = NgramScorer(load_arpa(gaps))
    words = list(ours.vocabulary.words[3:])
    random = np.random.default_rng(1)
    for sentence in [random.choice([*words, "nobody"], 6).tolist() for _ in range(40)] + [words, words[::-1]]:
        text = " ".join(sentence)
        assert theirs.score(text) == pytest.approx(ours.sentence(sentence).log10_prob, abs=1e-4)
        assert theirs.score(text) == pytest.approx(mapped.score_sentence(text), abs=1e-4)
        found = [unknown for _, _, unknown in theirs.full_scores(text)]
        assert found == [word == "nobody" for word in [*sentence, "</s>"]]


def test_an_unknown_word_of_a_model_without_one_has_kenlms_probability(gaps: Path, tmp_path: Path) -> None:
    """build_binary -u: log10 p = -100."""
    assert read_arpa(gaps).log10_prob[0][0] == -100.0
    kenlm = kenlm_or_skip()
    for form in ("kenlm-probing", "kenlm-trie"):
        theirs = kenlm.Model(str(convert(gaps, tmp_path / form, form)))
        assert theirs.score("nobody", bos=False, eos=False) == -100.0


def test_mapped_models_become_kenlms_too(tmp_path: Path) -> None:
    kenlm = kenlm_or_skip()
    arpa, mapped = LMPLZ / "order3.arpa", tmp_path / "a.mlm"
    assert CliRunner().invoke(app, ["lm", "convert", str(arpa), str(mapped)]).exit_code == 0
    for form in ("kenlm-probing", "kenlm-trie"):
        theirs, expected = kenlm.Model(str(convert(mapped, tmp_path / form, form))), kenlm.Model(str(arpa))
        for text in ("the captain saw the old house", "a boat", "", "zzz the"):
            assert list(theirs.full_scores(text)) == list(expected.full_scores(text))


def test_hashes_are_murmurs() -> None:
    """Of the reference implementation: words of 0, 5, 8 and 17 bytes."""
    found = hashes.word_hashes([b"", b"<unk>", b"abcdefgh", "Straßenbahnfahrt".encode()])
    assert found.tolist() == [0, 0xEA91E7561F5B392B, 0xAFDB0257FF41AA98, 0x2F232DC6372325AB]


def test_models_that_the_forms_cannot_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MegahourError, match="need order 2 or more"):
        write_kenlm(read_arpa(LMPLZ / "order1.arpa"), tmp_path / "a", "kenlm-trie")
    monkeypatch.setattr(probing, "ngram_keys", lambda grams: np.full(len(grams), 5, np.uint64))
    with pytest.raises(MegahourError, match="two 2-grams have the same hash") as error:
        write_kenlm(read_arpa(LMPLZ / "order2.arpa"), tmp_path / "a", "kenlm-probing")
    assert "--to kenlm-trie" in (error.value.remedy or "")
