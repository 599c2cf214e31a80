"""Pronunciations: dictionaries in CMU's format, spelling, espeak-ng's rules, and the stage."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.store import Artifact
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.lm.params import LanguageModelParams
from megahour.lm.stage import LanguageModel
from megahour.runner.runner import run_stage
from megahour.units.lexicon import (
    espeak,
    graphemes,
    parse_dictionary,
    pronounce_all,
    read_lexicon,
    read_probabilities,
    write_lexicon,
    write_probabilities,
)
from megahour.units.lexicon_stage import MakeLexicon
from megahour.units.params import LexiconParams, PronunciationsParams
from megahour.units.pronunciations_stage import WeighPronunciations
from megahour.units.texts import file_lines

symbols = st.text("abcdefɔːʃ'ё", min_size=1, max_size=5)


def test_dictionaries_have_variants_comments_and_any_case() -> None:
    lines = [
        ";;; a comment",
        "AND                  AE N D",
        "AND(2)  AH N D # weak",
        "AND(3) AE N D",
        "",
        "don't  D OW N T",
    ]
    assert parse_dictionary(lines) == {"and": [["AE", "N", "D"], ["AH", "N", "D"]], "don't": [["D", "OW", "N", "T"]]}
    with pytest.raises(ConfigError, match=r"my\.dic:2: 'WHALE' has no phones"):
        parse_dictionary(["A  AH", "WHALE"], where="my.dic")


def test_probabilities_of_a_dictionary_are_no_phones() -> None:
    """The Montreal Forced Aligner's four, and Kaldi's one; 2 is a phone of X-SAMPA."""
    lines = ["and\t0.99\t0.14\t1.0\t1.05\tæ n d", "and\t0.25\t1e-05\t0.5\t1.5\tn", "deux 1.0 d 2"]
    assert parse_dictionary(lines) == {"and": [["æ", "n", "d"], ["n"]], "deux": [["d", "2"]]}


def test_spelling_keeps_letters_marks_and_digits() -> None:
    assert graphemes("O'Neill") == [list("oneill")]
    assert graphemes("cafe\u0301") == [list("café")]
    assert graphemes("mp3") == [["m", "p", "3"]]
    assert graphemes("'--'") == []


def test_espeak_pronounces_by_language_and_silent_words_are_named() -> None:
    lexicon, silent = pronounce_all(["water", "..."], espeak("en-us"))
    assert lexicon == {"water": [["w", "ɔː", "ɾ", "ɚ"]]}
    assert silent == ["..."]
    assert espeak("de")("wasser") != espeak("en-us")("wasser")


@given(st.dictionaries(symbols, st.lists(st.lists(symbols, min_size=1, max_size=4), min_size=1, max_size=2)))
def test_files_read_back(lexicon: dict[str, list[list[str]]]) -> None:
    assert read_lexicon(write_lexicon(lexicon)) == lexicon


def test_words_with_spaces_and_line_ends_of_unicode_stay_whole(tmp_path: Path, engine: LocalEngine) -> None:
    """A language model's words end at spaces of ASCII only."""
    lexicon = {word: [["a", "b"]] for word in ("10\u00a0000", "b\u2028c", "d\x85", "\u3000e")}
    assert read_lexicon(write_lexicon(lexicon)) == lexicon
    weights = dict.fromkeys(((word, "a b") for word in lexicon), 0.5)
    assert read_probabilities(write_probabilities(lexicon, weights)) == weights
    assert read_lexicon("") == {}
    lm = write_artifact(tmp_path / "lm", [({}, {".vocab.txt": b"caf\xe9\nnoir\n"})], {})
    with pytest.raises(MegahourError, match=r"lm: its words are not UTF-8: byte 0xe9\n.*iconv"):
        make(tmp_path, engine, LexiconParams(source="graphemes"), lm=lm)


def test_a_word_without_phones_in_a_file_is_refused() -> None:
    with pytest.raises(MegahourError, match="'boat' has no phones"):
        read_lexicon("red  R E D\nboat\n")


def make(folder: Path, engine: LocalEngine, params: LexiconParams, **inputs: Artifact) -> Artifact:
    output = Artifact(folder / "lexicon")
    run_stage(MakeLexicon(), params, inputs, output, engine, work=folder / "work")
    return output


def test_the_stage_takes_the_words_of_a_language_model_and_says_what_is_missing(
    tmp_path: Path, engine: LocalEngine
) -> None:
    (tmp_path / "text.txt").write_text("the red boat\n", "utf-8")
    (tmp_path / "my.dic").write_text("\ufeffRED  R E D\nBOAT  B O T\nBOAT(2)  B O U T\n", "utf-8")
    lm = Artifact(tmp_path / "lm")
    params = LanguageModelParams(source=[str(tmp_path / "text.txt")])
    run_stage(LanguageModel(), params, {}, lm, engine, work=tmp_path / "work")
    params_of_lexicon = LexiconParams(source="dictionary", dictionary=str(tmp_path / "my.dic"))
    output = make(tmp_path, engine, params_of_lexicon, lm=lm)
    assert output.read_bytes(0, ".lexicon.txt").decode() == "boat  B O T\nboat  B O U T\nred  R E D\n"
    assert output.manifest.counts.dropped == {"not-in-dictionary": 1}
    assert output.summary["dropped_words"] == ["the"]
    assert output.summary["phones"] == ["B", "D", "E", "O", "R", "T", "U"]
    assert "repeated" not in output.summary


