"""Batches whose features are computed from audio: the stored ones bit for bit, or those of changed audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_audio import MELS, Spoken, audio_artifact, speech

from megahour.batches.cache import Cache
from megahour.batches.from_audio import FromAudio
from megahour.batches.index import shelves
from megahour.batches.loader import Batch, Loader
from megahour.batches.near import Near
from megahour.batches.token_labels import TokenLabels
from megahour.batches.window import Front
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.clips import Clips
from megahour.features.on_the_fly import OnTheFly
from megahour.features.params import WaveformParams
from megahour.features.perturb import Perturb
from megahour.units.tokens import Characters

FRONT = Front(3, np.full(MELS, 0.5, np.float32), np.full(MELS, 2.0, np.float32))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    return Spoken(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def both(spoken: Spoken) -> Artifact:
    return spoken.features(keep="both")


def labels_of(spoken: Spoken) -> TokenLabels:
    return TokenLabels(Characters.of(spoken.texts))


def loader_of(spoken: Spoken, features: Artifact, audio: OnTheFly | None = None, **options: Any) -> Loader:
    labels = labels_of(spoken)
    chosen = {"seed": 1, "batch_frames": 60, "window_shards": 2, **options}
    source = FromAudio(audio, labels, 3) if audio is not None else None
    return Loader(features, shelves(features, ["labelled"], labels, 3), labels, FRONT, source=source, **chosen)


def perturbed(spoken: Spoken, features: Artifact, seed: int = 1, noises: Clips | None = None, **options: Any) -> Loader:
    perturb = Perturb(WaveformParams(**options), seed, noises)
    return loader_of(spoken, features, OnTheFly(features, spoken.audio, perturb))


def epoch_of(loader: Loader, epoch: int = 0, chunk: int = 0, offset: int = 1) -> list[Batch]:
    return [loader.batch(epoch, number, offset=offset, chunk=chunk) for number in range(len(loader.plan(epoch)))]


def by_key(batches: list[Batch]) -> dict[int, np.ndarray]:
    return {key: batch.features[b, : batch.lengths[b]].copy() for batch in batches for b, key in enumerate(batch.keys)}


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize(
    "params",
    [
        {"keep": "means"},
        {"keep": "both"},
        {"keep": "means", "mean": "utterance"},
        {"keep": "means", "mean": "utterance", "range_db": 12.0},
        {"keep": "means", "edges": "mirrored", "scale": "unit", "high_hz": -400.0},
    ],
)
def test_from_audio_batches_are_those_of_stored_features_bit_for_bit(
    spoken: Spoken, params: dict[str, Any], chunk: int
) -> None:
    stored = spoken.features(**{**params, "keep": "frames"})
    kept = spoken.features(**params)
    assert kept.summary["mean"] == stored.summary["mean"]
    expected = epoch_of(loader_of(spoken, stored), 2, chunk)
    found = epoch_of(loader_of(spoken, kept, OnTheFly(kept, spoken.audio)), 2, chunk)
    assert len(expected) > 3
    for one, other in zip(expected, found, strict=True):
        assert one.keys == other.keys
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.targets["tokens"], other.targets["tokens"])


def test_means_take_no_room_for_frames(spoken: Spoken) -> None:
    means, frames = spoken.features(keep="means"), spoken.features()
    assert set(means.receipts()[0].files) == {".arrow", ".means.arrow"}
    assert "features" not in means.read_table(0, ".arrow").column_names
    assert set(frames.receipts()[0].files) == {".arrow"}
    assert "keep" not in frames.summary


ALL = {"speed": 0.6, "noise": 0.6, "reverb": 0.6, "codec": 0.6, "volume": 0.6}


@pytest.mark.parametrize("chunk", [0, 9])
def test_what_is_done_depends_on_seed_epoch_and_utterance_alone(spoken: Spoken, both: Artifact, chunk: int) -> None:
    loader = perturbed(spoken, both, **ALL)
    forward = epoch_of(loader, 3, chunk)
    again = perturbed(spoken, both, **ALL)
    for number in (len(forward) - 1, 0):
        batch = again.batch(3, number, offset=1, chunk=chunk)
        np.testing.assert_array_equal(batch.features, forward[number].features)
    if not chunk:
        other_batches = loader_of(spoken, both, loader.source.audio, batch_frames=200, lanes=2)  # type: ignore[attr-defined]
        assert len(other_batches.plan(3)) < len(forward)
        one, other = by_key(forward), by_key(epoch_of(other_batches, 3))
        assert all(np.array_equal(one[key], other[key]) for key in range(12))
        next_epoch, next_seed = by_key(epoch_of(loader, 4)), by_key(epoch_of(perturbed(spoken, both, 2, **ALL), 3))
        for third in (next_epoch, next_seed):
            assert sum(np.array_equal(one[key], third[key]) for key in range(12)) < 4


def test_speed_changes_lengths_and_never_below_what_the_tokens_need(spoken: Spoken, both: Artifact) -> None:
    plain = by_key(epoch_of(loader_of(spoken, both)))
    fast = by_key(epoch_of(perturbed(spoken, both, speed=1.0, speeds=[2.0])))
    assert all(abs(len(plain[key]) / 2 - len(fast[key])) <= 1 for key in range(12))
    source = FromAudio(OnTheFly(both, spoken.audio, Perturb(WaveformParams(speed=1.0, speeds=[2.0]), 1)), NeedsTen(), 3)
    shelf = shelves(both, ["labelled"], labels_of(spoken), 3)[0]
    opened = source.opened(shelf, 0, 0)
    halves, wholes = opened.frames < 40, opened.frames >= 40
    stored = both.read_table(0, ".arrow")["frames"].to_numpy()
    assert halves.any()
    assert wholes.any()
    assert opened.frames[stored < 60].tolist() == stored[stored < 60].tolist(), "these stay as they are"
    assert all(len(opened.values.row(int(i))) == opened.frames[i] for i in range(len(stored)))
    in_sixteens = FromAudio(source.audio, NeedsTen(0), 16).opened(shelf, 0, 0)
    assert in_sixteens.frames.min() >= 31, "a stacked frame at every offset"


class NeedsTen:
    """Labels that need ten stacked frames, or another number."""

    def __init__(self, least: int = 10) -> None:
        self.least = least

    def known(self, shard: int, table: Any, stacked: np.ndarray) -> np.ndarray:
        return stacked >= self.least

    def opened(self, features_shards: Any) -> Any:
        raise AssertionError


def test_noise_moves_the_running_mean_and_volume_does_not(spoken: Spoken, both: Artifact, tmp_path: Path) -> None:
    """Utterances 0, 1 and 2 are their speakers' first: the mean is a prior, whatever the noise. 9 to 11 are not."""
    white = np.random.default_rng(0).normal(0, 3000, 40_000).astype(np.int16)
    noise = {"noises": Clips(audio_artifact(tmp_path, [[white]]), "noises"), "noise": 1.0, "snr_db": [-20.0, -20.0]}
    volume = {"volume": 1.0, "volume_db": [10.0, 10.0]}
    plain = by_key(epoch_of(loader_of(spoken, both)))
    loud, noisy, loud_and_noisy = (
        by_key(epoch_of(perturbed(spoken, both, **options))) for options in (volume, noise, noise | volume)
    )
    shift = [float(np.mean(noisy[key] - plain[key])) for key in range(12)]
    assert min(shift[:3]) > 2 * max(shift[9:]) > 0
    for key in range(12):
        louder = [float(np.median(each)) for each in (loud[key] - plain[key], loud_and_noisy[key] - noisy[key])]
        assert louder[0] == pytest.approx(louder[1], abs=0.05)
        assert 2 < louder[0] < 2 * np.log(10), "10 dB, of which the mean takes back more and more"


