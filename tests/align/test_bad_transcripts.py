"""Transcripts of other audio, and audio without speech: each gives a reason, and never a wrong segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_here import with_layouts
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from speech import UNITS, say
from speech import sentences as english
from tone_models import TOKENS, onnx_model
from tones import RATE_HZ, Made, sentences, speak, write, write_recordings

from megahour.align.anchors import Anchoring, greedy_path
from megahour.align.choice import Refused, _is_scrap, choose, evidence, trusted
from megahour.align.confidence import Aligned, Costs, first_problem
from megahour.align.ctc import Problem
from megahour.align.document import spell
from megahour.align.params import AlignParams
from megahour.align.posteriors import spans
from megahour.align.stage import Align, doubts, refusals
from megahour.align.wrong_transcript import BELOW_OTHERS, belongs, decoy_of, order_deviation, spoken_part, without_ends
from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Receipt
from megahour.core.schemas import DUPLICATES
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.foreign.aligner_stage import ImportAligner
from megahour.foreign.model import quantised
from megahour.foreign.params import ImportAlignerParams

PARAMS = AlignParams(window_s=8.0, margin_s=0.5, anchor_every_s=10.0, anchor_length=6, max_hint_error_s=2.0)


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("aligner")
    return import_model(folder, onnx_model(folder / "tones.onnx", RATE_HZ, 320))


def import_model(folder: Path, model: Path) -> Artifact:
    (folder / "tokens.txt").write_text("\n".join(TOKENS))
    p = ImportAlignerParams(model=str(model), tokens=str(folder / "tokens.txt"))
    stage = ImportAligner()
    return write(folder / "model", lambda out: stage.run(p, {}, stage.plan(p, {})[0], out, Context(folder)))


def align(folder: Path, aligner: Artifact, made: list[Made], p: AlignParams = PARAMS, **inputs: Artifact) -> Artifact:
    recordings = inputs.pop("recordings", None) or write_recordings(folder, made)[0]
    given = {"recordings": recordings, "aligner": aligner, **inputs}
    every = with_layouts(Align(), p, given, folder / "layouts")
    return write(
        folder / "alignment", lambda out: Align().run(p, every, Align().plan(p, every)[0], out, Context(folder))
    )


def spoken(seed: int, count: int = 30) -> tuple[NDArray[np.int16], list[str]]:
    rng = np.random.default_rng(seed)
    texts = sentences(count, rng)
    return speak(texts, rng)[0], texts


def only_reason(alignment: Artifact) -> str:
    """The reason why the only recording was refused; it has no words, and its segments have the reason."""
    counts = alignment.receipts()[0].counts
    assert (counts.came_in, counts.kept) == (1, 0)
    assert len(alignment.read_table(0)) == 0
    (segment,) = alignment.read_table(0, ".segments.parquet").to_pylist()
    assert counts.dropped == {segment["reason"]: 1}
    assert (segment["cue"], segment["kept"], segment["start_samples"]) == (-1, False, 0)
    assert segment["end_samples"] > 0
    return str(segment["reason"])


def reasons(alignment: Artifact) -> dict[int, str]:
    rows = alignment.read_table(0, ".segments.parquet").to_pylist()
    return {row["cue"]: row["reason"] for row in rows if row["reason"]}


def test_a_transcript_of_the_wrong_file(tmp_path: Path, aligner: Artifact) -> None:
    samples, _ = spoken(1)
    _, other = spoken(2)
    assert only_reason(align(tmp_path, aligner, [("wrong", samples, other, [])])) == "wrong-transcript"


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 40), (40, 0), (20, 20)])
def test_a_text_that_goes_on_before_or_after_the_recording(before: int, after: int) -> None:
    """As the text of three chapters beside one of them, by a model that misreads three of four letters."""
    rng = np.random.default_rng(3)
    right, others = english(20, rng), english(before + after, rng)
    heard: Any = SimpleNamespace(posteriors=quantised(say(right, rng, 0.75).log_probs))

    def aligned(texts: list[str]) -> tuple[Aligned, NDArray[np.bool_]]:
        document = spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)
        return trusted(AlignParams(), heard, document, 0.02, doubtful=True)

    found, unsure = aligned([*others[:before], *right, *others[before:]])
    assert np.flatnonzero(found.spoken).tolist() == list(range(before, before + 20))
    assert not unsure.any()
    with pytest.raises(Refused, match="wrong-transcript"):
        aligned(english(60, rng))


def test_the_spoken_part_of_a_text_is_whole_and_keeps_the_audio_around_it() -> None:
    texts = english(6, np.random.default_rng(1))
    problem = first_problem(spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS), Costs())
    part = spoken_part(problem, np.array([False, True, False, True, True, False]))
    first, end = problem.boundaries[1], problem.boundaries[5]
    assert part.tokens.tolist() == problem.tokens[first:end].tolist()
    assert part.boundaries.tolist() == (problem.boundaries[1:6] - first).tolist()
    assert part.skip_nats.tolist() == problem.skip_nats[1:5].tolist()
    assert part.star.tolist() == problem.star[1:6].tolist()
    assert spoken_part(problem, np.zeros(6, bool)) is problem


def test_a_few_words_that_fit_somewhere_in_much_speech(tmp_path: Path, aligner: Artifact) -> None:
    """A text much shorter than the speech must be found in it; if it has few letters, without an error."""
    samples, texts = spoken(1)
    assert "cfe ddf ce" in texts
    assert only_reason(align(tmp_path / "fits", aligner, [("s", samples, ["cfe daf ce"], [])])) == "wrong-transcript"
    alone = speak(["cfe ddf ce"], np.random.default_rng(1))[0]
    for name, audio, text in (("said", samples, "cfe ddf ce"), ("alone", alone, "cfe daf ce")):
        assert align(tmp_path / name, aligner, [("s", audio, [text], [])]).read_table(0).num_rows == 3


def test_a_line_with_a_misread_letter_beside_much_speech(tmp_path: Path, aligner: Artifact) -> None:
    samples, texts = spoken(1)
    line = next(text for text in texts if len(text.replace(" ", "")) >= 14)
    assert line[0] != "f"
    misread = f"f{line[1:]}"
    assert align(tmp_path, aligner, [("s", samples, [misread], [])]).read_table(0).num_rows == len(line.split())


@pytest.mark.parametrize("units", ["_ abcdefgh'z", "_abcdefgh'z"], ids=["spaces", "without"])
@pytest.mark.parametrize(("letters", "errors"), [(6, 0), (11, 0), (12, 1), (20, 5), (60, 25), (1500, 495)])
def test_the_longer_a_text_the_more_of_it_may_be_misread(letters: int, errors: int, units: str) -> None:
    """Of a text of more than 1000 letters, these count."""
    reading = np.random.default_rng(letters).integers(1, len(units) - 1, 20_000).astype(np.int32)
    said = [units[unit] for unit in reading if units[unit] != " "][500 : 500 + letters]
    wrong = {int(place) for place in np.arange(errors + 1) * min(letters, 1000) / (errors + 1)}
    for misread, scrap in ((sorted(wrong)[:errors], False), (wrong, True)):
        text = "".join("z" if i in misread else letter for i, letter in enumerate(said))
        document = spell([(0, np.nan, f"{text[:3]} {text[3:]}")], units)
        assert _is_scrap(document, reading) is scrap
        assert not _is_scrap(document, reading[: 10 * letters]), "a tenth of what is read"


def test_a_transcript_in_another_script(tmp_path: Path, aligner: Artifact) -> None:
    """A few Latin letters within it do not make it fit."""
    samples, _ = spoken(1, 4)
    cyrillic = ["привет как дела", "это ff передача", "до свидания"]
    assert only_reason(align(tmp_path / "some", aligner, [("ru", samples, cyrillic, [])])) == "other-script"
    assert only_reason(align(tmp_path / "all", aligner, [("ru", samples, cyrillic[:1], [])])) == "unspellable"


@pytest.mark.parametrize("kind", ["noise", "music", "silence"])
def test_no_speech(tmp_path: Path, aligner: Artifact, kind: str) -> None:
    """Chords between the letters' tones, noise, or silence, with a transcript."""
    rng = np.random.default_rng(3)
    t = np.arange(40 * RATE_HZ) / RATE_HZ
    chords = sum(np.sin(2 * np.pi * hertz * t) * (np.sin(0.7 * t + hertz) > 0) for hertz in (220.0, 330.0, 1500.0))
    made = {"noise": rng.normal(0, 3000, len(t)), "music": 4000 * chords, "silence": rng.normal(0, 3, len(t))}
    reason = only_reason(align(tmp_path, aligner, [(kind, made[kind].astype(np.int16), spoken(1)[1], [])]))
    assert reason in {"no-speech", "wrong-transcript"}


