"""Stage `senones` on generated speech: phones are Gaussians in a 13-dimensional space, and their times are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from megahour.core.errors import StageError
from megahour.core.schemas import FEATURES, SELECTION, SENONE_ALIGNMENTS
from megahour.core.stage import Context
from megahour.core.store import Artifact, Counts, Manifest, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.units.flat_start import Utterance, first_labels, word_times
from megahour.units.hmm import SILENCE, Units
from megahour.units.params import SenonesParams
from megahour.units.stage import Senones

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
            receipts.append(out.commit())
    digest = content_digest(receipts, summary)
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(shards), Counts(), summary))
    return artifact


def features_artifact(folder: Path, utterances: Sequence[tuple[int, str, Any]], *, name: str = "labelled") -> Artifact:
    rows = [
        {
            "key": key,
            "speaker": "s",
            "frames": len(x),
            "text": text,
            "set": name,
            "condition": "",
            "features": x.ravel(),
        }
        for key, text, x in utterances
    ]
    half = len(rows) // 2
    shards = [(name, {".arrow": pa.Table.from_pylist(part, FEATURES)}) for part in (rows[:half], rows[half:])]
    return write(folder, shards, {"mels": DIMS, "mean": [0.0] * DIMS, "inv_std": [1.0] * DIMS})


def run(folder: Path, p: SenonesParams, **inputs: Artifact) -> tuple[Artifact, Any]:
    stage, artifact = Senones(), Artifact(folder)
    (task,) = stage.plan(p, inputs)
    with ShardWriter(artifact, 0, "made") as out:
        stage.run(p, inputs, task, out, Context(folder))
        return artifact, out.commit()


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
def features(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("features")
    spoken = [(key, text, x) for key, text, x, _ in corpus]
    noise = np.random.default_rng(3).normal(size=(40, DIMS)).astype(np.float16)
    flawed = [(80, "bat unheard", noise), (81, "", noise), (82, "adobe adobe adobe", noise[:20])]
    return features_artifact(folder, [*spoken, *flawed])


@pytest.fixture(scope="module")
def made(features: Artifact, lexicon: Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Any]:
    return run(tmp_path_factory.mktemp("units"), PARAMS, features=features, lexicon=lexicon)


def test_a_flat_start_finds_the_phones(made: tuple[Artifact, Any], corpus: Any) -> None:
    units = Units.from_json(made[0].read_bytes(0, ".units.json").decode())
    table = made[0].read_table(0, ".alignments.arrow")
    assert table.schema == SENONE_ALIGNMENTS
    assert table["key"].to_pylist() == list(range(80))
    phone_of = [name.rsplit("_", 1)[0] for name in units.senones]
    right = total = 0
    for (_, _, x, labels), row in zip(corpus, table.to_pylist(), strict=True):
        assert row["frames"] == len(row["senones"]) == len(x)
        right += sum(phone_of[senone] == label for senone, label in zip(row["senones"], labels, strict=True))
        total += len(labels)
    assert right / total > 0.97


def test_the_units_describe_their_alignments(made: tuple[Artifact, Any]) -> None:
    units = Units.from_json(made[0].read_bytes(0, ".units.json").decode())
    assert units.size <= PARAMS.senones
    assert list(units.phones) == PHONES
    frames = np.concatenate(made[0].read_table(0, ".alignments.arrow")["senones"].to_pylist())
    counts = np.bincount(frames, minlength=units.size)
    np.testing.assert_allclose(units.priors, counts / counts.sum(), atol=1e-3)
    assert Senones().finish(PARAMS, {}, [made[1]]) == {
        "senones": units.size,
        "phones": len(PHONES),
        "frames": len(frames),
        "log_likelihood": made[1].stats["log_likelihood"],
    }


def test_utterances_that_cannot_be_aligned_are_counted(made: tuple[Artifact, Any]) -> None:
    counts = made[1].counts
    assert (counts.came_in, counts.kept) == (83, 80)
    assert counts.dropped == {"no-pronunciation": 1, "no-text": 1, "too-short-for-text": 1}


def test_the_same_inputs_give_the_same_bytes(
    made: tuple[Artifact, Any], features: Artifact, lexicon: Artifact, tmp_path: Path
) -> None:
    assert run(tmp_path, PARAMS, features=features, lexicon=lexicon)[1].files == made[1].files


def test_word_times_are_where_the_first_labels_come_from(tmp_path: Path) -> None:
    row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
    times = {"word_start_samples": [1600, 8000], "word_end_samples": [4800, 11200]}
    table = pa.Table.from_pylist([row | {"key": 5, "rate_hz": 16_000} | times], SELECTION)
    found = word_times(write(tmp_path, [("labelled", {".parquet": table})], {}), ["labelled"])
    column = {"a": 0, "b": 1, SILENCE: 2}
    utterance = Utterance(5, np.zeros((80, 3), np.float32), [[["a", "b"]], [["b"]]])
    labels = first_labels(utterance, found, column)
    expected = [2] * 10 + [0] * 10 + [1] * 10 + [2] * 20 + [1] * 20 + [2] * 10
    assert labels.tolist() == expected
    flat = first_labels(utterance, {}, column)
    assert [column[SILENCE], 0, 1, column[SILENCE]] == [flat[0], flat[10], flat[-10], flat[-1]]


def test_utterances_cut_without_an_alignment_have_no_word_times(tmp_path: Path) -> None:
    row = {field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION}
    unknown = {"word_start_samples": [-1, -1], "word_end_samples": [-1, -1]}
    table = pa.Table.from_pylist([row | {"key": 5, "rate_hz": 16_000} | unknown], SELECTION)
    assert word_times(write(tmp_path, [("labelled", {".parquet": table})], {}), ["labelled"]) == {}


def test_nothing_to_learn_from_is_an_error(features: Artifact, lexicon: Artifact, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no utterance to learn from"):
        run(tmp_path, SenonesParams(sets=["missing"]), features=features, lexicon=lexicon)


def test_utterances_without_room_for_their_words_are_an_error(lexicon: Artifact, tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(size=(12, DIMS)).astype(np.float16)
    short = features_artifact(tmp_path / "features", [(1, "adobe adobe", noise), (2, "adobe dada", noise)])
    with pytest.raises(StageError, match="no utterance has room for its words"):
        run(tmp_path / "units", PARAMS, features=short, lexicon=lexicon)