def test_changed_chunks_are_kept_in_the_cache_for_all_workers(spoken: Spoken, both: Artifact, tmp_path: Path) -> None:
    """What an object store holds is fetched into the same cache."""
    there = audio_artifact("memory://from-audio/audio", [spoken.samples[:7], spoken.samples[7:]])
    near_features = NearFeatures(both.url, tmp_path)
    audio = Near(there.url, Cache(tmp_path, 10**9))
    made = {}
    for epoch in (0, 1):
        perturb = Perturb(WaveformParams(noise=0.5), 1)
        loader = loader_of(spoken, both, OnTheFly(near_features, audio, perturb))
        batches = epoch_of(loader, epoch, chunk=7)
        names = {path.name.split("frames-")[-1] for path in tmp_path.iterdir() if "frames-" in path.name}
        made[epoch] = {name for name in names if not name.endswith(".lock")}
        assert len(batches) > 3
    assert len(made[0]) == 3
    assert len(made[1]) == 6, "each epoch has its own"
    assert any(path.name.endswith(".tar") for path in tmp_path.iterdir())


class NearFeatures(Near):
    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, Cache(folder, 10**9))


def test_artifacts_that_do_not_belong_together_are_refused(spoken: Spoken, both: Artifact, tmp_path: Path) -> None:
    other = audio_artifact(tmp_path / "other", [[speech(50, 0.5)]])
    with pytest.raises(ConfigError, match="was not made from"):
        OnTheFly(both, other)
    with pytest.raises(ConfigError, match=r"input audio needs features with means(.|\n)*keep: means"):
        OnTheFly(spoken.features(), spoken.audio)
    empty = audio_artifact(tmp_path / "empty", [[]])
    with pytest.raises(ConfigError, match=r"input noises: .*empty holds no audio(.|\n)*require_transcript"):
        Clips(empty, "noises")
