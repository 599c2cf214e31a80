"""Estimation in bounded memory writes the bytes of the estimation in memory, whatever interrupts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lm_skewed import bounded, in_memory, least_memory, reader, write_skewed

from megahour.core.errors import MegahourError, StageError
from megahour.lm.scale.bounded import estimate_bounded
from megahour.lm.scale.disk_need import Need, check_disk, need_of
from megahour.lm.text.tokenise import BOUNDARY


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skewed(tmp_path_factory.mktemp("text") / "text.txt", 50_000)


@pytest.mark.parametrize(("order", "prune", "threads"), [(2, (), 1), (3, (0, 1), 2), (5, (), 2), (7, (0, 0, 1), 1)])
def test_the_bytes_are_those_of_the_estimation_in_memory(
    text: Path, tmp_path: Path, order: int, prune: tuple[int, ...], threads: int
) -> None:
    memory_bytes = threads * least_memory(text, order, tmp_path)
    model, found = bounded(text, order, tmp_path, prune=prune, threads=threads, memory_bytes=memory_bytes)
    assert model == in_memory(text, order, tmp_path / "whole.arpa", prune)
    assert len(found.sharding.shards) >= 1
    assert not (tmp_path / "scratch").exists()


def test_plenty_of_memory_makes_one_shard_of_the_same_model(text: Path, tmp_path: Path) -> None:
    model, found = bounded(text, 3, tmp_path, memory_bytes=4 << 30)
    assert found.sharding.shards == [1]
    assert model == in_memory(text, 3, tmp_path / "whole.arpa")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lm_skewed import reader
from megahour.lm.scale.bounded import estimate_bounded
left = int(sys.argv[5])
def progress(phase, done, total):
    global left
    left -= 1
    if left == 0 or (left < 0 and phase == "write" and done == total):
        os.kill(os.getpid(), signal.SIGKILL)
out = Path(sys.argv[3])
folder, limit = out.parent / "scratch", int(sys.argv[4])
estimate_bounded(reader(Path(sys.argv[2])), 3, out, folder, memory_bytes=limit, progress=progress)
"""


def test_a_killed_run_goes_on_where_it_was(text: Path, tmp_path: Path) -> None:
    memory_bytes = least_memory(text, 3, tmp_path)
    out = tmp_path / "killed.arpa"
    for steps in (1, 4, 0):
        command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(text), str(out), str(memory_bytes)]
        done = subprocess.run([*command, str(steps)], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
    left = tmp_path / ".killed.arpa.scratch.part"
    left.rename(out)  # as if the kill had come between the last two steps
    heard: list[str] = []
    estimate_bounded(
        reader(text), 3, out, tmp_path / "scratch", memory_bytes=memory_bytes,
        progress=lambda phase, done, total: heard.append(phase),
    )  # fmt: skip
    assert "read" not in heard, "the text was read before the kill"
    assert out.read_bytes() == in_memory(text, 3, tmp_path / "whole.arpa")


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
    with pytest.raises(StageError, match="not empty, and not of an earlier run"):
        bounded(text, 3, tmp_path)
    assert (tmp_path / "scratch" / "thesis.tex").exists()


def test_memory_and_disk_that_are_too_small_are_refused_with_numbers(text: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"memory of 100 MB is too little for \d+ tokens, .* the least is \d+ MB"):
        bounded(text, 5, tmp_path, memory_bytes=100_000_000)
    need = Need(spill_bytes=61 * 10**15, model_bytes=10**15, ngrams=[1])
    with pytest.raises(StageError, match=r"order 5 needs about 61000000 GB of spill in .*, .* free") as caught:
        check_disk(need, 5, tmp_path, tmp_path)
    assert "larger scratch directory" in caught.value.remedy
    with pytest.raises(StageError, match=r"the model will take about 1000000 GB in "):
        check_disk(Need(0, 10**15, [1]), 5, tmp_path, tmp_path)
    with pytest.raises(StageError, match=r"order 5 needs about .* of spill"):
        bounded(text, 5, tmp_path, expected_bytes=10**16)


def test_the_disk_that_a_sample_foresees_is_enough_and_not_absurd(text: Path, tmp_path: Path) -> None:
    tokens, lengths = _numbered(text)
    need = need_of(tokens[:60_000], lengths, len(tokens), 4)
    model, found = bounded(text, 4, tmp_path)
    assert found.spilled_bytes < need.spill_bytes < 3 * found.spilled_bytes
    assert len(model) < need.model_bytes < 3 * len(model)


def test_reserved_words_and_empty_text_are_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("a b\n<s> c\n")
    with pytest.raises(MegahourError, match="<s>"):
        bounded(tmp_path / "bad.txt", 3, tmp_path)
    model, _ = bounded(tmp_path / "bad.txt", 3, tmp_path, skip_symbols=True, memory_bytes=1 << 30)
    assert b"\ta b\t" in model
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(ValueError, match="no words to count"):
        bounded(tmp_path / "none.txt", 3, tmp_path, memory_bytes=1 << 30)
    with pytest.raises(ValueError, match="order 1"):
        bounded(tmp_path / "bad.txt", 1, tmp_path, memory_bytes=1 << 30)


def _numbered(text: Path) -> tuple[np.ndarray, np.ndarray]:
    from megahour.lm.estimate.reading import read_corpus
    from megahour.lm.text.sources import blocks

    corpus = read_corpus(blocks([str(text)])).corpus
    assert corpus.tokens[-1] == BOUNDARY
    return corpus.tokens[8:], np.diff(corpus.starts)
