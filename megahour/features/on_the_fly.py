"""Features computed from audio while a model trains: those that stage `features` stores, or those of changed audio.

With ``keep: means`` or ``both`` it stores, for each utterance, where its audio is and the speaker's running mean before
it (`normalise`); from these the features of any utterance follow alone, bit for bit. Where audio is changed, the mean
before it moves by as much as the change moves the utterance's own mean: as if the speaker had always sounded so. The
part of the mean that is still prior stays, and so does all of it when only the volume changes.
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
from megahour.features.extract import check_features, energies
from megahour.features.fbank import frame_count
from megahour.features.normalise import PRIOR_FRAMES, CausalMean
from megahour.features.params import FeaturesParams
from megahour.features.perturb import Perturb, at_speed, samples_at

OPEN_SHARDS = 64
FULL_SCALE = np.float32(32768)


class OnTheFly:
    """The features of `features` from `audio`, the utterances that they were made of. Threads may compute at a time.

    Raises
    ------
    ConfigError: the artifacts do not belong together, or the means were not kept.
    """

    def __init__(self, features: Artifact, audio: Artifact, perturb: Perturb | None = None) -> None:
        self.features, self.audio, self.perturb = features, audio, perturb
        if not features.summary.get("keep"):
            remedy = "make them again with `keep: means`, or `keep: both` where decode or senones read them too"
            raise ConfigError("the features have no means, which audio needs", where=features.url, remedy=remedy)
        if features.manifest.inputs.get("utterances") != audio.manifest.digest:
            remedy = "give `audio` the utterances that the features were made of"
            raise ConfigError(f"{audio.url} is not what {features.url} was made of", where="input audio", remedy=remedy)
        summary = features.summary
        said = {
            name: summary["audio"][name] for name in ("low_hz", "high_hz", "edges", "scale") if name in summary["audio"]
        }
        self.params = FeaturesParams(mels=summary["mels"], **said)
        self._open = lru_cache(OPEN_SHARDS)(lambda shard: MappedAudio(audio, shard))

    def shard(self, shard: int, epoch: int) -> ShardOnTheFly:
        """The features of a shard in an epoch."""
        return ShardOnTheFly(self, self.features.read_table(shard, ".means.arrow"), epoch)

    def signal(self, row: dict[str, Any]) -> NDArray[np.int16]:
        """(samples,) of an utterance."""
        return self._open(row["shard"]).read(row["offset"], row["size"])


class ShardOnTheFly:
    """Row i is computed when it is asked for, (T_i, F) float16. `speeds` (n,) may be set before."""

    def __init__(self, source: OnTheFly, table: pa.Table, epoch: int) -> None:
        self.source, self.epoch = source, epoch
        self._table = table
        self._samples, self._rate_hz = (table.column(name).to_numpy() for name in ("samples", "rate_hz"))
        keys = table.column("key").to_numpy()
        perturb = source.perturb
        self.speeds = np.ones(len(keys)) if perturb is None else perturb.speeds(keys, epoch)

    def frames(self) -> NDArray[np.int64]:
        """(n,) of all rows, at their speeds."""
        mirrored = self.source.params.edges == "mirrored"
        samples = samples_at(self._samples, self.speeds)
        pairs = zip(samples.tolist(), self._rate_hz.tolist(), strict=True)
        return np.array([frame_count(n, rate_hz, mirrored=mirrored) for n, rate_hz in pairs], np.int64)

    def row(self, i: int) -> NDArray[np.float16]:
        """Raises StageError: the audio is not what the means are of."""
        row = self._table.slice(i, 1).to_pylist()[0]
        clean = self.source.signal(row)
        if len(clean) != row["samples"]:
            raise StageError(
                f"utterance {row['key']} has {len(clean)} samples, not {row['samples']}",
                where=self.source.audio.url,
                remedy=f"megahour verify {self.source.audio.url}",
            )
        mean = CausalMean.after(row["count"], np.array(row["mean"]))
        features = mean.apply(self._energies(clean, row, mean, float(self.speeds[i])))
        try:
            check_features(features, row["key"])
        except BadRecord as bad:
            remedy = "see which change of `waveform` does this, and leave it out"
            raise StageError(str(bad), where=self.source.audio.url, remedy=remedy) from bad
        return features.astype(np.float16)

    def _energies(
        self, clean: NDArray[np.int16], row: dict[str, Any], mean: CausalMean, speed: float
    ) -> NDArray[np.float32]:
        """Log energies (T, F) of the utterance as it is heard in this epoch; moves `mean` by what that changes."""
        p, perturb = self.source.params, self.source.perturb
        if perturb is None:
            return energies(p, clean, row["rate_hz"])
        before = clean.astype(np.float32) / FULL_SCALE
        after = perturb.changed(at_speed(before, speed), row["rate_hz"], row["key"], self.epoch)
        gain_db = perturb.gain_db(row["key"], self.epoch)
        if after is before and not gain_db:
            return energies(p, clean, row["rate_hz"])
        heard = energies(p, after * (FULL_SCALE * np.float32(10 ** (gain_db / 20))), row["rate_hz"])
        if after is not before and mean.count:
            as_it_was = energies(p, clean, row["rate_hz"])
            moved = heard.mean(axis=0, dtype=np.float64) - as_it_was.mean(axis=0, dtype=np.float64)
            moved -= gain_db * math.log(10) / 10
            mean.mean += moved * (mean.count / (mean.count + PRIOR_FRAMES))
        return heard
