"""What a training fetches from an artifact in an object store, counted at the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from counting_proxy import Counts, counted_s3
from made_artifacts import MELS, features_artifact, units_artifact, utterances

from megahour.batches.cache import Cache
from megahour.batches.index import shelves
from megahour.batches.labels import SenoneLabels
from megahour.batches.loader import Loader
from megahour.batches.near import Near
from megahour.batches.window import Front
from megahour.core.store import Artifact
from megahour.learn.data import near
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams

FRONT = Front(3, np.zeros(MELS, np.float32), np.ones(MELS, np.float32))
SHARDS, EACH = 8, 120
ON_TWO_MACHINES: dict[str, Any] = {"workers": 4, "nodes": 2, "rendezvous": "host:1"}
GB = 10**9


class Corpus(NamedTuple):
    """URLs of features and units, the features' bytes, and the counts of what is fetched from both."""

    features: str
    units: str
    size: int
    counts: Counts


@pytest.fixture(scope="module")
def corpus(s3_url: str) -> Iterator[Corpus]:
    made = [{**u, "text": "abc"} for u in utterances(SHARDS * EACH, frames=2000)]
    features = features_artifact(f"{s3_url}/big", [("labelled", made[i::SHARDS]) for i in range(SHARDS)])
    units = units_artifact(f"{s3_url}/big-units", made)
    size = sum(receipt.files[".arrow"].bytes for receipt in features.receipts())
    with counted_s3() as counts:
        yield Corpus(features.url, units.url, size, counts)


def rank_of(corpus: Corpus, folder: Path, gb: float = 1.0, keep=None, **options: int) -> Loader:
    """The loader of one worker; the workers of a machine share a folder."""
    cache = Cache(folder, int(gb * GB))
    features, units = Near(corpus.features, cache), Near(corpus.units, cache)
    labels = SenoneLabels(units, 3)
    shelf = shelves(features, ["labelled"], labels, 3, keep)
    return Loader(features, shelf, labels, FRONT, seed=1, batch_frames=2000, **{"window_shards": 2, **options})


