"""Models mixed and pruned by partitions have the bytes of the commands of one machine, whatever the partitions."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from engine_here import EngineHere
from hypothesis import given, settings
from hypothesis import strategies as st
from models import estimate_text
from spark_marks import needs_spark

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.lm.arpa.model import write_arpa
from megahour.lm.cli.combine_commands import interpolate as interpolate_command
from megahour.lm.cli.combine_commands import prune as prune_command
from megahour.lm.combine.context_probs import contexts_of_text
from megahour.lm.combine.interpolate import gather, interpolate, tune
from megahour.lm.combine.prune import prune
from megahour.lm.combine.trie import build, unpack
from megahour.lm.combine.walk import Unknown, sentences
from megahour.lm.params import InterpolateParams, PruneParams, TallyParams, VocabularyParams, WordsParams
from megahour.lm.query.convert import read_model, write_model
from megahour.lm.scale.on_engine import estimate_on
from megahour.lm.sharded import models as text_of_models
from megahour.lm.sharded.on_engine import mix_on, model_table, prune_on
from megahour.lm.sharded.params import RangesParams
from megahour.lm.sharded.ranges import Ranges, cut_ranges
from megahour.lm.sharded.rows import NO_WORD

Int32 = np.typing.NDArray[np.int32]


def lines(seed: int, count: int, words: int) -> list[str]:
    """Sentences in which a few words are most, so that partitions are cut within them."""
    draw = random.Random(seed)
    return [
        " ".join(f"w{min(int(draw.paretovariate(0.6)), words)}" for _ in range(draw.randint(0, 7)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models of other orders and words, a held-out text, and the text of the first model."""
    made = tmp_path_factory.mktemp("models")
    for number, (order, words) in enumerate([(3, 30), (4, 14), (2, 40)]):
        text = lines(number, 150, words)
        (made / f"text{number}").write_text("\n".join(text) + "\n")
        with (made / f"m{number}.arpa").open("wb") as file:
            write_arpa(estimate_text(text, order).model, file)
    (made / "heldout").write_text("\n".join([*lines(9, 15, 45), "unheard w1 </s> w2"]) + "\n")
    return made


def paths(folder: Path) -> list[str]:
    return [str(folder / f"m{number}.arpa") for number in range(3)]


def mixed_here(folder: Path, out: Path, unknown: Unknown, weights: list[float] | None = None) -> bytes:
    members = gather([read_model(path) for path in paths(folder)], unknown)
    found = weights or tune(members, list(sentences([str(folder / "heldout")]))).weights
    write_model(unpack(interpolate(members, found), members.vocabulary), out / "mixed.arpa")
    return (out / "mixed.arpa").read_bytes()


def test_models_that_cut_their_words_are_mixed_as_on_one_machine(tmp_path: Path) -> None:
    """After a word that a model lacks, its n-grams with `<unk>` hold, also in partitions of that word."""
    for number, limit in enumerate([5, 12, 8]):
        with (tmp_path / f"m{number}.arpa").open("wb") as file:
            write_arpa(estimate_text(lines(number, 60, 30), 3 + number % 2, limit=limit).model, file)
    members = gather([read_model(path) for path in paths(tmp_path)], "share")
    write_model(unpack(interpolate(members, [0.5, 0.25, 0.25]), members.vocabulary), tmp_path / "mixed.arpa")
    p, ranges = InterpolateParams(weights=[0.5, 0.25, 0.25], unknown="share"), RangesParams(shard_rows=80)
    found, _ = mix_on(EngineHere(), str(tmp_path / "on"), paths(tmp_path), p, ranges)
    assert found.read_bytes(0, ".arpa") == (tmp_path / "mixed.arpa").read_bytes()


@pytest.mark.parametrize("other", [["a b", "b a"], ["a <UNK> b", "<UNK>"]])
def test_unknown_words_in_capitals_are_mixed_as_on_one_machine(tmp_path: Path, other: list[str]) -> None:
    """`<UNK>` is `<unk>` in a model that lacks `<unk>`; the other model may have a word `<UNK>`."""
    for number, text in enumerate([["a <UNK> b", "<UNK> a", "b <UNK>"], other]):
        with (tmp_path / f"m{number}.arpa").open("wb") as file:
            write_arpa(estimate_text(text, 2).model, file)
    first = tmp_path / "m0.arpa"
    listed = [line for line in first.read_text().splitlines(keepends=True) if "<unk>" not in line]
    first.write_text("".join(listed).replace("ngram 1=6", "ngram 1=5"))
    files = [str(tmp_path / f"m{number}.arpa") for number in range(2)]
    members = gather([read_model(path) for path in files], "share")
    assert ("<UNK>" in members.vocabulary.ids) == ("<UNK>" in "".join(other))
    write_model(unpack(interpolate(members, [0.5, 0.5]), members.vocabulary), tmp_path / "mixed.arpa")
    p, ranges = InterpolateParams(weights=[0.5, 0.5], unknown="share"), RangesParams(shard_rows=4)
    found, _ = mix_on(EngineHere(), str(tmp_path / "stages"), files, p, ranges)
    assert found.read_bytes(0, ".arpa") == (tmp_path / "mixed.arpa").read_bytes()