def test_one_endless_word(tmp_path: Path, aligner: Artifact) -> None:
    samples, texts = spoken(1, 6)
    endless = "face" * 5000
    assert only_reason(align(tmp_path / "alone", aligner, [("endless", samples, [endless], [])])) == "endless-word"
    alignment = align(tmp_path / "among", aligner, [("endless", samples, [*texts[:3], endless, *texts[3:]], [])])
    assert "doubt" not in Align().finish(PARAMS, {}, list(alignment.receipts()))
    assert reasons(alignment) == {3: "endless-word"}
    assert alignment.read_table(0)["text"].to_pylist() == " ".join(texts).split()


def test_cues_past_the_end(tmp_path: Path, aligner: Artifact) -> None:
    samples, texts = spoken(1, 8)
    late = [(len(samples) + 5 * RATE_HZ, 0, text) for text in texts]
    assert only_reason(align(tmp_path / "all", aligner, [("late", samples, late, [])])) == "past-end"
    alignment = align(tmp_path / "some", aligner, [("late", samples, [*texts, late[0]], [])])
    assert reasons(alignment) == {8: "past-end"}
    assert alignment.receipts()[0].stats["cues_past-end"] == 1


@pytest.mark.parametrize("count", [3, 20, 60])
@pytest.mark.parametrize("gain", [10.0, 100.0])
def test_a_model_that_recognises_nothing(
    tmp_path: Path, count: int, gain: float, caplog: pytest.LogCaptureFixture
) -> None:
    """With random weights, no word of a correct transcript is kept, and the stage says what to check."""
    samples, texts = spoken(3, count)
    deaf = import_model(tmp_path, onnx_model(tmp_path / "deaf.onnx", RATE_HZ, 320, random=gain))
    alignment = align(tmp_path, deaf, [("talk", samples, texts, [])], AlignParams())
    assert len(alignment.read_table(0)) == 0
    doubt = Align().finish(AlignParams(), {}, list(alignment.receipts()))["doubt"]
    assert "the order of the token list" in doubt
    assert doubt in caplog.text