def train(ranks: list[Loader], epoch: int = 0) -> list[int]:
    """An epoch in step; all keys."""
    total, size = len(ranks[0].plan(epoch)), len(ranks)
    together = threading.Barrier(size)

    def work(rank: int) -> list[int]:
        keys: list[int] = []
        for step in range(-(-total // size)):
            together.wait(240)
            if (number := step * size + rank) < total:
                keys += ranks[rank].batch(epoch, number, offset=0).keys
        return keys

    with ThreadPoolExecutor(size) as pool:
        return sorted(key for keys in pool.map(work, range(size)) for key in keys)


def test_a_start_reads_less_than_a_hundredth(corpus: Corpus, tmp_path: Path) -> None:
    corpus.counts.clear()
    for _ in range(2):  # another rank, or the same one again
        loader = rank_of(corpus, tmp_path)
        assert loader.utterances == SHARDS * EACH
        assert len(loader.plan(0)) > 10
        assert 0 < corpus.counts.fetched("shards/") < 0.01 * corpus.size


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_of_a_machine_fetch_the_corpus_once_an_epoch(corpus: Corpus, tmp_path: Path, ranks: int) -> None:
    loaders = [rank_of(corpus, tmp_path, window_shards=2) for _ in range(ranks)]
    corpus.counts.clear()
    assert train(loaders) == list(range(SHARDS * EACH))
    assert corpus.size == corpus.counts.fetched("big/shards/")
    assert train(loaders, 1) == list(range(SHARDS * EACH))
    assert corpus.size == corpus.counts.fetched("big/shards/")  # all is here


def test_a_small_cache_stays_small_and_an_epoch_costs_the_corpus(corpus: Corpus, tmp_path: Path) -> None:
    limit = 0.7 * corpus.size  # two windows, of four
    loaders = [rank_of(corpus, tmp_path, gb=limit / GB) for _ in range(2)]
    corpus.counts.clear()
    for epoch in range(2):
        train(loaders, epoch)
        held = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
        assert held <= 1.05 * limit
    assert 1.3 * corpus.size < corpus.counts.fetched("big/shards/") <= 2.2 * corpus.size


def test_machines_fetch_each_their_share_by_default(corpus: Corpus, tmp_path: Path) -> None:
    lanes = TrainParams(**ON_TWO_MACHINES).lanes_in_use
    loaders = [rank_of(corpus, tmp_path / f"machine{rank // 2}", lanes=lanes) for rank in range(4)]
    corpus.counts.clear()
    assert train(loaders) == list(range(SHARDS * EACH))
    assert corpus.counts.fetched("big/shards/") == corpus.size


def test_a_few_rows_of_every_shard_cost_their_own_bytes(corpus: Corpus, tmp_path: Path) -> None:
    """The evaluation on held-out speakers reads such rows."""
    loader = rank_of(corpus, tmp_path, keep=lambda table: np.arange(len(table)) < 4)
    corpus.counts.clear()
    assert len(train([loader])) == 4 * SHARDS
    share = loader.frames * MELS * 2
    assert share < corpus.counts.fetched("big/shards/") < 1.1 * share + SHARDS * 8192


def test_a_job_on_an_object_store_warns_of_what_it_would_fetch_twice(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = {"features": Artifact(corpus.features), "units": Artifact(corpus.units)}
    for values, said in (
        ({}, ""),
        ({"cache_gb": 1e-3}, "0.0 GB are in use at a time"),
        (ON_TWO_MACHINES, ""),
        ({**ON_TWO_MACHINES, "lanes": 1}, "set `lanes` to 4"),
        ({**ON_TWO_MACHINES, "lanes": 8}, ""),
        ({**ON_TWO_MACHINES, "trainer": "gossip"}, "use another trainer than gossip"),
    ):
        caplog.clear()
        p = TrainParams(hidden=8, layers=1, **values)
        with near(p, inputs, tmp_path) as here:
            assert prepare(p, here).loaders["labelled"].lanes == p.lanes_in_use
        assert said in caplog.text
        assert bool(said) == bool(caplog.records)
    assert (tmp_path / "cache").is_dir()


def test_a_machine_fetches_the_labels_of_its_windows_alone(corpus: Corpus, s3_url: str, tmp_path: Path) -> None:
    made = utterances(SHARDS * EACH, frames=2000)
    units = units_artifact(f"{s3_url}/parted-units", made, shards=SHARDS)  # type: ignore[arg-type]
    size = sum(receipt.files[".alignments.arrow"].bytes for receipt in units.receipts())
    loader = rank_of(corpus._replace(units=units.url), tmp_path, window_shards=2)
    corpus.counts.clear()
    keys = set(loader.batch(0, 0, offset=0).keys)
    assert {key % SHARDS for key in keys} < set(range(SHARDS))
    assert corpus.counts.fetched("parted-units/shards/") < 0.26 * size
    whole = rank_of(corpus, tmp_path, window_shards=2).batch(0, 0, offset=0)
    assert (loader.batch(0, 0, offset=0).targets["labels"] == whole.targets["labels"]).all()


def test_labels_in_an_object_store_are_those_of_a_local_copy(corpus: Corpus, tmp_path: Path) -> None:
    local = Artifact(tmp_path / "units")
    remote = Artifact(corpus.units)
    remote.fs.get(remote.root, local.root, recursive=True)
    near, there = SenoneLabels(Near(corpus.units, Cache(tmp_path / "c", GB)), 3), SenoneLabels(local, 3)
    keys = np.array([5, 10**9, 0, SHARDS * EACH - 1])
    assert (near.find(keys) == there.find(keys)).all()
    assert (near.find(keys) >= 0).tolist() == [True, False, True, True]
