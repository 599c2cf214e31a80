"""Computes features from audio during training, with or without augmentation of the audio.

With ``keep: means`` or ``both``, stage `features` stores for each utterance the location of its audio and the speaker's
running mean before it (`normalise`). They suffice to compute the utterance's stored features alone, bit for bit.

If the audio is augmented, the mean before it shifts by as much as augmentation shifts the utterance's own mean, as if
the speaker had always sounded so. The part of the mean that is still the prior stays, and so does all of it when only
the volume changes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError, StageError
from megahour.core.store import Artifact
from megahour.corpus.media.tar import MappedAudio
from megahour.features.extract import check_features, energies, less_mean, lowest
from megahour.features.fbank import frame_count
from megahour.features.kept import check_kept
from megahour.features.normalise import PRIOR_FRAMES, CausalMean, sounds
from megahour.features.params import FeaturesParams
from megahour.features.perturb import Perturb, at_speed, samples_at

OPEN_SHARDS = 64
FULL_SCALE = np.float32(32768)


class OnTheFly:
    """Computes the features of artifact `features` from `audio`, the utterances that they were made from.

    It is safe to use from several threads.

    Raises
    ------
    ConfigError: `features` was made from other utterances, or without means.
    """

    def __init__(self, features: Artifact, audio: Artifact, perturb: Perturb | None = None) -> None:
        self.features, self.audio, self.perturb = features, audio, perturb
        check_kept(features.summary.get("keep", "frames"), True, where=features.url)
        if features.manifest.inputs.get("utterances") != audio.manifest.digest:
            remedy = "give `audio` the utterances that the features were made from"
            raise ConfigError(f"{features.url} was not made from {audio.url}", where="input audio", remedy=remedy)
        made = features.summary["audio"]
        options = {
            name: made[name] for name in ("low_hz", "high_hz", "edges", "scale", "mean", "range_db") if name in made
        }
        self.params = FeaturesParams(mels=features.summary["mels"], **options)
        self._open = lru_cache(OPEN_SHARDS)(lambda shard: MappedAudio(audio, shard))

    def shard(self, shard: int, epoch: int) -> ShardOnTheFly:
        """The features of a shard in an epoch, computed row by row."""
        return ShardOnTheFly(self, self.features.read_table(shard, ".means.arrow"), epoch)

    def signal(self, row: dict[str, Any]) -> NDArray[np.int16]:
        """(samples,) of the utterance in `row` of the means."""
        return self._open(row["shard"]).read(row["offset"], row["size"])


class ShardOnTheFly:
    """The features of one shard in one epoch, computed on demand. `speeds` (n,) may be set before."""

    def __init__(self, source: OnTheFly, table: pa.Table, epoch: int) -> None:
        self.source, self.epoch = source, epoch
        self._table = table
        self._samples, self._rate_hz = (table.column(name).to_numpy() for name in ("samples", "rate_hz"))
        keys = table.column("key").to_numpy()
        perturb = source.perturb
        self.speeds = np.ones(len(keys)) if perturb is None else perturb.speeds(keys, epoch)

    def frames(self) -> NDArray[np.int64]:
        """Frames (n,) of all rows, at their speeds."""
        mirrored = self.source.params.edges == "mirrored"
        samples = samples_at(self._samples, self.speeds)
        pairs = zip(samples.tolist(), self._rate_hz.tolist(), strict=True)
        return np.array([frame_count(n, rate_hz, mirrored=mirrored) for n, rate_hz in pairs], np.int64)

    def row(self, i: int) -> NDArray[np.float16]:
        """Features (T_i, F) of row `i`.

        Raises
        ------
        StageError: the audio has another length than the means were made from, or its features are unusable.
        """
        row = self._table.slice(i, 1).to_pylist()[0]
        clean = self.source.signal(row)
        if len(clean) != row["samples"]:
            raise StageError(
                f"utterance {row['key']} has {len(clean)} samples, not {row['samples']}",
                where=self.source.audio.url,
                remedy=f"megahour verify {self.source.audio.url}",
            )
        mean = CausalMean.after(row["count"], np.array(row["mean"]))
        heard = self._energies(clean, row, mean, float(self.speeds[i]))
        features = less_mean(self.source.params, heard, mean, row["rate_hz"])
        try:
            check_features(features, row["key"])
        except BadRecord as bad:
            remedy = "find the option of `waveform` that causes this, and leave it out"
            raise StageError(str(bad), where=self.source.audio.url, remedy=remedy) from bad
        return features.astype(np.float16)

    def _energies(
        self, clean: NDArray[np.int16], row: dict[str, Any], mean: CausalMean, speed: float
    ) -> NDArray[np.float32]:
        """Log energies (T, F) of the utterance as augmented in this epoch. Shifts `mean` accordingly."""
        p, perturb = self.source.params, self.source.perturb
        if perturb is None:
            return energies(p, clean, row["rate_hz"])
        before = clean.astype(np.float32) / FULL_SCALE
        after = perturb.augmented(at_speed(before, speed), row["rate_hz"], row["key"], self.epoch)
        gain_db = perturb.gain_db(row["key"], self.epoch)
        if after is before and not gain_db:
            return energies(p, clean, row["rate_hz"])
        augmented = energies(p, after * (FULL_SCALE * np.float32(10 ** (gain_db / 20))), row["rate_hz"])
        if after is not before and mean.count:
            original = energies(p, clean, row["rate_hz"])
            louder = gain_db * math.log(10) / 10
            shift = shift_of_mean(original, augmented, lowest(p, row["rate_hz"]), louder)
            mean.mean += shift * (mean.count / (mean.count + PRIOR_FRAMES))
        return augmented


def shift_of_mean(
    original: NDArray[np.float32], augmented: NDArray[np.float32], floor: NDArray[np.float32] | None, louder: float
) -> NDArray[np.float64]:
    """By how much (F,) augmentation shifts the mean of an utterance's energies (T, F), apart from volume.

    Digital silence is not counted, before and after: noise over a muted pause is a sound, the pause was none. floor
    (F,): as of `CausalMean.apply`. louder: nats of a change of volume. No shift if all is silence.
    """
    before, after = sounds(original, floor), sounds(augmented, floor)
    if not (len(before) and len(after)):
        return np.zeros(original.shape[1])
    shift: NDArray[np.float64] = after.mean(axis=0, dtype=np.float64) - before.mean(axis=0, dtype=np.float64)
    shift -= louder
    return shift
