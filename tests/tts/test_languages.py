"""A voice of several languages pronounces the words of each by its own rules."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from exported import stored
from made_utterances import utterance, write_utterances
from made_voices import TINY, corpus, ran, voice_data

from megahour.cli.main import app
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.generate.espeak import phonemes
from megahour.features.mel_spectrum import MelSpectrum
from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.models.configuration import read_config
from megahour.train.stage import Train
from megahour.tts.params import SpeakParams
from megahour.tts.speak_stage import Speak
from megahour.tts.speaking import Speaker
from megahour.units.lexicon import lexicon_of
from megahour.units.lexicon_stage import MakeLexicon
from megahour.units.params import LexiconParams

WORDS = {"it": "guida", "en": "guide", "en-GB": "car"}


@pytest.fixture
def texts(tmp_path: Path) -> Artifact:
    rows = [utterance(tag, "someone", language=tag, text=f"{word} no", raw=f"{word} no") for tag, word in WORDS.items()]
    return write_utterances(tmp_path / "texts", [rows])


def test_a_word_has_a_pronunciation_for_each_language_that_has_it(texts: Artifact, tmp_path: Path) -> None:
    params = LexiconParams(language="en-us", languages={"it": "it", "en-GB": "en"})
    lexicon = lexicon_of(ran(MakeLexicon(), params, {"selection": texts}, tmp_path / "lexicon"))
    own = {"guida": "it", "guide": "en-us", "car": "en"}
    assert {word: lexicon[word] for word in own} == {word: [phonemes(word, name)] for word, name in own.items()}
    assert lexicon["no"] == [phonemes("no", name) for name in ("en", "en-us", "it")]
    with pytest.raises(ConfigError, match="espeak-ng and to utterances"):
        MakeLexicon().check(params, ["text"])


def test_rules_go_with_the_data_into_the_model(tmp_path: Path) -> None:
    pytest.importorskip("pyworld", reason="needs the extra tts")
    data = voice_data(tmp_path / "data", corpus(tmp_path), language="en-us", languages={"und": "it"})
    model = ran(Train(), TrainParams(**{**TINY, "whole_epochs": 1}), {"features": data}, tmp_path / "model")
    assert read_config(model)["rules"] == {"und": "it"}
    assert Speaker(model.url).pronounce.rules is not None


@pytest.fixture
def model(tmp_path: Path) -> Artifact:
    """A voice of English and Italian that has learnt nothing."""
    phones = {phone for word in (*WORDS.values(), "no") for name in ("it", "en-us") for phone in phonemes(word, name)}
    config: dict[str, Any] = {
        **{"kind": "voice", "inputs": 20, "outputs": 20, "layers": 1, "units": 8, "decoder": "fast"},
        **{"decoder_layers": 1, "symbols": ["", " ", *sorted(phones)], "voices": ["x"], "languages": ["en", "it"]},
        **{"language": "en-us", "rules": {"it": "it"}, "scripts": ["LATIN"], "licences": [], "attributions": []},
        **{"spectrum": asdict(MelSpectrum(8_000, 20)), "pitch": [5.0, 0.2]},
        "stats": {"mean": [0.0] * 20, "inv_std": [1.0] * 20},
    }
    return stored(tmp_path / "model", build(config, seed=1), config, "own")


def test_texts_are_spoken_in_their_own_language(texts: Artifact, model: Artifact, tmp_path: Path) -> None:
    speaker = Speaker(model.url)
    for tag, name in (("it", "it"), ("en", "en-us"), ("", "en-us")):
        (piece,) = speaker.reader(tag).pieces("guida")
        assert piece.symbols == [" ", *phonemes("guida", name), " "] if name == "it" else "ɡ" in piece.symbols
    rows = ran(Speak(), SpeakParams(), {"texts": texts, "voice": model}, tmp_path / "said").read_table(0).to_pylist()
    assert [row["language"] for row in rows] == ["it", "en", "en"], "en-GB is not one of the voice's"
    rows = ran(Speak(), SpeakParams(language="it"), {"texts": texts, "voice": model}, tmp_path / "it").read_table(0)
    assert set(rows["language"].to_pylist()) == {"it"}


def test_a_text_in_a_language_that_the_voice_does_not_speak_goes_to_quarantine(model: Artifact, tmp_path: Path) -> None:
    rows = [utterance(tag, "someone", language=tag, text="no", raw="no") for tag in ("de", "en-GB", "und")]
    inputs = {"texts": write_utterances(tmp_path / "texts", [rows]), "voice": model}
    said = ran(Speak(), SpeakParams(), inputs, tmp_path / "said")
    assert sorted(said.read_table(0)["language"].to_pylist()) == ["en", "en"]
    (bad,) = said.bad_records()
    assert (bad["reason"], "the text is in de, the voice speaks en, it" in bad["detail"]) == ("other-language", True)


def test_say_names_the_language_of_a_text_that_is_surely_another(model: Artifact, tmp_path: Path) -> None:
    german = "no no, die Wohnung ist noch nicht fertig, und wir werden bis zum Ende des Jahres warten müssen"
    english = "no no, the flat is not finished yet, and we will have to wait until the end of the year for it"
    for text, named in ((german, True), (english, False), ("no, noch nicht", False)):
        done = CliRunner().invoke(app, ["say", text, "--voice", model.url, "--out", str(tmp_path / "said.wav")])
        assert done.exit_code == 0, done.output
        assert ("seems to be in de, and was spoken by the rules of en" in done.output) is named
