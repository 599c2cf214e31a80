"""What `features` fetches for utterances in many shards of an object store, counted at the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from counting_proxy import counted_s3
from made_artifacts import write_artifact
from made_media import encode

from megahour.core.schemas import SELECTION
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import tar_writer
from megahour.features.extract import extract
from megahour.features.params import FeaturesParams

SHARDS, EACH = 55, 4
RNG = np.random.default_rng(0)
FLACS = [encode(RNG.normal(0, 3000, 16_000 + 500 * i).astype(np.int16), kind="FLAC") for i in range(EACH)]


def test_features_fetch_little_more_than_the_utterances(s3_url: str, tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as file, tar_writer(file) as tar:
        places = [tar.add(f"{i}.flac", flac) for i, flac in enumerate(FLACS)]
    tar_bytes = (tmp_path / "a.tar").read_bytes()
    utterances = write_artifact(f"{s3_url}/thin-utterances", [({}, {".tar": tar_bytes})] * SHARDS, {})
    taken = [(shard, i) for i in (0, 2, 3) for shard in range(SHARDS)]  # of each shard one, and two neighbours
    rows = [
        {
            **{field.name: [] if pa.types.is_list(field.type) else None for field in SELECTION},
            **{"key": n, "shard": shard, "offset": places[i][0], "size": places[i][1], "samples": 16_000 + 500 * i},
            **{"rate_hz": 16_000, "speaker": "s", "text": "words " * 20, "set": "labelled"},
        }
        for n, (shard, i) in enumerate(taken)
    ]
    table = pa.Table.from_pylist(rows, SELECTION)
    selection = write_artifact(f"{s3_url}/thin-selection", [({"set": "labelled"}, {".parquet": table})], {})
    here = write_artifact(tmp_path / "here", [({}, {".tar": tar_bytes})] * SHARDS, {})
    needed = sum(row["size"] for row in rows)
    p = FeaturesParams(mels=24)
    digests = []
    with counted_s3() as counts:
        far = Artifact(utterances.url)
        for audio in (far, here):
            with ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out:
                extract(p, Artifact(selection.url), audio, 0, out)
                assert out.counts.kept == len(rows)
                digests.append(out.commit().files)
            if audio is far:
                assert needed <= counts.fetched("thin-utterances") < 1.02 * needed
                assert needed <= counts.fetched() < 1.3 * needed
                assert counts.requests["GET"] < 2 * SHARDS + 10
    assert digests[0] == digests[1]
