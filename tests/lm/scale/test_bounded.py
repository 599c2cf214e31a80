"""Estimation in bounded memory writes the same bytes as estimation in memory, whenever it is interrupted."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo import processes
from lm_skewed import bounded, in_memory, least_memory, reader, write_skewed

from megahour.core.errors import MegahourError, StageError
from megahour.lm.scale.bounded import estimate_bounded
from megahour.lm.scale.bounded_job import ScratchFolder
from megahour.lm.scale.resources import Need, check_disk, need_of
from megahour.lm.scale.token_file import number_text
from megahour.lm.text.cut import WordCut
from megahour.lm.text.tokenise import BOUNDARY, WordTable


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skewed(tmp_path_factory.mktemp("text") / "text.txt", 50_000)


@pytest.mark.parametrize(("order", "cutoffs", "threads"), [(2, (), 1), (3, (0, 1), 2), (5, (), 2), (7, (0, 0, 1), 1)])
def test_the_bytes_are_those_of_the_estimation_in_memory(
    text: Path, tmp_path: Path, order: int, cutoffs: tuple[int, ...], threads: int
) -> None:
    model, found = bounded(text, order, tmp_path, cutoffs=cutoffs, threads=threads)
    assert model == in_memory(text, order, tmp_path / "whole.arpa", cutoffs)
    assert not found.in_memory
    assert sum(found.sharding.shards) > 1
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(("order", "cutoffs", "threads"), [(2, (), 2), (4, (0, 0, 1), 1), (5, (), 2)])
def test_positions_in_memory_give_the_same_bytes_in_as_many_shards(
    text: Path, tmp_path: Path, order: int, cutoffs: tuple[int, ...], threads: int
) -> None:
    model, found = bounded(text, order, tmp_path, cutoffs=cutoffs, threads=threads, on_disk=False)
    assert model == in_memory(text, order, tmp_path / "whole.arpa", cutoffs)
    assert found.in_memory
    assert sum(found.sharding.shards) > 1
    assert sum(found.sharding.left_over) > 0 or order == 2


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("cut", [WordCut(300), WordCut(min_count=20), WordCut(500, 7)])
def test_a_vocabulary_cut_by_count_is_that_of_the_estimation_in_memory(
    text: Path, tmp_path: Path, cut: WordCut, held: bool
) -> None:
    model, found = bounded(text, 3, tmp_path, on_disk=not held, cut=cut)
    assert found.in_memory == held
    assert model == in_memory(text, 3, tmp_path / "whole.arpa", cut=cut)
    assert found.types < 600


@pytest.mark.parametrize("held", [True, False])
def test_a_given_vocabulary_numbers_words_in_its_own_order(text: Path, tmp_path: Path, held: bool) -> None:
    def listed() -> WordTable:
        table = WordTable()
        for word in range(400, -1, -1):
            table.add(f"w{word}".encode())
        return table

    model, _ = bounded(text, 3, tmp_path, on_disk=not held, vocabulary=listed())
    assert model == in_memory(text, 3, tmp_path / "whole.arpa", vocabulary=listed())


def test_unigrams_need_no_shards(text: Path, tmp_path: Path) -> None:
    model, found = bounded(text, 1, tmp_path, memory_bytes=1 << 28)
    assert model == in_memory(text, 1, tmp_path / "whole.arpa")
    assert (found.sharding.rounds, found.sharding.shards) == (1, [0])


def test_what_is_cut_off_is_collapsed_into_wildcard_entries(tmp_path: Path) -> None:
    """After "how" come three words once and one five times: "how *" holds three occurrences."""
    lines = ["how are", "how is", "how was", *["how to"] * 5]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    _, found = bounded(tmp_path / "text.txt", 2, tmp_path, cutoffs=(0, 1))
    assert found.sizes[1] == 3, "<s> how, how to, to </s>"
    assert found.wildcards == [(0, 0), (1, 3)]


def test_plenty_of_memory_makes_one_shard_of_the_same_model(text: Path, tmp_path: Path) -> None:
    model, found = bounded(text, 3, tmp_path, shard_rows=0, on_disk=False)
    assert found.sharding.shards == [1]
    assert model == in_memory(text, 3, tmp_path / "whole.arpa")


def killed(text: Path, out: Path, held: bool, left: int) -> None:
    """Kills itself at the step `left`; 0: when everything is written but the file is not renamed yet."""

    def progress(phase: str, done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left == 0 or (left < 0 and phase == "write" and done == total):
            os.kill(os.getpid(), signal.SIGKILL)

    scratch = out.parent / "scratch"
    estimate_bounded(
        reader(text), 3, out, scratch, memory_bytes=1 << 30, shard_rows=1, on_disk=not held, progress=progress
    )


@pytest.mark.parametrize("held", [True, False])
def test_a_killed_run_goes_on_where_it_was(text: Path, tmp_path: Path, held: bool) -> None:
    out = tmp_path / "killed.arpa"
    for steps in (1, 4, 0):
        process = processes.Process(target=killed, args=(text, out, held, steps))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not out.exists()
    (left,) = tmp_path.glob(".scratch.*.part")
    left.rename(out)  # as if the kill had come between the last two steps
    heard: list[str] = []
    estimate_bounded(
        reader(text), 3, out, tmp_path / "scratch", memory_bytes=1 << 30, shard_rows=1, on_disk=not held,
        progress=lambda phase, done, total: heard.append(phase),
    )  # fmt: skip
    assert "read" not in heard, "the text was read before the kill"
    assert out.read_bytes() == in_memory(text, 3, tmp_path / "whole.arpa")


def killed_while_it_tidies_up(text: Path, out: Path, files: int) -> None:
    """Killed once the model is written and `files` scratch files are removed."""
    unlink, left = os.unlink, [files]

    def dying(*args: Any, **more: Any) -> None:
        if out.exists():
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        unlink(*args, **more)

    os.unlink = dying  # that of `shutil` and `pathlib`, too
    estimate_bounded(reader(text), 3, out, out.parent / "scratch", memory_bytes=1 << 30, shard_rows=1, on_disk=True)


@pytest.mark.parametrize("order", [2, 3])
def test_a_run_that_was_killed_while_it_removed_its_files_can_be_repeated(
    text: Path, tmp_path: Path, order: int
) -> None:
    """They were another program's, or some were missing, until a user removed the folder."""
    for files in (1, 4, 7, 10):
        (tmp_path / "killed.arpa").unlink(missing_ok=True)
        process = processes.Process(target=killed_while_it_tidies_up, args=(text, tmp_path / "killed.arpa", files))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert any((tmp_path / "scratch").iterdir())
        model, _ = bounded(text, order, tmp_path)
        assert model == in_memory(text, order, tmp_path / "whole.arpa")
        assert not (tmp_path / "scratch").exists()


