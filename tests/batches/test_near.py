"""Tables of an artifact in an object store: mapped copies of what is needed, fetched once by all who share a cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from counting_proxy import Counts, counted_s3
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.batches.cache import Cache
from megahour.batches.near import FileLayout, Near
from megahour.core.errors import StoreError
from megahour.core.ranges import merged, requests
from megahour.core.store import Artifact

SMALL = ["key", "speaker", "frames", "text"]
MADE = utterances(40, frames=3000)


@pytest.fixture(scope="module")
def counts(s3_url: str) -> Iterator[Counts]:
    """What is fetched of s3://…/near-features."""
    features_artifact(f"{s3_url}/near-features", [("labelled", MADE[:20]), ("labelled", MADE[20:])])
    with counted_s3() as found:
        yield found


@pytest.fixture
def features(s3_url: str, counts: Counts, tmp_path: Path) -> Near:
    near = Near(f"{s3_url}/near-features", Cache(tmp_path, 10**9))
    _ = near.manifest, near._sizes
    counts.clear()
    return near


def rows_of(table: pa.Table) -> list[bytes]:
    return [np.asarray(row.as_py(), np.float16).tobytes() for row in table.column("features")]


def test_a_whole_table_is_fetched_once_and_equal(features: Near, counts: Counts) -> None:
    size = features._size(0, ".arrow")
    for _ in range(2):
        table = features.read_table(0, ".arrow")
        assert rows_of(table) == [u["features"].tobytes() for u in MADE[:20]]
    assert counts.fetched(".arrow") == size
    assert Near(features.url, features.cache).read_table(0, ".arrow").equals(table)
    assert features.read_table(0, ".arrow", SMALL).equals(table.select(SMALL))
    assert counts.fetched(".arrow") == size


def test_small_columns_are_fetched_without_the_features(features: Near, counts: Counts) -> None:
    table = features.read_table(1, ".arrow", SMALL)
    assert table.to_pydict() == {name: [u[name] for u in MADE[20:]] for name in SMALL}
    assert counts.requests["GET"] == 3  # both edges, and the rest of the small columns
    text = sum(len(u["text"]) for u in MADE[20:])
    assert text < counts.fetched(".arrow") < text + 20_000 < 0.1 * features._size(1, ".arrow")
    assert rows_of(features.read_table(1, ".arrow", [*SMALL, "features"])) == [
        u["features"].tobytes() for u in MADE[20:]
    ]


def test_rows_are_fetched_without_the_others(features: Near, counts: Counts) -> None:
    rows = np.array([3, 4, 17])
    table = features.read_rows(0, ".arrow", rows)
    assert table.select(SMALL).to_pylist() == [{name: u[name] for name in SMALL} for u in MADE[:20]]
    values = table.column("features")
    assert [np.asarray(values[i].as_py(), np.float16).tobytes() for i in rows.tolist()] == [
        MADE[i]["features"].tobytes() for i in rows.tolist()
    ]
    own = sum(MADE[i]["features"].nbytes for i in rows.tolist())
    assert own < counts.fetched(".arrow") < own + 100_000 < features._size(0, ".arrow")
    before = counts.fetched()
    Near(features.url, features.cache).read_rows(0, ".arrow", rows)
    assert counts.fetched(".arrow") == sum(n for path, n in counts.bytes.items() if ".arrow" in path) <= before
    features.read_table(0, ".arrow")
    whole = counts.fetched(".arrow")
    assert rows_of(features.read_rows(0, ".arrow", np.array([1]))) == [u["features"].tobytes() for u in MADE[:20]]
    assert counts.fetched(".arrow") == whole  # a whole copy serves all