def test_words_that_the_dictionary_lacks_are_guessed_from_those_that_it_has(
    tmp_path: Path, engine: LocalEngine
) -> None:
    dictionary = tmp_path / "my.dic"
    known = ["".join(word) for word in itertools.product("td", "ae", "td") if word != ("t", "e", "d")]
    dictionary.write_text("".join(f"{word}  {' '.join(word.upper())}\n" for word in known) + "dad  D A D\n", "utf-8")
    text = write_artifact(tmp_path / "text", [({}, {".txt": b"dad ted tx\n"})], {})
    params = LexiconParams(source="dictionary", dictionary=str(dictionary), guess=True)
    output = make(tmp_path, engine, params, text=text)
    assert output.read_bytes(0, ".lexicon.txt").decode() == "dad  D A D\nted  T E D\n"
    assert (output.summary["guessed"], output.summary["guessed_words"], output.summary["repeated"]) == (1, ["ted"], 1)
    assert output.manifest.counts.dropped == {"not-in-dictionary": 1}


def test_pronunciations_are_weighed_by_their_use(tmp_path: Path, engine: LocalEngine) -> None:
    text = "and  AE N D\nand  AH N D\nred  R E D\n"
    lexicon = write_artifact(tmp_path / "lexicon", [({}, {".lexicon.txt": text.encode()})], {})
    uses = [{"word": "and", "pronunciation": "AH N D", "count": 4}, {"word": "gone", "pronunciation": "G", "count": 1}]
    shard = ({}, {".spoken.parquet": pa.Table.from_pylist(uses)})
    units = write_artifact(tmp_path / "units", [shard, shard], {})
    output = Artifact(tmp_path / "weighed")
    inputs = {"lexicon": lexicon, "units": units}
    run_stage(WeighPronunciations(), PronunciationsParams(), inputs, output, engine, work=tmp_path / "work")
    assert output.read_bytes(0, ".lexicon.txt").decode() == text
    weights = output.read_bytes(0, ".lexiconp.txt").decode()
    assert weights == "and 0.111111  AE N D\nand 1  AH N D\nred 1  R E D\n"
    assert read_probabilities(weights)["and", "AE N D"] == pytest.approx(1 / 9, abs=1e-6)
    assert output.summary == {"words": 2, "pronunciations": 3, "with_several": 1, "counted": 1}


@pytest.mark.parametrize("line", ["red", "red 0.5", "red R E D", "red 0 R", "red 1.5 R", "red nan R"])
def test_a_pronunciation_without_a_probability_is_refused(line: str) -> None:
    with pytest.raises(MegahourError, match="file:2"):
        read_probabilities(f"a 1  A\n{line}\n", where="file")


def test_a_dictionary_alone_gives_all_its_words_and_is_read_again_when_it_changes(
    tmp_path: Path, engine: LocalEngine
) -> None:
    path, params = tmp_path / "my.dic", LexiconParams(source="dictionary", dictionary=str(tmp_path / "my.dic"))
    path.write_text("RED  R E D\n", "utf-8")
    assert make(tmp_path, engine, params).summary["words"] == 1
    path.write_text("RED  R E D\nOLD  O L D\n", "utf-8")
    assert make(tmp_path, engine, params).summary["words"] == 2


def test_a_line_without_phones_costs_that_line_and_another_encoding_is_named(
    tmp_path: Path, engine: LocalEngine
) -> None:
    path, params = (
        tmp_path / "my.dic",
        LexiconParams(source="dictionary", dictionary=str(tmp_path / "my.dic"), max_bad=1),
    )
    path.write_text("RED  R E D\nWHALE\n", "utf-8")
    output = make(tmp_path, engine, params)
    assert output.summary["words"] == 1
    assert [(bad["id"], bad["reason"]) for bad in output.bad_records()] == [("line 2: WHALE", "no-phones")]
    path.write_bytes("RED  R E D\nCAFÉ  K A F E\n".encode("latin1"))
    with pytest.raises(TaskFailed, match=r"my\.dic: not UTF-8, after line \d: byte 0xc9\n.*iconv -f latin1"):
        make(tmp_path, engine, params)


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"hello\n" * 999)[:20], b"hello\n", gzip.compress(b"hi")[:10] + b"?" * 9],
    ids=["cut short", "plain", "broken"],
)
def test_a_damaged_gzip_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "text.txt.gz").write_bytes(data)
    with pytest.raises(ConfigError, match=r"text\.txt\.gz: damaged gzip, after line \d"):
        list(file_lines([str(tmp_path / "text.txt.gz")]))


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (LexiconParams(), ConfigError, "no words"),
        (LexiconParams(source="dictionary"), ConfigError, "set `dictionary`"),
        (LexiconParams(guess=True), ConfigError, "guess learns from a dictionary"),
        (LexiconParams(source="dictionary", dictionary="EMPTY"), TaskFailed, "none of 0 words has a pronunciation"),
    ],
)
def test_impossible_jobs_are_refused(
    params: LexiconParams, error: type[Exception], message: str, tmp_path: Path, engine: LocalEngine
) -> None:
    (tmp_path / "empty.dic").write_text(";;; nothing\n", "utf-8")
    if params.dictionary:
        params = params.model_copy(update={"dictionary": str(tmp_path / "empty.dic")})
    with pytest.raises(error, match=message):
        make(tmp_path, engine, params)


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    (tmp_path / "talks [2019]").mkdir()
    (tmp_path / "talks [2019]/a*.txt").write_text("one")
    (tmp_path / "talks [2019]/abc.txt").write_text("two")
    assert list(file_lines([str(tmp_path / "talks [2019]/a*.txt")])) == ["one"]