@pytest.mark.parametrize("errors", [0.3, 0.5, 0.65])
@pytest.mark.parametrize("count", [1, 5, 30])
def test_a_badly_heard_text_belongs_and_another_does_not(count: int, errors: float) -> None:
    rng = np.random.default_rng(count)
    right, wrong = english(count, rng), english(count, rng)
    posteriors = quantised(say(right, rng, errors).log_probs)
    for texts in (right, wrong):
        problem = first_problem(spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS), Costs())
        assert belongs(posteriors, problem, Anchoring(), margin=0.2) == (texts is right)


@pytest.mark.parametrize("errors", [0.3, 0.65])
def test_the_right_text_fits_in_its_order_alone(errors: float) -> None:
    rng = np.random.default_rng(1)
    right, wrong = english(20, rng), english(20, rng)
    posteriors = quantised(say(right, rng, errors).log_probs)

    def deviation(texts: list[str], problem_of: Callable[[Problem], Problem] = lambda problem: problem) -> float:
        document = spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)
        found = order_deviation(posteriors, problem_of(first_problem(document, Costs())))
        return np.nan if found is None else found

    assert deviation(right) > BELOW_OTHERS
    assert deviation(right[:16] + wrong[16:]) > BELOW_OTHERS, "most of it is right"
    assert deviation(right[:4]) > 1.5, "all other orders of four"
    assert abs(deviation(wrong)) < 3.5
    assert deviation(right[::-1]) < 3.5
    assert np.isnan(deviation(right[:2])), "too few lines"
    assert np.isnan(deviation(right[:1] * 20)), "all lines are alike"
    series = [*right[:2], *wrong[2:18], *right[18:]]
    assert deviation(series) > deviation(series, without_ends)
    assert deviation(series, without_ends) < 3.5, "a greeting and a farewell are no evidence"
    assert deviation(right, without_ends) > BELOW_OTHERS


