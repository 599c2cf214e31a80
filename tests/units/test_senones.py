"""Stage `senones` on generated speech: phones are Gaussians in a 13-dimensional space, and their times are known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from megahour.core.errors import ConfigError, StageError
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import FEATURES, SELECTION, SENONE_ALIGNMENTS
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.runner import rounds
from megahour.runner.runner import run_stage
from megahour.units.hmm import SILENCE, read_units
from megahour.units.params import SenonesParams
from megahour.units.passes import passes_of
from megahour.units.stage import Senones
from megahour.units.utterances import Utterance, first_labels, word_times

DIMS = 13
LEXICON = {"dada": "d a d a", "bat": "b a t", "tab": "t a b", "adobe": "a d o b e", "toe": "t o e", "ed": "e d"}
PHONES = sorted({phone for spelled in LEXICON.values() for phone in spelled.split()})
MEANS = dict(zip([*PHONES, SILENCE], np.random.default_rng(1).normal(0, 2, (len(PHONES) + 1, DIMS)), strict=True))
PARAMS = SenonesParams(senones=10, iterations=6, mixtures=2, min_frames=40)


def speak(rng: np.random.Generator, words: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Features (T, DIMS) of words with pauses around some of them, and the true phone of every frame."""
    labels = [SILENCE] * int(rng.integers(5, 25))
    for word in words:
        for phone in LEXICON[word].split():
            labels += [phone] * int(rng.integers(4, 14))
        labels += [SILENCE] * int(rng.choice([0, 8]))
    features = np.array([MEANS[label] for label in labels]) + rng.normal(0, 0.7, (len(labels), DIMS))
    return features.astype(np.float16), labels


def write(folder: Path, shards: Sequence[tuple[str, dict[str, Any]]], summary: dict[str, Any]) -> Artifact:
    artifact, receipts = Artifact(folder), []
    for shard, (name, files) in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            out.tags["set"] = name
            for suffix, content in files.items():
                (out.table if isinstance(content, pa.Table) else out.text)(content, suffix)
                if suffix == ".arrow":
                    out.stats["frames"] = sum(content["frames"].to_pylist())
            receipts.append(out.commit())
    digest = content_digest(receipts, summary)
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(shards), Counts(), summary))
    return artifact


def features_artifact(
    folder: Path, utterances: Sequence[tuple[int, str, Any]], *, name: str = "labelled", cuts: Sequence[int] = (40,)
) -> Artifact:
    """In shards that end before the utterances `cuts`."""
    rows = [
        {
            "key": key,
            "speaker": "s",
            "frames": len(x),
            "text": text,
            "set": name,
            "condition": "",
            "features": x.reshape(-1),
        }
        for key, text, x in utterances
    ]
    parts = [rows[first:last] for first, last in pairwise([0, *cuts, len(rows)])]
    shards = [(name, {".arrow": pa.Table.from_pylist(part, FEATURES)}) for part in parts]
    return write(folder, shards, {"mels": DIMS, "mean": [0.0] * DIMS, "inv_std": [1.0] * DIMS})


class Killed(Exception):
    pass


class Here:
    """An engine in this process: results come in any order; `left` tasks, then it is killed."""

    workers = 1

    def __init__(self, order: random.Random | None = None, left: float = math.inf) -> None:
        self.order, self.left, self.tasks = order, left, 0

    def map(self, call: Any, items: Any) -> Any:
        numbered = list(enumerate(items))
        if self.order:
            self.order.shuffle(numbered)
        for index, item in numbered:
            if self.tasks >= self.left:
                raise Killed
            self.tasks += 1
            yield index, call(item)


def run(folder: Path, p: SenonesParams, engine: Here | None = None, **inputs: Artifact) -> Artifact:
    artifact = Artifact(folder)
    run_stage(Senones(), p, inputs, artifact, engine or Here(), work=folder.parent / "work")  # type: ignore[arg-type]
    return artifact


def bytes_of(units: Artifact) -> list[Any]:
    return [receipt.files for receipt in units.receipts()]


def contents(units: Artifact) -> tuple[bytes, dict[int, list[int]], dict[str, Any]]:
    """The units, the senones by utterance, and the summary."""
    tables = [units.read_table(receipt.shard, ".alignments.arrow") for receipt in units.receipts()]
    labels = {row["key"]: row["senones"] for table in tables for row in table.to_pylist()}
    return units.read_bytes(0, ".units.json"), labels, units.summary


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    lines = "".join(f"{word}  {phones}\n" for word, phones in LEXICON.items())
    return write(tmp_path_factory.mktemp("lexicon"), [("", {".lexicon.txt": lines})], {})


@pytest.fixture(scope="module")
def corpus() -> list[tuple[int, str, Any, list[str]]]:
    """80 utterances of two to five words: key, text, features, true phones."""
    rng = np.random.default_rng(2)
    made = []
    for key in range(80):
        words = rng.choice(list(LEXICON), int(rng.integers(2, 6))).tolist()
        made.append((key, " ".join(words), *speak(rng, words)))
    return made


