"""Shards of audio stay open for the next utterance, but never more than a few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import tar_writer
from megahour.features.open_shards import OpenShards


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_many_shards_need_few_open_files(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("counts open files in /proc")
    artifact, addresses = Artifact(tmp_path / "utterances"), []
    for shard in range(6):
        soundfile.write(tmp_path / "a.flac", np.full(100, shard, np.int16), 16_000)
        with ShardWriter(artifact, shard, "made") as out:
            with out.open(".tar") as file, tar_writer(file) as tar:
                addresses.append(tar.add("a.flac", (tmp_path / "a.flac").read_bytes()))
            out.commit()
    before = open_files()
    with OpenShards(artifact, most=2) as audio:
        for shard in [0, 1, 2, 0, 3, 3, 4, 5, 0]:
            assert set(audio.shard(shard).read(*addresses[shard])) == {shard}
            assert open_files() <= before + 2
        assert list(audio._open) == [5, 0], "the one that was not asked for the longest time goes"
    assert open_files() == before