@pytest.mark.parametrize("errors", [0.3, 0.65])
def test_the_words_of_a_few_lines_fit_in_their_order_alone(errors: float) -> None:
    rng = np.random.default_rng(1)
    right, wrong = english(4, rng), english(4, rng)
    posteriors = quantised(say(right, rng, errors).log_probs)

    def deviation(texts: list[str], words: bool = True) -> float:
        document = spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)
        found = order_deviation(posteriors, first_problem(document, Costs()), words=words)
        return np.nan if found is None else found

    assert deviation(right) > 2 * deviation(right, words=False), "there are few orders of four lines"
    assert deviation(right) > 8
    assert deviation([" ".join(right)]) > 8, "all on one line"
    assert abs(deviation(wrong)) < 3.5
    assert np.isnan(deviation([" ".join(right[0].split()[:4])])), "four words have few other orders"
    assert np.isnan(deviation([line.replace(" ", "") for line in right])), "no spaces"


def test_decoys_of_short_and_uniform_texts() -> None:
    def decoy(*texts: str) -> str | None:
        problem = first_problem(spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS), Costs())
        found = decoy_of(problem)
        return found and "".join(UNITS[token] for token in found.tokens)

    assert decoy("good morning", "all of you") == "gninrom dooguoy fo lla"
    assert decoy(*"abcdefghij") == "jihgfedcba", "single letters: the whole text is reversed"
    assert decoy("anna") is None
    assert decoy("aaaaaaaaaaaa") is None


def test_the_right_one_of_several_transcripts(tmp_path: Path, aligner: Artifact) -> None:
    """Candidates: two of other recordings, the right one, and the right one with half of its sentences changed."""
    samples, texts = spoken(1)
    worse = [a if i % 2 else b for i, (a, b) in enumerate(zip(texts, spoken(4)[1], strict=True))]
    given = [spoken(2)[1], worse, texts, texts, spoken(3)[1]]
    cues = [(-1, number, text) for number, transcript in enumerate(given) for text in transcript]
    alignment = align(tmp_path, aligner, [("several", samples, cues, [])])
    assert alignment.read_table(0)["text"].to_pylist() == " ".join(texts).split()
    cue = alignment.read_table(0)["cue"].to_numpy()
    assert (cue.min(), cue.max()) == (60, 89), "numbers of the third transcript, the first of two equal ones"
    stats = alignment.receipts()[0].stats
    assert (stats["transcripts"], stats["transcripts_left_out"]) == (5, 4)


def test_listed_copies_are_left_out_unheard(tmp_path: Path, aligner: Artifact) -> None:
    """The list has two shards, and also names a recording of another shard."""
    made = [(f"r{i}", *spoken(i, 5), []) for i in range(1, 4)]

    def listing(*keys: int) -> Callable[[ShardWriter], None]:
        rows = [{"key": key, "duplicate_of": 2, "kind": "recording", "similarity": 1.0} for key in keys]
        return lambda out: out.table(pa.Table.from_pylist(rows, DUPLICATES))

    copies = write(tmp_path / "copies", listing(1, 99), listing(3))
    alignment = align(tmp_path, aligner, made, copies=copies)
    counts = alignment.receipts()[0].counts
    assert (counts.came_in, counts.kept, counts.dropped) == (3, 1, {"same-audio": 2})
    assert set(alignment.read_table(0)["key"].to_pylist()) == {2}
    whole = [row for row in alignment.read_table(0, ".segments.parquet").to_pylist() if row["reason"] == "same-audio"]
    assert [(row["key"], row["cue"], row["kept"]) for row in whole] == [(1, -1, False), (3, -1, False)]