@pytest.fixture(scope="module")
def spoken(corpus: Any) -> list[tuple[int, str, Any]]:
    """The corpus, and behind it what cannot be aligned."""
    noise = np.random.default_rng(3).normal(size=(40, DIMS)).astype(np.float16)
    infinite, odd = noise.copy(), noise.reshape(-1)[:-1]
    infinite[3, 2] = np.inf
    flawed = [(80, "bat unheard", noise), (81, "", noise), (82, "adobe adobe adobe", noise[:20])]
    flawed += [(83, "bat", infinite), (84, "bat", infinite * np.nan), (85, "bat", odd), (86, "bat", noise[:0])]
    return [*((key, text, x) for key, text, x, _ in corpus), *flawed]


@pytest.fixture(scope="module")
def features(spoken: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return features_artifact(tmp_path_factory.mktemp("features"), spoken)


@pytest.fixture(scope="module")
def made(features: Artifact, lexicon: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run(tmp_path_factory.mktemp("made") / "units", PARAMS, features=features, lexicon=lexicon)


def right_share(units: Artifact, corpus: Any) -> float:
    """Share of the frames whose senone is one of the phone that was spoken."""
    phone_of = [name.rsplit("_", 1)[0] for name in read_units(units).senones]
    labels = contents(units)[1]
    assert all(len(labels[key]) == len(x) for key, _, x, _ in corpus)
    pairs = [(phone_of[s], label) for key, _, _, spoken in corpus for s, label in zip(labels[key], spoken, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def test_a_flat_start_finds_the_phones(made: Artifact, corpus: Any) -> None:
    assert made.read_table(0, ".alignments.arrow").schema == SENONE_ALIGNMENTS
    assert list(contents(made)[1]) == list(range(80))
    assert right_share(made, corpus) > 0.97


@pytest.mark.parametrize("transform", ["none", "lda", "lda-mllt"])
def test_gaussians_of_senones_find_them_too(
    transform: Any, features: Artifact, lexicon: Artifact, corpus: Any, tmp_path: Path
) -> None:
    p = PARAMS.model_copy(update={"senone_mixtures": 2, "transform": transform, "lda_dims": 12, "splice": 1})
    assert right_share(run(tmp_path / "units", p, features=features, lexicon=lexicon), corpus) > 0.97


def test_features_without_statistics_are_aligned_and_seconds_are_those_of_the_audio(
    spoken: Any, lexicon: Artifact, tmp_path: Path
) -> None:
    """As of test sets alone, which no mean is of; at 22,050 Hz a frame has 220 samples."""
    table = features_artifact(tmp_path / "all", spoken[:6], cuts=()).read_table(0, ".arrow")
    summary = {"mels": DIMS, "mean": [], "inv_std": [], "audio": {"rate_hz": 22_050}}
    features = write(tmp_path / "f", [("labelled", {".arrow": table})], summary)
    units = run(tmp_path / "units", PARAMS, features=features, lexicon=lexicon)
    frames = sum(table["frames"].to_pylist())
    assert units.receipts()[0].stats["audio_s"] == pytest.approx(frames * 220 / 22_050, abs=0.01)
    with pytest.raises(ValueError, match="at least 1 item"):
        SenonesParams(sets=[])


def test_the_units_describe_their_alignments(made: Artifact) -> None:
    units = read_units(made)
    assert units.size <= PARAMS.senones
    assert list(units.phones) == PHONES
    frames = np.concatenate(list(contents(made)[1].values()))
    counts = np.bincount(frames, minlength=units.size)
    np.testing.assert_allclose(units.priors, counts / counts.sum(), atol=1e-9)
    summary = {name: value for name, value in made.summary.items() if name != "priors"}
    assert summary.pop("log_likelihood") == pytest.approx(-30, abs=30)
    assert summary == {"senones": units.size, "phones": len(PHONES), "frames": len(frames)}


def test_utterances_that_cannot_be_aligned_are_counted_and_words_named(made: Artifact) -> None:
    counts = made.manifest.counts
    assert (counts.came_in, counts.kept) == (87, 80)
    assert counts.dropped == {
        **{"no-pronunciation": 1, "no-text": 1, "too-short-for-text": 1},
        **{"not-finite": 2, "wrong-dims": 1, "no-frames": 1},
    }
    assert made.receipts()[1].stats["missing_words"] == {"unheard": 1}


@pytest.mark.parametrize("seed", range(2))
def test_neither_shards_nor_the_order_of_tasks_change_a_bit(
    seed: int, made: Artifact, spoken: Any, lexicon: Artifact, tmp_path: Path
) -> None:
    order = random.Random(seed)
    cuts = sorted(order.sample(range(1, len(spoken)), order.randint(1, 8)))
    features = features_artifact(tmp_path / "features", spoken, cuts=cuts)
    units = run(tmp_path / "units", PARAMS, Here(order), features=features, lexicon=lexicon)
    assert contents(units) == contents(made)


def test_the_hours_that_models_learn_from_are_drawn_by_utterance(
    spoken: Any,
    lexicon: Artifact,
    tmp_path: Path,
    made: Artifact,
    corpus: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "MOST", 2)  # of three shards a worker adds up two
    p = PARAMS.model_copy(update={"phone_hours": 0.02, "tree_hours": 0.02})  # about 70 of 100 seconds
    runs = []
    for number, cuts in enumerate([(40,), (9, 70)]):
        features = features_artifact(tmp_path / f"features{number}", spoken, cuts=cuts)
        runs.append(run(tmp_path / f"units{number}", p, features=features, lexicon=lexicon))
    assert contents(runs[0]) == contents(runs[1])
    assert contents(runs[0])[0] != contents(made)[0]
    assert right_share(runs[0], corpus) > 0.95, "all utterances are aligned"


def test_a_killed_run_goes_on_to_the_same_bytes(
    made: Artifact, features: Artifact, lexicon: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "KEEP_S", 0.0)
    tasks, again = 0, random.Random(4)
    while True:
        engine = Here(again, left=again.randint(1, 7))
        try:
            units = run(tmp_path / "units", PARAMS, engine, features=features, lexicon=lexicon)
        except Killed:
            tasks += engine.tasks
            continue
        break
    passes = len(passes_of(PARAMS))
    assert 2 * (passes + 1) + passes <= tasks + engine.tasks < 2 * (passes + 1) + 2 * passes, "few sums are used twice"
    assert bytes_of(units) == bytes_of(made)
    assert not (tmp_path / "units" / ".scratch").exists()


def test_an_unknown_phone_keeps_the_utterance(features: Artifact, lexicon: Artifact, tmp_path: Path) -> None:
    p = PARAMS.model_copy(update={"unknown": "SPN"})
    units = run(tmp_path / "units", p, features=features, lexicon=lexicon)
    assert "no-pronunciation" not in units.manifest.counts.dropped
    names = read_units(units).senones
    assert any(names[senone].startswith("SPN_") for senone in contents(units)[1][80])
    assert "SPN" in read_units(units).phones


def test_the_pronunciations_that_were_heard_are_counted(features: Artifact, corpus: Any, tmp_path: Path) -> None:
    """`toe` is always spoken as `t o e`, never as `b o b`."""
    lines = "".join(f"{word}  {phones}\n" for word, phones in LEXICON.items()) + "toe  b o b\n"
    lexicon = write(tmp_path / "lexicon", [("", {".lexicon.txt": lines})], {})
    units = run(tmp_path / "units", PARAMS, features=features, lexicon=lexicon)
    rows = [row for r in units.receipts() for row in units.read_table(r.shard, ".spoken.parquet").to_pylist()]
    times = sum(text.split().count("toe") for _, text, _, _ in corpus)
    heard = {way: sum(row["count"] for row in rows if row["pronunciation"] == way) for way in ("t o e", "b o b")}
    assert {row["word"] for row in rows} == {"toe"}
    assert sum(heard.values()) == times
    assert heard["t o e"] > 0.95 * times


def test_word_times_are_where_the_first_labels_come_from(tmp_path: Path) -> None:
    row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
    times = {"word_start_samples": [1600, 8000], "word_end_samples": [4800, 11200]}
    table = pa.Table.from_pylist([row | {"key": 5, "rate_hz": 16_000} | times], SELECTION)
    selection = write(tmp_path, [("labelled", {".parquet": table})], {})
    found = word_times(selection, 0)
    column = {"a": 0, "b": 1, SILENCE: 2}
    utterance = Utterance(5, np.zeros((80, 3), np.float32), ["x", "y"], [[["a", "b"]], [["b"]]])
    labels = first_labels(utterance, found, column)
    expected = [2] * 10 + [0] * 10 + [1] * 10 + [2] * 20 + [1] * 20 + [2] * 10
    assert labels.tolist() == expected
    flat = first_labels(utterance, {}, column)
    assert [column[SILENCE], 0, 1, column[SILENCE]] == [flat[0], flat[10], flat[-10], flat[-1]]


def test_utterances_cut_without_an_alignment_have_no_word_times(tmp_path: Path) -> None:
    row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
    unknown = {"word_start_samples": [-1, -1], "word_end_samples": [-1, -1]}
    table = pa.Table.from_pylist([row | {"key": 5, "rate_hz": 16_000} | unknown], SELECTION)
    selection = write(tmp_path, [("labelled", {".parquet": table})], {})
    assert word_times(selection, 0) == {}
    assert word_times(selection, None) == {}


def test_nothing_to_learn_from_is_an_error(features: Artifact, lexicon: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no shard of .* is in sets"):
        run(tmp_path / "a", SenonesParams(sets=["missing"]), features=features, lexicon=lexicon)
    other = write(tmp_path / "lexicon", [("", {".lexicon.txt": "other  o e\n"})], {})
    with pytest.raises(StageError, match="no utterance to learn from"):
        run(tmp_path / "b", PARAMS, features=features, lexicon=other)


def test_utterances_without_room_for_their_words_are_an_error(lexicon: Artifact, tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(size=(12, DIMS)).astype(np.float16)
    short = features_artifact(tmp_path / "features", [(1, "adobe adobe", noise), (2, "adobe dada", noise)], cuts=())
    with pytest.raises(StageError, match="no utterance has room for its words"):
        run(tmp_path / "units", PARAMS, features=short, lexicon=lexicon)
