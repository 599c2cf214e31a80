"""Phones for noise: they stand where a transcript has their tag, may come between any words, and are never words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_hmm import COLUMN, every_sequence, total
from test_senones import DIMS, LEXICON, PARAMS, contents, features_artifact, run, speak, write

from megahour.core.errors import ConfigError, StageError
from megahour.core.schemas import SELECTION, TAGGED_TEXTS
from megahour.core.store import Artifact
from megahour.units.hmm import BOUNDARY, SILENCE, Units, read_units, viterbi
from megahour.units.noises import TAGGED, Noises
from megahour.units.paths import transcript_path
from megahour.units.utterances import Utterance, first_labels

TAGS = {"[noise]": "NSN", "++Cough++": "COF"}
NOISE_MEANS = {
    phone: np.random.default_rng(9).normal(size=(2, DIMS))[i] * 3 + 4 for i, phone in enumerate(["NSN", "COF"])
}
P = PARAMS.model_copy(update={"noises": TAGS})


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """With an entry of a tag, as dictionaries of fillers have them."""
    lines = "".join(f"{word}  {phones}\n" for word, phones in {**LEXICON, "[noise]": "NSN"}.items())
    return write(tmp_path_factory.mktemp("lexicon"), [("", {".lexicon.txt": lines})], {})


@pytest.fixture(scope="module")
def spoken() -> list[dict[str, Any]]:
    """80 utterances: words in two halves, in most a noise between them, which every second transcript lacks."""
    rng = np.random.default_rng(4)
    made = []
    for key in range(80):
        halves = [rng.choice(list(LEXICON), 2).tolist() for _ in range(2)]
        tag = ["", *TAGS][key % 3]
        (first, one), (second, other) = (speak(rng, half) for half in halves)
        noise = rng.normal(0, 0.7, (int(rng.integers(10, 25)), DIMS)) + (NOISE_MEANS[TAGS[tag]] if tag else 0)
        x = np.concatenate([first, *([noise.astype(np.float16)] if tag else []), second])
        labels = one + ([TAGS[tag]] * len(noise) if tag else []) + other
        words = halves[0] + ([tag] if tag and key % 2 else []) + halves[1]
        made.append({"key": key, "x": x, "labels": labels, "text": " ".join(halves[0] + halves[1]), "tagged": words})
    return made


@pytest.fixture(scope="module")
def features(spoken: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """As `import-features` writes them with `fillers`: tags beside the features, none in `text`."""
    plain = features_artifact(
        tmp_path_factory.mktemp("plain"), [(each["key"], each["text"], each["x"]) for each in spoken], cuts=()
    )
    tagged = pa.table([[e["key"] for e in spoken], [" ".join(e["tagged"]) for e in spoken]], TAGGED_TEXTS)
    files = {".arrow": plain.read_table(0, ".arrow"), TAGGED: tagged}
    return write(tmp_path_factory.mktemp("features"), [("labelled", files)], plain.summary)


@pytest.fixture(scope="module")
def units(features: Artifact, lexicon: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run(tmp_path_factory.mktemp("made") / "units", P, features=features, lexicon=lexicon)


def test_a_noise_has_one_senone_and_is_found_with_and_without_its_tag(units: Artifact, spoken: Any) -> None:
    known = read_units(units)
    assert (known.noises, known.noise_phones) == (TAGS, ("COF", "NSN"))
    assert [known.senones[senone] for senone in known.pauses] == [SILENCE, "COF_0", "NSN_0"]
    assert {"COF", "NSN"}.isdisjoint(p for tree in known.trees.values() for p in tree.get("phones", ()))
    found = contents(units)[1]
    for tagged in (True, False):
        right = [
            known.senones[senone] == f"{label}_0"
            for each in spoken
            if (len(each["tagged"]) > 4) == tagged
            for senone, label in zip(found[each["key"]], each["labels"], strict=True)
            if label in NOISE_MEANS
        ]
        assert np.mean(right) > 0.95


def test_units_without_noises_are_written_as_before_and_those_with_them_survive_their_file(units: Artifact) -> None:
    known = read_units(units)
    assert Units.from_json(known.to_json()) == known
    assert "noises" not in Units(("a",), (SILENCE, "a_0"), 0, (0.5, 0.5), {"a": {"leaf": 1}}).to_json()


def test_tags_are_read_in_the_transcripts_of_a_selection(
    spoken: Any, lexicon: Artifact, features: Artifact, units: Artifact, tmp_path: Path
) -> None:
    """As written, with marks that are no tags; word times place the first Gaussians of a noise."""
    plain = features_artifact(tmp_path / "f", [(e["key"], e["text"], e["x"]) for e in spoken], cuts=())
    rows = []
    for each in spoken:
        raw, starts, ends = "", [], []
        for word in each["tagged"]:
            raw += " - " if raw else "[applause] "
            if word not in TAGS:
                starts, ends = [*starts, len(raw)], [*ends, len(raw) + len(word)]
            raw += word.upper()
        silent = np.array([label == SILENCE or label in NOISE_MEANS for label in each["labels"]])
        edges = np.flatnonzero(np.diff(silent, prepend=True, append=True))
        times = edges.reshape(-1, 2) * 160
        known = len(times) == len(starts)  # a pause between all words
        row = dict.fromkeys(SELECTION.names) | {"key": each["key"], "rate_hz": 16000, "raw": raw, "text": each["text"]}
        row |= {"word_offset": starts, "word_end": ends}
        row |= {"word_start_samples": times[:, 0] if known else [-1] * 4, "word_end_samples": times[:, 1]}
        rows.append(row)
    selection = write(tmp_path / "s", [("labelled", {".parquet": pa.Table.from_pylist(rows, SELECTION)})], {})
    again = run(tmp_path / "units", P, features=plain, lexicon=lexicon, selection=selection)
    before, after = contents(units)[1], contents(again)[1]
    same = [a == b for key in before for a, b in zip(before[key], after[key], strict=True)]
    assert np.mean(same) > 0.97


def test_a_noise_without_a_tag_in_any_transcript_is_an_error(
    features: Artifact, lexicon: Artifact, tmp_path: Path
) -> None:
    p = P.model_copy(update={"noises": {**TAGS, "[ring]": "RNG"}})
    with pytest.raises(StageError, match="no transcript has a tag of the noise RNG"):
        run(tmp_path / "units", p, features=features, lexicon=lexicon)


@pytest.mark.parametrize(
    ("noises", "message"),
    [
        ({"[noise]": SILENCE}, "'SIL' is no phone for noise"),
        ({"[noise]": "SPN"}, "'SPN' is no phone for noise"),
        ({"[noise]": "N SN"}, "'N SN' is no phone for noise"),
        ({" ": "NSN"}, "a tag is empty"),
        ({"[noise]": "d"}, "the phone d of `noises` is in words of the lexicon"),
    ],
)
def test_phones_for_noise_are_their_own(
    noises: dict[str, str], message: str, features: Artifact, lexicon: Artifact, tmp_path: Path
) -> None:
    p = P.model_copy(update={"noises": noises, "unknown": "SPN"})
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "units", p, features=features, lexicon=lexicon)


def test_tags_are_placed_only_between_the_words_that_are_aligned() -> None:
    noises = Noises(TAGS)
    assert noises.placed(["a", "b"], ["<s>", "a", "++COUGH++", "(door)", "b"]) == ["a", "++COUGH++", "b"]
    assert noises.placed(["a", "b"], None) == ["a", "b"]
    assert noises.placed(["c", "b"], ["a", "[noise]", "b"]) == ["c", "b"], "a recogniser's text"
    assert Noises().tags_in("[noise]") == []


def test_between_words_lies_any_sequence_of_silence_and_noises() -> None:
    column = {**COLUMN, "n": 3}
    path = transcript_path([[["a"]], [["n"]], [["b"]]], column, 1, noises=["n"])
    scores = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    found = viterbi(scores, path)
    assert found is not None
    assert found[1] == pytest.approx(max(total(scores, path, s) for s in every_sequence(path, 4)), abs=1e-5)
    wanted = ["n", SILENCE, "n", "a", SILENCE, "n", "b", "n", SILENCE]
    scores = np.array([[0.0 if column[phone] == c else -9.0 for c in range(4)] for phone in wanted], np.float32)
    found = viterbi(scores, path)
    assert found is not None
    assert found[1] == 0.0
    assert [path.slots[slot][1] for slot in found[0]] == wanted
    assert {triple for triple in path.slots if triple[1] == "n"} == {(BOUNDARY, "n", BOUNDARY)}
    untagged = transcript_path([[["a"]], [["b"]]], column, 1, noises=["n"])
    assert viterbi(scores, untagged) is not None


def test_a_tag_starts_with_the_time_between_the_words_beside_it() -> None:
    times = {1: (np.array([2, 9]), np.array([4, 11]))}
    utterance = Utterance(1, np.zeros((14, 1)), ["[noise]", "a", "[noise]", "b"], [[["n"]], [["a"]], [["n"]], [["b"]]])
    column = {"a": 0, "b": 1, "n": 2, SILENCE: 3}
    labels = first_labels(utterance, times, column, ("n",))
    assert labels.tolist() == [2] * 2 + [0] * 2 + [2] * 5 + [1] * 2 + [3] * 3