def test_posteriors_are_read_instead_of_listening_again(tmp_path: Path, aligner: Artifact) -> None:
    """The tables have the same bytes; missing posteriors, and those of other models, are reported."""
    made = [(f"r{i}", *spoken(i, 5), []) for i in range(1, 4)]
    keep = PARAMS.model_copy(update={"write_posteriors": True})
    first = align(tmp_path / "a", aligner, made, keep)
    recordings = Artifact(tmp_path / "a" / "recordings")
    other = PARAMS.model_copy(update={"min_confidence": 0.0})
    again = align(tmp_path / "b", aligner, [], other, recordings=recordings, posteriors=first)
    for suffix in (".parquet", ".segments.parquet", ".heard.parquet"):
        assert again.read_bytes(0, suffix) == first.read_bytes(0, suffix)
    table = first.read_table(0, ".posteriors.arrow")
    assert table["key"].to_pylist() == [1, 2, 3]
    frames = table["frames"].to_numpy()
    assert [len(c) for c in table["costs"].to_pylist()] == (frames * len(TOKENS)).tolist()
    more = write_recordings(tmp_path / "more", [*made, ("new", *spoken(9, 5), [])])[0]
    partly = align(tmp_path / "c", aligner, [], PARAMS, recordings=more, posteriors=first)
    assert partly.receipts()[0].counts.dropped == {"no-posteriors": 1}
    with pytest.raises(ConfigError, match=r"has no \.posteriors\.arrow"):
        align(tmp_path / "d", aligner, [], PARAMS, recordings=recordings, posteriors=again)


# -- the score of a transcript ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("errors", [0.0, 0.12, 0.3])
def test_evidence_separates_right_from_wrong_at_any_error_rate(errors: float) -> None:
    rng = np.random.default_rng(6)
    right, wrong = english(120, rng), english(120, rng)
    units, _ = greedy_path(say(right, rng, errors).log_probs)
    documents = [spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS) for texts in (wrong, right)]
    best, found = choose(documents, units, 10)
    assert best == 1
    assert found.sure
    assert found.score > 0.3 * (1 - errors) ** 10
    assert not evidence(documents[0], units, 10).sure
    assert evidence(documents[0], units[:0], 10).score == 0


def test_the_same_words_in_another_order_are_no_evidence(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    texts = english(120, rng)
    units, _ = greedy_path(say(texts, rng, 0.1).log_probs)
    backwards = spell([(i, np.nan, text) for i, text in enumerate(reversed(texts))], UNITS)
    assert not evidence(backwards, units, 10).sure


# -- windows ---------------------------------------------------------------------------------------------------------


@given(frames=st.integers(0, 5000), margin=st.integers(0, 40), room=st.integers(1, 200))
def test_windows_cover_every_frame_once_and_have_one_length(frames: int, margin: int, room: int) -> None:
    window = 2 * margin + room
    covered = []
    for left, first, last in spans(frames, window, margin):
        right = left + min(window, frames)
        assert 0 <= left <= left + first < left + last <= right <= frames
        assert first >= min(margin, left)
        assert right == frames or right - (left + last) >= margin
        covered += range(left + first, left + last)
    assert covered == list(range(frames))


def test_recordings_without_any_text_are_pointed_to_a_recogniser() -> None:
    def receipt(without: int) -> Receipt:
        return Receipt(0, "f", Counts(3, 3 - without, 0, {"no-transcript": without}), {}, {}, {})

    assert "none of 6 recordings has a transcript" in doubts({}, [receipt(3), receipt(3)])
    assert "--recognised TEXTS" in doubts({}, [receipt(3)])
    assert doubts({"cues_kept": 1, "cues": 1}, [receipt(3), receipt(2)]) == ""


@pytest.mark.parametrize(
    ("wrong", "advice"), [(4, ""), (5, "most recordings are refused (wrong-transcript 5, no-speech 1): ")]
)
def test_refusals_of_most_recordings_are_no_silent_loss(wrong: int, advice: str) -> None:
    """However many lines of the others are kept."""
    first = Receipt(0, "f", Counts(5, 4, 0, {"no-speech": 1}), {}, {}, {})
    rest = Receipt(1, "f", Counts(5, 5 - wrong, 0, {"wrong-transcript": wrong, "copied": 5 - wrong}), {}, {}, {})
    assert doubts({"cues_kept": 900, "cues": 1000}, [first, rest]) == ""
    assert refusals([first, rest]).startswith(advice)
    assert bool(refusals([first, rest])) == bool(advice)