def test_many_small_columns_are_read_behind_the_first_edge(s3_url: str, counts: Counts, tmp_path: Path) -> None:
    made = [{**u, "text": "so many words " * 100} for u in MADE[:20]]
    url = f"{s3_url}/{tmp_path.name}"
    features_artifact(url, [("labelled", made)])
    near = Near(url, Cache(tmp_path, 10**9))
    assert near.read_table(0, ".arrow", ["text"]).column("text").to_pylist() == [u["text"] for u in made]
    assert (
        near.read_rows(0, ".arrow", np.array([5])).column("features")[5].as_py()
        == made[5]["features"].reshape(-1).tolist()
    )


def test_tables_of_other_forms_are_fetched_whole(s3_url: str, counts: Counts, tmp_path: Path) -> None:
    lists = pa.array([[float(i)] * 9000 for i in range(6)], pa.large_list(pa.float64()))
    two = pa.table({"key": range(6), "a": lists, "b": lists})
    chunked = pa.table({"key": pa.chunked_array([[0, 1, 2], [3, 4, 5]]), "a": pa.chunked_array([lists[:3], lists[3:]])})
    empty = two.slice(0, 0)
    for number, table in enumerate((two, chunked, empty)):
        url = f"{s3_url}/{tmp_path.name}-{number}"
        write_artifact(url, [({}, {".arrow": table})], {})
        near = Near(url, Cache(tmp_path / str(number), 10**9))
        assert near.read_table(0, ".arrow", ["key"]).equals(table.select(["key"]))
        assert near.read_rows(0, ".arrow", np.array([1])[: len(table)]).equals(table)


def test_local_tables_are_mapped_where_they_are(tmp_path: Path) -> None:
    made = features_artifact(tmp_path / "features", [("labelled", MADE[:3])])
    near = Near(made.url, Cache(tmp_path / "cache", 1))
    assert rows_of(near.read_rows(0, ".arrow", np.array([0]))) == rows_of(made.read_table(0, ".arrow"))
    assert not (tmp_path / "cache").exists()


def test_a_closed_cache_fetches_no_more_and_gives_what_it_has(features: Near) -> None:
    features.read_table(0, ".arrow")
    features.cache.closed.set()
    assert len(features.read_table(0, ".arrow")) == 20
    with pytest.raises(StoreError, match="nothing more is fetched"):
        features.read_table(1, ".arrow")


def test_a_shard_that_is_gone_or_short_is_named(s3_url: str, counts: Counts, tmp_path: Path) -> None:
    url = f"{s3_url}/{tmp_path.name}"
    features_artifact(url, [("labelled", MADE[:2])] * 2)
    artifact = Artifact(url)
    artifact.fs.rm_file(artifact.shard_path(0, ".arrow"))
    artifact.fs.pipe_file(artifact.shard_path(1, ".arrow"), b"cut off")
    near = Near(url, Cache(tmp_path, 10**9))
    for shard in (0, 1):
        for columns in (None, ["key"]):
            with pytest.raises(StoreError, match=f"shard {shard}, file \\*.arrow cannot be read") as caught:
                near.read_table(shard, ".arrow", columns)
            assert "megahour verify" in caught.value.remedy
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".lock", ".part")]


def test_ranges_that_nearly_touch_are_one_request_and_long_ones_are_several() -> None:
    assert merged([(0, 10), (20_000, 30_000), (30_000, 30_001), (7, 9), (5, 5), (90_000, 90_009), (-3, 1)], 90_001) == [
        (0, 10),
        (20_000, 30_001),
        (90_000, 90_001),
    ]
    million = 1 << 20
    assert list(requests([(0, 20 * million), (30 * million, 31 * million)])) == [
        [(0, 8 * million), (8 * million, 16 * million)],
        [(16 * million, 20 * million), (30 * million, 31 * million)],
    ]


def test_the_head_ends_where_the_values_begin(tmp_path: Path) -> None:
    made = features_artifact(tmp_path, [("labelled", MADE[:3])])
    path = Path(made.shard_path(0, ".arrow"))
    layout = FileLayout.of(pa.memory_map(str(path)))
    first, last = next(iter(layout.spans(np.array([2]))))
    assert path.read_bytes()[first:last] == MADE[2]["features"].tobytes()
