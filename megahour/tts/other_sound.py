"""Find what does not sound like the voice: music or a voice under the speech, and speech of another speaker.

Both are judged against the other utterances of the voice, most of which must be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from megahour.tts.durations import PAUSE, Timing

Float64 = NDArray[np.float64]
Phones = Sequence[NDArray[np.int16]]
Durations = Sequence[NDArray[np.int32]]

LEAST_PHONES = 5  # of an utterance that is judged
LEAST_UTTERANCES = 200  # of a voice; with fewer, other speakers are not looked for
GUARD = 2  # frames of 10 ms beside the first and the last phone that belong to the utterance
EDGES_DB = 4.0  # the quietest frames of an utterance with its edges lie this much lower than those within it
VOICED_DB = 60.0  # for the share of frames that are voiced where the phone is not
MOST_VOICED = 0.07  # of that share that counts
SPREAD_DB, LEAST_USUAL = 8.0, 20  # of 20 utterances or more, right ones exceed the median by at most 8 dB
SILENT = 1  # the number of `PAUSE`
CEPSTRA = 16
WINDOW = 12  # phones
OTHERS = 3  # speakers that are looked for
LEAST_OTHERS = 5  # utterances of another speaker
SHARE = 0.05  # of windows by other speakers, at first
ROUNDS, OUTLIERS = 30, 500


def quiet_db(signal: NDArray[np.float32], shift: int, times: Timing) -> float:
    """Level of the quietest twentieth and tenth of an utterance, in dB above its phones (so below 0).

    signal: (samples,), in frames of `shift`. Music fills the closures of stops, the pauses and the edges, so the lower
    level counts: that within the speech, or that of all with the edges.
    """
    power = (signal[: len(signal) // shift * shift].reshape(-1, shift).astype(np.float64) ** 2).mean(axis=1)
    ends = times.first + np.cumsum(times.frames)
    said = np.repeat([phone != PAUSE for phone in times.phones], times.frames)[: len(power) - times.first]
    level = power[times.first :][: len(said)][said].mean()
    inner = power[max(0, ends[0] - GUARD) : ends[-2] + GUARD]
    db = [10 * np.log10(np.percentile(each, (5, 10)) / (level + 1e-12) + 1e-12).mean() for each in (inner, power)]
    return float(min(db[0], db[1] + EDGES_DB))


def backgrounds(
    quiet: Sequence[float], phones: Phones, durations: Durations, voiced: Sequence[NDArray[np.bool_]]
) -> Float64:
    """(N,) level of what sounds under the speech, in dB above it; NaN for fewer than `LEAST_PHONES` phones.

    quiet: `quiet_db` of each utterance. voiced: (T,) frames. A voice or music under speech is voiced where the phone is
    not; this counts beside the level, as difference from the median utterance.
    """
    known = np.array([(each > SILENT).sum() >= LEAST_PHONES for each in phones])
    frames = np.repeat(np.concatenate(phones), np.concatenate(durations))
    said = np.concatenate(voiced).astype(np.float64)
    share = np.bincount(frames, said) / np.maximum(1, np.bincount(frames))
    lengths = [len(one) for one in voiced]
    owner = np.repeat(np.arange(len(phones)), lengths)
    other = np.bincount(owner, np.abs(said - share[frames]), len(phones)) / np.maximum(1, lengths)
    middle = np.median(other[known]) if known.any() else 0.0
    found = np.asarray(quiet) + VOICED_DB * np.clip(other - middle, -MOST_VOICED, MOST_VOICED)
    return np.where(known, found, np.nan)


def loudest_db(found: Float64, silence_db: float) -> float:
    """The limit for `backgrounds`: a voice that is noisy throughout keeps what is no noisier than the others."""
    known = found[~np.isnan(found)]
    usual = float(np.median(known)) + SPREAD_DB if len(known) >= LEAST_USUAL else -np.inf
    return max(-silence_db, usual) if silence_db else np.inf


def others(features: Sequence[NDArray[np.float32]], phones: Phones, durations: Durations, apart: float) -> Float64:
    """(N,) log odds that another speaker says an utterance or a part of it; NaN where it is not judged.

    features: log mels (T, M). phones, durations: (U,) numbers and frames. apart: least distance of a speaker from the
    voice, in standard deviations of a window.

    The mean deviation of n phones' cepstra from the voice's medians of these phones has the covariance B + W / n, with
    B between utterances and W between phones, as in the two-covariance model of Brümmer & de Villiers ("The speaker
    partitioning problem", 2010). Speakers are the components of a mixture with this covariance, the first of which is
    the voice, at 0. The others start where windows that are unlike the voice are like each other.
    """
    count = len(features)
    found = np.full(count, np.nan)
    if count < LEAST_UTTERANCES:
        return found
    owner, deviations = _deviations(features, phones, durations)
    windows = [(n, mean, size) for n in range(count) for mean, size in _windows(deviations[owner == n])]
    if len(windows) < LEAST_UTTERANCES:
        return found
    of, sizes = np.array([n for n, _, _ in windows]), np.array([size for _, _, size in windows])
    white = _whitened(np.array([mean for _, mean, _ in windows]), sizes, deviations)
    found[np.unique(of)] = -np.inf
    odds, means = _mixture(white)
    for column, mean in zip(odds.T, means, strict=True):
        best = np.full(count, -np.inf)
        np.maximum.at(best, of, column)
        if np.linalg.norm(mean) >= apart and (best > 0).sum() >= LEAST_OTHERS:
            found = np.fmax(found, np.where(np.isnan(found), np.nan, best))
    return found


def _deviations(
    features: Sequence[NDArray[np.float32]], phones: Phones, durations: Durations
) -> tuple[NDArray[np.int64], Float64]:
    """Utterance (P,) and mean deviation (P, K) of each phone from the median frame of all the same phones."""
    frames = np.concatenate([_cepstra(each) for each in features])
    each, lengths = np.concatenate(phones), np.concatenate(durations)
    owner = np.repeat(np.arange(len(phones)), [len(one) for one in phones])
    each, lengths, owner = each[lengths > 0], lengths[lengths > 0], owner[lengths > 0]
    of_frames = np.repeat(each, lengths)
    for number in np.unique(each):
        frames[of_frames == number] -= np.median(frames[of_frames == number], axis=0)
    means = np.add.reduceat(frames, np.cumsum(lengths) - lengths) / lengths[:, None]
    return owner[each > SILENT], means[each > SILENT]


def _cepstra(mel: NDArray[np.float32]) -> Float64:
    """Mel cepstra (T, K) of log mels (T, M), without that of the level."""
    size = mel.shape[1]
    angles = np.pi / size * np.outer(np.arange(size) + 0.5, np.arange(1, CEPSTRA + 1))
    return mel.astype(np.float64) @ np.cos(angles) / np.sqrt(size)  # type: ignore[no-any-return]


def _windows(phones: Float64) -> Iterator[tuple[Float64, int]]:
    """Means (K,) of overlapping windows of the phones (P, K), and their sizes."""
    count = len(phones)
    if count < LEAST_PHONES:
        return
    size = min(count, WINDOW)
    for start in [*range(0, count - size, WINDOW // 2), count - size]:
        yield phones[start : start + size].mean(axis=0), size


def _whitened(means: Float64, sizes: NDArray[np.int64], phones: Float64) -> Float64:
    """Windows (W, K) whose covariance is 1 where they are the voice's."""
    within = _core(phones)[1]
    full = sizes >= min(10, int(sizes.max()))
    centre, both = _core(means[full])
    values, axes = np.linalg.eigh(both - within * (1 / sizes[full]).mean())
    between = (axes * np.maximum(values, 0.02 * values.max())) @ axes.T
    white = np.empty_like(means)
    for size in np.unique(sizes):
        root = np.linalg.cholesky(between + within / size)
        white[sizes == size] = np.linalg.solve(root, (means[sizes == size] - centre).T).T
    return white


def _core(points: Float64, share: float = 0.8, rounds: int = 8) -> tuple[Float64, Float64]:
    """Mean (K,) and covariance (K, K) of the `share` of the points (N, K) that lie nearest to it."""
    off = points - np.median(points, axis=0)
    distance = ((off / (np.median(np.abs(off), axis=0) + 1e-8)) ** 2).sum(axis=1)  # others do not stretch it
    for _ in range(rounds):
        near = distance <= np.quantile(distance, share)
        centre, spread = points[near].mean(axis=0), np.cov(points[near].T) + 1e-8 * np.eye(points.shape[1])
        off = points - centre
        distance = (off * np.linalg.solve(spread, off.T).T).sum(axis=1)
    return centre, spread


def _mixture(white: Float64) -> tuple[Float64, list[Float64]]:
    """Log odds (W, S) of the S other speakers against the voice, and their means (K,)."""
    means = [np.zeros(white.shape[1])]
    for _ in range(OTHERS):
        distance = _distances(white, means).min(axis=1)
        far = np.argsort(-distance, kind="stable")[: min(OUTLIERS, max(2, len(white) // 10))]
        between = _distances(white[far], list(white[far]))
        radius = np.quantile(between[~np.eye(len(far), dtype=bool)], 0.1)
        densest = int((between < radius).sum(axis=1).argmax())
        means.append(white[far][between[densest] < radius].mean(axis=0))
        shares = np.array([1 - SHARE, *[SHARE / (len(means) - 1)] * (len(means) - 1)])
        for _ in range(ROUNDS):
            log = -0.5 * _distances(white, means) + np.log(shares)
            weights = np.exp(log - log.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            shares = np.maximum(weights.mean(axis=0), 1e-4)
            means = [means[0], *((w @ white) / max(w.sum(), 1e-3) for w in weights.T[1:])]
    log = -0.5 * _distances(white, means) + np.log(shares)
    return log[:, 1:] - log[:, :1], means[1:]


def _distances(points: Float64, centres: Sequence[Float64]) -> Float64:
    """Squared distances (N, C)."""
    return np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