@pytest.mark.parametrize(("unknown", "rows"), [("zero", 90), ("share", 400), ("zero", 10**6)])
def test_a_mixture_has_the_bytes_of_one_machine(folder: Path, tmp_path: Path, unknown: Unknown, rows: int) -> None:
    p = InterpolateParams(heldout=[str(folder / "heldout")], unknown=unknown)
    ranges = RangesParams.model_validate({"shard_rows": rows})
    found, costs = mix_on(EngineHere(), str(tmp_path / "on"), paths(folder), p, ranges)
    assert found.read_bytes(0, ".arpa") == mixed_here(folder, tmp_path, unknown)
    assert [cost.stage for cost in costs] == ["union", "ranges", "gathered", "weights", "lines", "arpa"]
    partitions = Artifact(tmp_path / "on" / "gathered").manifest.shards
    assert partitions == 1 if rows > 10**5 else partitions > 5
    rows_of_table = [list(column.cells) for column in model_table(str(tmp_path / "on")).columns]
    assert rows_of_table[0][-1] == "mixture"
    assert [line.split() for line in rows_of_table[2][:-1]] == [
        [f"{size:,}" for size in read_model(path).sizes] for path in paths(folder)
    ]


def test_weights_that_are_given_and_packed_models_and_a_model_that_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "m1.arpa.gz").write_bytes(gzip.compress((folder / "m1.arpa").read_bytes()))
    given_paths = [paths(folder)[0], str(tmp_path / "m1.arpa.gz"), paths(folder)[2]]
    p = InterpolateParams(weights=[0.7, 0.0, 0.3])
    ranges = RangesParams.model_validate({"shard_rows": 200})
    found, _ = mix_on(EngineHere(), str(tmp_path / "on"), given_paths, p, ranges)
    assert found.read_bytes(0, ".arpa") == mixed_here(folder, tmp_path, "zero", [0.7, 0.0, 0.3])
    assert len(found.summary["ngrams"]) == 3


PRUNED = {
    "a threshold": {"threshold": 1e-4},
    "a size, whose last order is lost": {"ngrams": 70},
    "a size that is in between": {"ngrams": 300},
    "long n-grams only": {"threshold": 1e-3, "shortest": 3},
    "all stay": {"ngrams": 10**6},
}


@pytest.mark.parametrize("by_text", [False, True])
@pytest.mark.parametrize("name", PRUNED)
def test_a_pruned_model_has_the_bytes_of_one_machine(folder: Path, tmp_path: Path, name: str, by_text: bool) -> None:
    text = [str(folder / "text1"), str(folder / "text0")] if by_text else []
    p = PruneParams.model_validate({**PRUNED[name], "history_text": text})
    model = read_model(folder / "m1.arpa")
    trie = build(model)
    contexts = contexts_of_text(trie, model.vocabulary, sentences(text)) if by_text else None
    wanted = prune(trie, threshold=p.threshold, size=p.ngrams, shortest=p.shortest, contexts=contexts)
    write_model(unpack(wanted.trie, model.vocabulary), tmp_path / "pruned.arpa")
    ranges = RangesParams.model_validate({"shard_rows": 150})
    found, _ = prune_on(EngineHere(), str(tmp_path / "on"), str(folder / "m1.arpa"), p, ranges)
    assert found.read_bytes(0, ".arpa") == (tmp_path / "pruned.arpa").read_bytes()
    assert Artifact(tmp_path / "on" / "threshold").summary["threshold"] == wanted.threshold
    assert found.summary["ngrams"] == wanted.after


def test_a_size_below_what_must_stay_is_refused_as_on_one_machine(folder: Path, tmp_path: Path) -> None:
    p = PruneParams.model_validate({"ngrams": 3})
    with pytest.raises(MegahourError, match=r"3 n-grams are too few: \d+ must stay"):
        prune_on(EngineHere(), str(tmp_path), paths(folder)[1], p, RangesParams.model_validate({}))


