"""Files of mapped models: in aligned pieces, whoever writes what when; and files cut short, or of another kind."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import entries, estimate_text

from megahour.core.errors import MegahourError
from megahour.lm.arpa.direct import PAGE, ThreadedFile
from megahour.lm.arpa.read import ArpaArrays, read_arrays, read_sizes
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.query.mapped import open_mapped
from megahour.lm.query.mapped_build import PIECE
from megahour.lm.query.mapped_import import build, to_arrays
from megahour.lm.query.mapped_sink import estimate_mapped
from megahour.lm.query.model_files import lines_of
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.tokenise import WordTable

ARPA = Path(__file__).parents[1] / "lmplz" / "order3.arpa"


@given(st.lists(st.integers(0, 12 * PAGE), max_size=8), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=40)
def test_parts_in_any_order_make_the_file(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], random: object, into_room: bool
) -> None:
    data = np.random.default_rng(1).bytes(12 * PAGE + 77)
    bounds = sorted({0, len(data), *cuts})
    parts = list(pairwise(bounds))
    random.shuffle(parts)  # type: ignore[attr-defined]
    path = tmp_path_factory.mktemp("parts") / "file"
    with ThreadedFile(path) as disk:
        for begin, end in parts:
            if into_room:
                disk.room(end - begin, begin)[:] = np.frombuffer(data[begin:end], np.uint8)
                disk.wrote(end - begin)
            else:
                disk.write(data[begin:end], begin)
        disk.close()
    assert path.read_bytes() == data


def test_what_lies_between_parts_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadedFile(path) as disk:
        disk.room(30, 20)[:] = 1  # given up
        disk.room(20, 40)[:] = ord("b")
        disk.wrote(20)
        disk.write(b"a" * 3, 0)
        disk.close()
    assert path.read_bytes() == b"aaa" + bytes(37) + b"b" * 20


def test_large_tables_begin_where_a_huge_page_may(tmp_path: Path) -> None:
    """And hold what was put in: many n-grams of few histories fill lines that others want."""
    words, random = 2000, np.random.default_rng(1)
    table = WordTable()
    for number in range(words):
        table.add(b"w%d" % number)
    keys = random.choice(words * 60, 100_000, replace=False)
    grams = np.stack([keys // words + 3, keys % words + 3], axis=1).astype(np.int32)
    logp = [-random.random(len(table)), -random.random(len(grams))]
    arrays = ArpaArrays(
        table, [np.arange(len(table), dtype=np.int32)[:, None], grams], logp, [np.zeros_like(each) for each in logp]
    )
    path = tmp_path / "large.mlm"
    with ThreadedFile(path) as file:
        build(arrays, file, "large")
    mapped = open_mapped(path)
    mapped.verify()
    place = mapped.entries.ctypes.data - mapped.vocabulary.table.ctypes.data
    assert mapped.entries.nbytes > PIECE
    assert path.stat().st_size == PIECE + mapped.entries.nbytes
    assert place < PIECE
    found = to_arrays(mapped)
    back = np.argsort(found.grams[1][:, 0].astype(np.int64) * len(table) + found.grams[1][:, 1])
    given_order = np.argsort(grams[:, 0].astype(np.int64) * len(table) + grams[:, 1])
    np.testing.assert_array_equal(found.grams[1][back], grams[given_order])
    np.testing.assert_array_equal(found.log10_prob[1][back], logp[1][given_order].astype(np.float32))


@pytest.mark.parametrize("cutoffs", [[0], [0, 0, 1]])
def test_large_partitions_come_out_whole(cutoffs: list[int], tmp_path: Path) -> None:
    """Some thousand sentences of frequent and rare words, each n-gram with what it goes on from."""
    random = np.random.default_rng(2)
    lines = [" ".join(f"w{word}" for word in random.zipf(1.3, 12) if word < 5000) for _ in range(3000)]
    estimate_mapped(read_corpus(line_blocks(lines, "lines")).corpus, 4, tmp_path / "a.mlm", cutoffs=cutoffs)
    ours, text = entries(to_arrays(open_mapped(tmp_path / "a.mlm"))), entries(estimate_text(lines, 4, cutoffs).model)
    assert ours.keys() == text.keys()
    assert max(abs(np.subtract(ours[gram], text[gram])).max() for gram in text) < 1e-6


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
@pytest.mark.parametrize("read", [read_arrays, read_sizes, lambda path: list(lines_of(str(path)))])
def test_files_cut_short_are_named(
    pack: Callable[[bytes], bytes], read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    path.write_bytes(pack(b"a text, and by its comment a model\n" + ARPA.read_bytes())[:100])
    with pytest.raises(MegahourError, match=r"cut: .*(damaged or end early|ends early)"):
        read(path)


def test_files_that_are_not_arpa_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a b c\n")
    with pytest.raises(MegahourError, match=r"notes\.txt:\d+: not an ARPA file: it has no line"):
        read_sizes(path)
    path.write_text("a b c\n" * 500_000)  # a text in the place of the model, which took a minute
    begun = process_time()
    with pytest.raises(MegahourError, match=r"notes\.txt:10001: not an ARPA file: .* among the first 10,000"):
        read_sizes(path)
    assert process_time() - begun < 1.0
