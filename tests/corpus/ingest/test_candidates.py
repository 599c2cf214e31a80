"""Several transcripts for one recording: which are candidates, which are left out and why, and how they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_media import encode, murmur, put

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.store import Artifact
from megahour.corpus.ingest.audio_language import Head
from megahour.corpus.ingest.candidates import RawTranscript, choose_by_tag, fit_candidates, read_candidates
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.text.language_id import MIN_LETTERS, canonical, endless_word, identify, same_language, script_share
from megahour.corpus.transcripts.pairing import FileGroup, group_files, language_tag
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

ENGLISH = (
    "Please stay on the line, and the next free operator will help you as soon as possible. Thank you for waiting."
)
FRENCH = (
    "Veuillez rester en ligne, le prochain opérateur disponible vous répondra dès que possible. Merci de patienter."
)
SPANISH = (
    "Por favor, permanezca en la línea y el próximo operador disponible le atenderá lo antes posible. Muchas gracias."
)
RUSSIAN = "Пожалуйста, оставайтесь на линии, и первый освободившийся оператор ответит вам. Спасибо за ожидание."


def srt(*cues: tuple[float, str]) -> str:
    """Subtitles of one second each."""

    def clock(seconds: float) -> str:
        return f"{int(seconds // 3600):02d}:{int(seconds // 60 % 60):02d}:{seconds % 60:06.3f}".replace(".", ",")

    return "".join(f"{i}\n{clock(start)} --> {clock(start + 1)}\n{text}\n\n" for i, (start, text) in enumerate(cues, 1))


def read(*texts: str, declared: str = "en", **params: Any) -> Any:
    """Candidates of plain texts."""
    return read_candidates([RawTranscript(text.encode(), ".txt") for text in texts], declared, IngestParams(**params))


def reason_of(*texts: str, declared: str = "en", **params: Any) -> str:
    with pytest.raises(BadRecord) as caught:
        read(*texts, declared=declared, **params)
    assert caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize(
    ("paths", "pairing", "groups"),
    [
        (["a/t.mp3", "a/t.srt", "a/t.vtt", "a/t.json"], "name", [("a/t.mp3", ["a/t.srt"], "a/t.json")]),
        (["t.mp3", "t.info.json", "t.json", "t.fr.vtt"], "name",
         [("t.mp3", ["t.json", "t.fr.vtt"], "t.json t.info.json")]),
        (["t.mp3", "t.en.srt", "t.fr.vtt"], "name", [("t.mp3", ["t.en.srt", "t.fr.vtt"], "")]),
        (["t.mp3", "t.mp3.srt", "t.mp3.de.srt"], "name", [("t.mp3", ["t.mp3.srt", "t.mp3.de.srt"], "")]),
        (["t.mp3", "other.srt"], "name", [("t.mp3", [], ""), ("", ["other.srt"], "")]),
        (["i/t.mp3", "i/captions.srt", "i/captions.txt"], "folder", [("i/t.mp3", ["i/captions.srt"], "")]),
        (["i/t.mp3", "i/t.srt", "i/x.srt"], "folder", [("i/t.mp3", ["i/t.srt", "i/x.srt"], "")]),
        (["cafe\u0301.mp3", "caf\u00e9.en.srt"], "name", [("cafe\u0301.mp3", ["caf\u00e9.en.srt"], "")]),
        (["i/t.mp3", "j/x.srt"], "folder", [("i/t.mp3", [], ""), ("", ["j/x.srt"], "")]),
        (["i/a.mp3", "i/b.mp3", "i/i_meta.json", "i/x.srt"], "folder",
         [("i/a.mp3", ["i/x.srt"], "i/i_meta.json"), ("i/b.mp3", ["i/x.srt"], "i/i_meta.json")]),
        (["i/a.mp3", "i/a.json", "i/i_meta.json"], "folder", [("i/a.mp3", ["i/a.json"], "i/a.json i/i_meta.json")]),
    ],
)  # fmt: skip
def test_which_files_belong_together(paths: list[str], pairing: Any, groups: list[tuple[str, list[str], str]]) -> None:
    found = [group._replace(others=()) for group in group_files(paths, pairing)]
    assert found == [FileGroup(media, tuple(texts), tuple(info.split())) for media, texts, info in groups]


@given(st.lists(st.from_regex(r"[ab]/[a-d](\.(en|fr))?\.(wav|srt|txt|vtt)", fullmatch=True), max_size=25, unique=True))
def test_by_folder_every_medium_keeps_the_candidates_that_its_name_gives(paths: list[str]) -> None:
    by_name = {group.media: group.transcripts for group in group_files(sorted(paths)) if group.media}
    by_folder = {group.media: group.transcripts for group in group_files(sorted(paths), "folder") if group.media}
    assert by_name.keys() == by_folder.keys()
    for media, transcripts in by_folder.items():
        assert transcripts[: len(by_name[media])] == by_name[media]
        folder = media.partition("/")[0]
        assert all(path.startswith(folder) for path in transcripts)
        others = {
            path for other in by_name for path in by_name[other] if other.rpartition(".")[0] != media.rpartition(".")[0]
        }
        assert not others & set(transcripts), "what another medium's name claims is no candidate"


@pytest.mark.parametrize(
    ("paths", "declared", "chosen"),
    [
        (["t.srt", "t.en.srt", "t.fr.srt"], "en", [1]),
        (["t.srt", "t.en.srt", "t.fr.srt"], "de", [0, 1, 2]),
        (["t.pt.srt", "t.pt-BR.srt"], "pt-BR", [1]),
        (["t.pt.srt", "t.pt-BR.srt"], "pt", [0]),
        (["t.eng.srt", "t.fra.srt"], "fr", [1]),
        (["t.srt"], "und", [0]),
    ],
)
def test_the_declared_language_picks_among_tagged_names(paths: list[str], declared: str, chosen: list[int]) -> None:
    assert choose_by_tag(paths, declared) == chosen


@pytest.mark.parametrize(
    ("written", "tag"),
    [("English", "en"), ("eng", "en"), ("EN_us", "en-US"), ("fre", "fr"), ("Deutsch", "de"), ("pt-BR", "pt-BR")],
)
def test_languages_as_people_write_them(written: str, tag: str) -> None:
    assert canonical(written) == tag == canonical(tag)
    assert same_language(written, tag)


@pytest.mark.parametrize(("text", "language"), [(ENGLISH, "en"), (FRENCH, "fr"), (SPANISH, "es"), (RUSSIAN, "ru")])
def test_the_language_of_a_text_is_identified(text: str, language: str) -> None:
    found = identify(text.lower(), expected=language)
    assert found.language == language
    assert found.probability == found.expected > 0.8
    assert identify(text.lower(), expected="de", among=["de", language]).expected < 0.05


def test_the_language_of_a_short_text_stays_unknown() -> None:
    short = ENGLISH[:MIN_LETTERS]
    assert identify(short).language == ""
    assert identify("")._replace(probability=0.0) == ("", 0.0, 0.0)


def test_scripts() -> None:
    assert script_share(RUSSIAN, "ru") == 1
    assert script_share(RUSSIAN, "en") == 0
    assert script_share(RUSSIAN, "xx") == script_share("123", "en") == 1, "no evidence is no mismatch"
    assert 0.5 < script_share(ENGLISH + "Привет", "en") < 1


def test_texts_in_another_language_or_script_are_left_out() -> None:
    assert reason_of(FRENCH) == "language-mismatch"
    assert reason_of(RUSSIAN) == "script-mismatch"
    assert reason_of("Привет") == "script-mismatch", "a script needs less text than a language"
    found = read(FRENCH, ENGLISH, RUSSIAN)
    assert [candidate.detected.language for candidate in found.kept] == ["en"]
    assert found.counts == {"candidates_language-mismatch": 1, "candidates_script-mismatch": 1}
    assert len(read(FRENCH, on_language_mismatch="keep").kept) == 1
    assert reason_of(SPANISH, declared="fr", text_languages=["en", "es"]) == "language-mismatch"


def test_a_language_that_the_model_does_not_know_is_not_judged() -> None:
    assert len(read(SPANISH, declared="lad").kept) == 1, "Ladino is taken for Spanish"


def test_numbers_are_read_in_the_language_that_an_undeclared_text_is_in() -> None:
    (candidate,) = read(FRENCH + " Appuyez sur 4.", declared="und").kept
    assert candidate.language == "fr"
    assert candidate.spoken[-1].tokens[-1] == "quatre"


def test_one_endless_word() -> None:
    assert reason_of("a" * 2_000_000) == "endless-word"
    assert endless_word("ab " * 5000, 1000) == 0
    assert endless_word("漢字" * 1000, 1000) == 0, "scripts without spaces have no words"
    assert endless_word("x" * 1001, 1000) == 1001


def of_times(*starts: float) -> RawTranscript:
    return RawTranscript(srt(*((start, f"line at {start}") for start in starts)).encode(), ".srt")


def test_times_far_behind_the_end_speak_against_a_candidate() -> None:
    p = IngestParams()
    found = read_candidates([of_times(1, 50, 300), of_times(1, 50, 61)], "en", p)
    fit_candidates(found, 60 * 16_000, 16_000)
    assert [cue.start_samples for cue in found.kept[0].cues] == [16_000, 50 * 16_000, -1]
    assert found.counts["candidates_transcript-too-long"] == 1
    assert found.counts["cues_past_end"] == 1
    alone = read_candidates([of_times(1, 50, 300)], "en", p)
    fit_candidates(alone, 60 * 16_000, 16_000)
    assert len(alone.kept) == 1, "the only candidate may have an end that was not recorded"
    wrong = read_candidates([of_times(100, 200, 300)], "en", p)
    with pytest.raises(BadRecord, match="transcript-too-long"):
        fit_candidates(wrong, 60 * 16_000, 16_000)


def ingest(tmp_path: Path, engine: LocalEngine, **params: Any) -> Artifact:
    out = Artifact(tmp_path / "out")
    given = {"source": str(tmp_path / "in"), "licence": "CC0", "max_bad": 1.0, **params}
    run_stage(Ingest(), IngestParams(**given), {}, out, engine, work=tmp_path / "work")
    return out


def test_candidates_share_one_numbering_of_cues(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    put(root, "item/talk.wav", encode(murmur(10)))
    put(root, "item/talk.srt", srt((1, ENGLISH), (3, "Goodbye.")))
    put(root, "item/second.srt", srt((1, "Welcome to another talk."), (3, "About birds.")))
    put(root, "item/french.srt", srt((1, FRENCH), (3, FRENCH)))
    put(root, "item/hours_long.srt", srt((1, "A film."), (2, "It goes on."), (7000, "The end.")))
    out = ingest(tmp_path, engine, pairing="folder")
    (row,) = out.read_table(0).to_pylist()
    assert (row["text_language"], round(row["text_language_probability"], 1)) == ("en", 1.0)
    cues = out.read_table(0, ".cues.parquet").to_pylist()
    assert [(cue["cue"], cue["transcript"]) for cue in cues] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert cues[1]["text"] == "goodbye"
    assert cues[3]["text"] == "about birds"
    stats = out.receipts()[0].stats
    assert stats["transcripts"] == 2
    assert stats["candidates_language-mismatch"] == stats["candidates_transcript-too-long"] == 1


def test_languages_and_licences_are_policy_and_counted(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    licences = ["CC BY 4.0", "cc-by-4.0", "CC BY-NC 4.0", "ask us", "MIT OR CC-BY-NC-4.0", "CC0"]
    for i, (licence, text) in enumerate(zip(licences, [ENGLISH] * 5 + [FRENCH], strict=True)):
        put(root, f"{i}.wav", encode(murmur(1, seed=i)))
        put(root, f"{i}.txt", text)
        put(root, f"{i}.json", f'{{"license": "{licence}", "creator": ["A", "B"]}}')
    out = ingest(tmp_path, engine)
    dropped = {"licence-forbidden": 1, "licence-unknown": 1, "language-mismatch": 1}
    assert (out.manifest.counts.dropped, out.manifest.counts.bad) == (dropped, 0)
    assert out.summary["licences"] == {
        "CC-BY-4.0": {"kept": 2, "audio_s": 2.0},
        "MIT OR CC-BY-NC-4.0": {"kept": 1, "audio_s": 1.0},
        "CC-BY-NC-4.0": {"dropped": 1},
        "ask us": {"dropped": 1},
    }
    assert out.summary["languages"] == {"en": {"kept": 3, "audio_s": 3.0}}
    assert {row["attribution"] for row in out.read_table(0).to_pylist()} == {"A, B"}
    (example,) = out.receipts()[0].stats["examples"]["language-mismatch"]
    assert example["name"] == "5"
    assert "the text is fr" in example["detail"]


def by_level(samples: npt.NDArray[np.int16], rate_hz: int) -> tuple[str, float]:
    """A stand-in for a model: loud recordings are French. It records its inputs."""
    assert (samples.ndim, samples.dtype, rate_hz, len(samples)) == (1, np.int16, 16_000, 8_000)
    return ("fra", 0.9) if np.abs(samples).max() > 5000 else ("", 0.0)


def test_a_hook_identifies_the_language_of_the_audio(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    put(root, "loud.wav", encode(np.stack([murmur(2), murmur(2)], axis=1)))
    put(root, "soft.wav", encode((murmur(2, seed=1) // 4).astype(np.int16)))
    for name in ("loud", "soft"):
        put(root, f"{name}.txt", "Bon.")
    hook = {"audio_language": f"{__name__}:by_level", "audio_language_seconds": 0.5}
    out = ingest(tmp_path, engine, **hook)
    assert [row["name"] for row in out.read_table(0).to_pylist()] == ["soft"]
    assert out.manifest.counts.dropped == {"audio-language-mismatch": 1}
    unknown = ingest(tmp_path / "und", engine, source=str(root), language="und", **hook)
    assert [row["language"] for row in unknown.read_table(0).to_pylist()] == ["fr", "und"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"audio_language": "no_such_module:f"}, "no_such_module"),
        ({"audio_language": "math"}, "not a function"),
        ({"audio_language": "math:tau"}, "not a function"),
        ({"text_languages": ["en", "klingon"]}, "klingon"),
    ],
)
def test_hooks_and_languages_are_checked_before_the_start(params: dict[str, Any], message: str) -> None:
    def start(p: IngestParams) -> None:
        Ingest().check(p, ())
        Ingest().plan(p, {})

    with pytest.raises(ConfigError, match=message):
        start(IngestParams(source=".", **params))


@pytest.mark.parametrize(
    ("code", "language", "detail"),
    [
        ("return 'English'", "en", ""),
        ("return 'en', 1", "en", ""),
        ("return None", "", "returned None, not (language, probability)"),
        ("return 'en', 'sure'", "", "returned ('en', 'sure')"),
        ("raise ValueError('no')", "", "raised ValueError: no ("),
        ("raise SystemExit(2)", "", "raised SystemExit: 2 ("),
    ],
)
def test_what_an_identifier_of_sound_may_return(tmp_path: Path, code: str, language: str, detail: str) -> None:
    file = put(tmp_path, "hear.py", f"def hear(samples, rate_hz):\n    {code}")
    address = f"{file}:hear"
    if language:
        assert Head(1.0, 16_000).language(address) == (language, 1.0)
        return
    with pytest.raises(BadRecord) as caught:
        Head(1.0, 16_000).language(address)
    assert caught.value.reason == "audio-language-failed"
    assert f"{address} {detail}" in caught.value.detail


def test_tags_of_names() -> None:
    tags = {"t.en.srt": "en", "t.pt-BR.vtt": "pt-BR", "t.es-419.vtt": "es-419", "t.zh-Hant-TW.vtt": "zh-Hant-TW"}
    assert {path: language_tag(path) for path in (*tags, "t.srt", "a.b/t.mp3.srt")} == {
        **tags,
        "t.srt": "",
        "a.b/t.mp3.srt": "",
    }