def test_the_commands_chain(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed by the command, pruned by the other from the lines of that."""
    monkeypatch.setattr("megahour.lm.cli.on_engine.engine_of", lambda *asked: EngineHere())
    mixed, small, on = (str(tmp_path / name) for name in ("mixed", "small.arpa", "on"))
    engine = ["--engine", "local", "--shard-rows", "1000"]
    asked = [*paths(folder), "--weights", "0.5,0.2,0.3", *engine, "--out", mixed]
    said = CliRunner().invoke(interpolate_command, asked, catch_exceptions=False)
    assert "m1.arpa" in said.output
    model = (tmp_path / "mixed" / "arpa" / "shards" / "00000.arpa").read_bytes()
    assert model == mixed_here(folder, tmp_path, "zero", [0.5, 0.2, 0.3])
    for arguments in ([mixed, *engine, "--out", on], [str(tmp_path / "mixed.arpa"), "--out", small]):
        CliRunner().invoke(prune_command, [*arguments, "--ngrams", "400"], catch_exceptions=False)
    assert (tmp_path / "on" / "arpa" / "shards" / "00000.arpa").read_bytes() == Path(small).read_bytes()
    said = CliRunner().invoke(prune_command, [mixed, *engine, "--out", on, "--ngrams", "9", "--history", small])
    assert "use --history-text for contexts" in said.output


def test_a_folder_of_one_process_has_no_lines_and_is_mixed_and_pruned_by_its_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megahour.lm.cli.on_engine.engine_of", lambda *asked: EngineHere())
    run = tmp_path / "run"
    words, vocabulary = WordsParams(source=[str(folder / "text0")]), VocabularyParams.model_validate({"order": 3})
    estimate_on(EngineHere(), str(run), words, vocabulary, TallyParams(), work=tmp_path / "work", staged=False)
    assert [path.name for path in run.iterdir()] == ["arpa"]
    file, engine = str(run / "arpa" / "shards" / "00000.arpa"), ["--engine", "local", "--shard-rows", "300"]
    for command, more in ((interpolate_command, [paths(folder)[1], "--weights", "0.3,0.7"]), (prune_command, [])):
        size = ["--ngrams", "150"] if command is prune_command else []
        for model, where, out in ((str(run), engine, "on"), (file, [], "here.arpa")):
            asked = [model, *more, *size, *where, "--out", str(tmp_path / out)]
            CliRunner().invoke(command, asked, catch_exceptions=False)
        found = (tmp_path / "on" / "arpa" / "shards" / "00000.arpa").read_bytes()
        assert found == (tmp_path / "here.arpa").read_bytes()


@pytest.mark.faults
def test_a_worker_that_dies_changes_nothing(folder: Path, tmp_path: Path) -> None:
    ranges = RangesParams.model_validate({"shard_rows": 1000})
    p = InterpolateParams(weights=[0.5, 0.2, 0.3])
    with LocalEngine(1) as engine:
        _kill_the_first(engine)
        found, _ = mix_on(engine, str(tmp_path / "on"), paths(folder), p, ranges)
        assert engine.lost > 0
    assert found.read_bytes(0, ".arpa") == mixed_here(folder, tmp_path, "zero", [0.5, 0.2, 0.3])


def _kill_the_first(engine: LocalEngine) -> None:
    """Let a worker start, and end it as the system does when memory is short, once it has a task."""
    import threading
    import time

    def kill() -> None:
        while not (busy := [worker for worker in engine._pool if worker.attempt is not None]):
            time.sleep(0.005)
        busy[0].process.kill()

    threading.Thread(target=kill, daemon=True).start()


@pytest.mark.faults
@needs_spark
def test_spark_gives_the_same_artifacts(folder: Path, tmp_path: Path) -> None:
    from megahour.engine.spark import SparkEngine

    p = InterpolateParams(heldout=[str(folder / "heldout")])
    ranges = RangesParams.model_validate({"shard_rows": 300})
    here, _ = mix_on(EngineHere(), str(tmp_path / "here"), paths(folder), p, ranges)
    with SparkEngine("local[2]") as engine:
        found, _ = mix_on(engine, str(tmp_path / "spark"), paths(folder), p, ranges)
        small, _ = prune_on(
            engine,
            str(tmp_path / "p"),
            Artifact(tmp_path / "spark" / "lines"),
            PruneParams(ngrams=300, max_bad=0),
            ranges,
        )
    assert found.manifest.digest == here.manifest.digest
    model = read_model(tmp_path / "here" / "arpa" / "shards" / "00000.arpa")
    write_model(unpack(prune(build(model), size=300).trie, model.vocabulary), tmp_path / "small.arpa")
    assert small.read_bytes(0, ".arpa") == (tmp_path / "small.arpa").read_bytes()


def test_files_are_read_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_of_models, "BLOCK_BYTES", 1000)
    path = paths(folder)[0]
    pieces = text_of_models.pieces_of([path], {}, 1500)
    assert len(pieces) > 5
    found = {k: b"".join(data for piece in pieces for order, data in text_of_models.read_piece(piece, {}) if order == k)
             for k in (1, 2, 3)}  # fmt: skip
    whole = (folder / "m0.arpa").read_bytes()
    for k, text in found.items():
        assert text.strip() == whole.split(b"\\%d-grams:\n" % k)[1].split(b"\n\n")[0].strip()


def _without_end(text: bytes) -> bytes:
    return text[: len(text) // 2]


def _without_context(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if b"\tw1 w1\t" not in line)


def _twice(text: bytes) -> bytes:
    line = next(line for line in text.splitlines(keepends=True) if b"\tw1 w1\t" in line)
    return text.replace(line, line + line)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_end, "ends early"),
        (_without_context, "not its context|is not listed"),
        (_twice, "'w1 w1' is listed twice"),
        (lambda text: text.replace(b"\tw1 w2\t", b"\tw1 nowhere\t"), "not among the unigrams"),
        (lambda text: b"MHNGRAM\n" + text, "not an ARPA file"),
        (lambda text: text + b"more\n", "text after"),
        (lambda text: b"\\data\\\nngram 1=0\n\n\\1-grams:\n\\end\\\n", "no unigrams"),
    ],
)
def test_what_is_no_model_is_refused(
    folder: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(damage((folder / "m0.arpa").read_bytes()))
    ranges = RangesParams.model_validate({"shard_rows": 300})
    with pytest.raises(MegahourError, match=message):
        mix_on(EngineHere(), str(tmp_path / "mix"), [str(path)], InterpolateParams(weights=[1.0]), ranges)
    with pytest.raises(MegahourError, match=message):
        prune_on(EngineHere(), str(tmp_path / "prune"), str(path), PruneParams(threshold=1e-5), ranges)


def test_more_models_than_a_byte_counts_are_refused(folder: Path, tmp_path: Path) -> None:
    models, ranges = [paths(folder)[2]] * 256, RangesParams()
    with pytest.raises(MegahourError, match="256 models, the limit is 255"):
        mix_on(EngineHere(), str(tmp_path), models, InterpolateParams(weights=[1 / 256] * 256), ranges)


def test_a_directory_of_something_else_and_a_file_before_a_directory_are_refused(folder: Path, tmp_path: Path) -> None:
    asked = ["--weights", "0.5,0.5", "--engine", "local", "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="no finished model"):
        CliRunner().invoke(interpolate_command, [str(tmp_path), paths(folder)[0], *asked], catch_exceptions=False)
    with pytest.raises(ConfigError, match="a file comes before a directory"):
        CliRunner().invoke(interpolate_command, [paths(folder)[0], str(tmp_path), *asked], catch_exceptions=False)


grams = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=40)


def padded(rows: list[list[int]]) -> Int32:
    return np.array([[*row, *[NO_WORD] * (3 - len(row))] for row in rows], np.int32)


@settings(max_examples=60, deadline=None)
@given(grams, grams, st.integers(1, 6))
def test_ranges_have_what_their_keys_begin_with(samples: list[list[int]], rows: list[list[int]], size: int) -> None:
    """Against the definition: keys in order of their partitions, and every prefix of a key is where the key is."""
    ranges = cut_ranges(padded(samples), size)
    assert [tuple(bound) for bound in ranges.bounds.tolist()] == sorted({tuple(b) for b in ranges.bounds.tolist()})
    keys = padded(rows)
    places = ranges.places(keys)
    for key, place in zip(rows, places.tolist(), strict=True):
        assert place == sum([word for word in bound if word >= 0] <= key for bound in ranges.bounds.tolist())
    number, wanted = ranges.all_places(keys)
    there = set(zip(number.tolist(), wanted.tolist(), strict=True))
    for place, key in zip(places.tolist(), rows, strict=True):
        assert all((i, place) in there for i, row in enumerate(rows) if row == key[: len(row)])
    for i, place in there - set(enumerate(places.tolist())):  # nothing is sent for nothing
        bound = [word for word in ranges.bounds[place - 1].tolist() if word >= 0]
        assert bound[: len(rows[i])] == rows[i]
        assert len(bound) > len(rows[i])
    for partition in range(len(ranges)):
        begin, end = ranges.first_words(partition, 4)
        singles = ranges.places(np.arange(4, dtype=np.int32)[:, None])
        assert np.flatnonzero(singles == partition).tolist() == list(range(begin, end))


def test_a_partition_is_at_most_a_fourth_larger_than_asked_for_whatever_the_skew() -> None:
    draw = np.random.default_rng(5)
    keys = np.minimum(draw.pareto(0.7, (60_000, 3)), 300).astype(np.int32)
    keys[:20_000, :2] = 7  # a third of all after two words
    keys[:20_000, 2] = draw.integers(0, 10_000, 20_000)
    shard_rows = 4_000
    ranges = cut_ranges(keys[draw.permutation(60_000)[:: shard_rows // 64]], 64)
    sizes = np.bincount(ranges.places(keys), minlength=len(ranges))
    assert sizes.max() < 1.4 * shard_rows
    assert isinstance(ranges, Ranges)