def test_folders_among_the_scratch_files_go_too(tmp_path: Path) -> None:
    held = ScratchFolder(tmp_path / "scratch")
    held.claim("job")
    (held.folder / "of a file system" / "deeper").mkdir(parents=True)
    (held.folder / "of a file system" / "file").touch()
    held.remove()
    assert not held.folder.exists()


def test_what_another_job_left_is_not_taken_up(text: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "count":
            raise Stop

    with pytest.raises(Stop):
        bounded(text, 2, tmp_path, progress=stop)
    assert (tmp_path / "scratch" / "tokens").exists()
    model, _ = bounded(text, 3, tmp_path)
    assert model == in_memory(text, 3, tmp_path / "whole.arpa")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "thesis.tex").write_text("\\title{…}")
    with pytest.raises(StageError, match="has files of another program"):
        bounded(text, 3, tmp_path)
    assert (tmp_path / "scratch" / "thesis.tex").exists()


def test_memory_and_disk_that_are_too_small_are_refused_with_numbers(text: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"\d+ tokens, .* need at least \d+ MB of memory, 100 MB are given"):
        bounded(text, 5, tmp_path, memory_bytes=100_000_000)
    least = least_memory(text, 5, tmp_path)
    assert bounded(text, 5, tmp_path / "least", memory_bytes=least, on_disk=False)[1].in_memory, "it has few tokens"
    need = Need(spill_bytes=61 * 10**15, model_bytes=10**15, ngrams=[1])
    with pytest.raises(StageError, match=r"order 5 needs about 61000000 GB in .*, .* are free") as caught:
        check_disk(need, 5, tmp_path, tmp_path)
    assert "more room (lm train: --scratch, lmplz: -T, lm cluster: --out)" in caught.value.remedy
    with pytest.raises(StageError, match=r"the model needs about 1000000 GB in ") as caught:
        check_disk(Need(0, 10**15, [1]), 5, tmp_path, tmp_path)
    assert "put scratch files (lm train: --scratch" in caught.value.remedy
    with pytest.raises(StageError, match=r"the model needs about 1000000 GB in /dev") as caught:
        check_disk(Need(0, 10**15, [1]), 5, tmp_path, Path("/dev"))
    assert "put the model on another disk" in caught.value.remedy
    with pytest.raises(StageError, match=r"order 5 needs about .* in .*, .* are free"):
        bounded(text, 5, tmp_path, expected_bytes=10**16)


def test_a_disk_that_becomes_full_says_so(text: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        number_text(reader(text), tmp_path, None, WordCut(0, 1), False, lambda *_: None)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("held", [True, False])
def test_the_disk_that_a_sample_foresees_is_enough_and_not_absurd(text: Path, tmp_path: Path, held: bool) -> None:
    tokens, lengths = _numbered(text)
    need = need_of(tokens[:60_000], lengths, len(tokens), 4, in_memory=held)
    model, found = bounded(text, 4, tmp_path, on_disk=not held)
    assert found.spilled_bytes < need.spill_bytes < 3 * found.spilled_bytes
    assert len(model) < need.model_bytes < 3 * len(model)


def test_reserved_words_and_empty_text_are_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("a b\n<s> c\n")
    with pytest.raises(MegahourError, match="<s>"):
        bounded(tmp_path / "bad.txt", 3, tmp_path)
    model, _ = bounded(tmp_path / "bad.txt", 3, tmp_path, skip_symbols=True)
    assert b"\ta b\t" in model
    for nothing in ("", "\n\n", " \t "):
        (tmp_path / "none.txt").write_text(nothing)
        with pytest.raises(MegahourError, match="no words"):
            bounded(tmp_path / "none.txt", 3, tmp_path)


def _numbered(text: Path) -> tuple[np.ndarray, np.ndarray]:
    from megahour.lm.estimate.reading import read_corpus
    from megahour.lm.text.sources import blocks

    corpus = read_corpus(blocks([str(text)])).corpus
    assert corpus.tokens[-1] == BOUNDARY
    return corpus.tokens[8:], np.diff(corpus.starts)
