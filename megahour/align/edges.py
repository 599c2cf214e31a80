"""Corrects word edges by energy. CTC marks a word by short peaks: the first may lie in the pause before the word's
sound, and the last ends some 180 ms before the sound does.

Two thresholds, as in endpointing (Rabiner and Sambur, 1975): `loud_frames` says where a word's sound is and
`audible_frames` how far it fades in and out. Both follow the levels around, so that a recording may change its noise.
All frames here are of 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LOUD_SHARE = 0.35  # of the way from the quiet (10th percentile) to the loud level (95th)
LONGEST_TAIL = 40  # frames by which an end may move out
LONGEST_HEAD = 20  # frames by which a start may move out
LONGEST_LETTER = 60  # the same for the start of a word of one token, whose peak may be at the end of a letter's name
MOST_LATE = 0.1  # share of words after pauses that may start later; with more of them, all may move as letters do
FEWEST_DELAYS = 5  # such words
LONGEST_GAP = 25  # frames of a pause inside a word that separates a doubtful outer token
SHORTEST_SOUND = 3  # loud frames in a row; fewer are a click
SHORTEST_PAUSE = 7  # quiet frames in a row; fewer are a closure inside a word, to which no edge moves in
AUDIBLE_RISE = 0.4  # nats above the quiet level that can be heard (1.7 dB); noise varies less
AUDIBLE_RANGE = 6.0  # nats below the loud level (26 dB): fainter is no part of a word, however quiet the pauses are
FADE_IN = 5  # frames that a start may move out over faint sound
FADE_OUT = 15  # frames that an end may move out over faint sound
FADE_LAST = 30  # the same for the end of a word before a pause, over closures too
LAST_FRAMES = 5  # averaged, to hear a last consonant in noise
LAST_RISE = 0.3  # nats above the quiet level that can be heard in that mean
LEVEL_FRAMES = 3000  # neighbourhood whose levels count
LEVEL_STEP = 1000
MOST_NOISE = 0.6  # of the way from the recording's quiet to its loud level that the local quiet may be
LEAST_SPEECH = 0.6  # of that way that the local loud level must be: a long pause has no loud frames

Frames = NDArray[np.int64]


class Levels(NamedTuple):
    """Mean log-mel energy of a recording's 10 ms frames, and the quiet and loud level around each; all (T,)."""

    energy: NDArray[np.float32]
    quiet: NDArray[np.float64]
    loud: NDArray[np.float64]

    def above(self, rise: float) -> NDArray[np.float64]:
        """Energy (T,) from which a frame is audible: at least `rise` nats above the pauses."""
        faint = np.maximum(self.quiet + rise, self.loud - AUDIBLE_RANGE)
        return np.minimum(faint, self.quiet + LOUD_SHARE * (self.loud - self.quiet))


def loud_frames(levels: Levels) -> NDArray[np.bool_]:
    """Which 10 ms frames (T,) of a recording are speech. Clicks below 30 ms are not."""
    return long_runs(levels.energy > levels.quiet + LOUD_SHARE * (levels.loud - levels.quiet), SHORTEST_SOUND)


def audible_frames(levels: Levels) -> NDArray[np.bool_]:
    """Which 10 ms frames (T,) are above the pauses at all: loud ones, and those in which a word fades in or out."""
    audible: NDArray[np.bool_] = levels.energy > levels.above(AUDIBLE_RISE)
    return audible


def last_frames(levels: Levels, audible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which 10 ms frames (T,) the end of a word before a pause may move over.

    These are the `audible` ones, and short closures between them: "heights" ends with a burst after 60 ms of silence.
    In noise that burst is heard only in the mean of neighbouring frames.
    """
    if not len(audible):
        return audible
    least = levels.above(LAST_RISE)
    capped = np.minimum(levels.energy, least + LAST_RISE)  # a loud frame must not make its neighbours audible
    padded = np.pad(capped, LAST_FRAMES // 2, mode="edge")
    mean = np.convolve(padded, np.full(LAST_FRAMES, 1 / LAST_FRAMES), "valid")
    return ~long_runs(~long_runs(audible | (mean > least), SHORTEST_SOUND), SHORTEST_PAUSE)


def levels_of(energy: NDArray[np.float32]) -> Levels:
    """Levels of the half minute around each frame of `energy` (T,), within bounds of the whole recording's."""
    if not len(energy):
        return Levels(energy, np.zeros(0), np.zeros(0))
    quiet, loud = np.percentile(energy, [10, 95])
    middles = np.arange(0, len(energy) + LEVEL_STEP, LEVEL_STEP)
    reach = LEVEL_FRAMES // 2
    around = [
        np.percentile(energy[max(0, m - reach) : m + reach], [10, 95]) for m in np.minimum(middles, len(energy) - 1)
    ]
    local_quiet, local_loud = np.array(around).T
    local_quiet = np.clip(local_quiet, quiet, quiet + MOST_NOISE * (loud - quiet))
    local_loud = np.maximum(local_loud, quiet + LEAST_SPEECH * (loud - quiet))
    frames = np.arange(len(energy))
    return Levels(energy, np.interp(frames, middles, local_quiet), np.interp(frames, middles, local_loud))


def runs(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(R, 2) first index, and index after the last, of each run of true values in `mask` (T,)."""
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))).reshape(-1, 2)


def long_runs(mask: NDArray[np.bool_], shortest: int) -> NDArray[np.bool_]:
    """`mask` (T,) where it is true at least `shortest` times in a row."""
    turns = np.concatenate([[0], np.flatnonzero(mask[1:] != mask[:-1]) + 1, [len(mask)]])
    lengths = np.diff(turns)
    long_enough: NDArray[np.bool_] = np.repeat(lengths >= shortest, lengths)
    return mask & long_enough


@dataclass(frozen=True, slots=True)
class EdgeWords:
    """Words (W,) in order of time, in frames. second, inner: where the second token begins and the second-to-last ends
    (for words of one token: the word's end and start). doubt_first, doubt_last: whether the first (last) token is less
    probable than its neighbour."""

    start: Frames
    end: Frames
    second: Frames
    inner: Frames
    doubt_first: NDArray[np.bool_]
    doubt_last: NDArray[np.bool_]


def widen(words: EdgeWords, loud: NDArray[np.bool_]) -> tuple[Frames, Frames]:
    """Starts and ends moved to where the words' sound begins and ends; never into another word.

    An edge in silence moves inwards to the word's sound. An edge in sound moves outwards to the next pause if one is
    near; without a pause between two words the earlier one takes the frames.
    """
    start, end = narrow(words, loud)
    new_end, floor, preceding = _outward(start, end, loud, LONGEST_TAIL)
    after_pause, letter = preceding >= floor, words.inner <= words.start
    head = np.where(letter, LONGEST_LETTER, longest_head((start - preceding)[after_pause & ~letter]))
    near = after_pause & (start - preceding <= head)
    return np.where(near, np.minimum(preceding, start), start), new_end


def longest_head(delays: Frames) -> int:
    """Frames by which starts may move out.

    delays: (N,) frames from the onset of sound to the first peak of the words after pauses. A model that has learnt
    little marks a word, or words of some kind, when it has heard most of it; other models are late in one word of a
    hundred. Sound that begins `LONGEST_LETTER` before a peak is of other words.
    """
    near = delays[delays <= LONGEST_LETTER]
    late = len(near) >= FEWEST_DELAYS and np.mean(near > LONGEST_HEAD) > MOST_LATE
    return LONGEST_LETTER if late else LONGEST_HEAD


def fade(words: EdgeWords, start: Frames, end: Frames, levels: Levels) -> tuple[Frames, Frames]:
    """Starts and ends of words (W,) in order, moved out over the faint sound around them; never into another word.

    In noise and in rooms a word's last sounds are no longer loud: without this its end is some 100 ms early there.
    Before a pause the path's own end counts, too: it moves in over what is not heard at all, not over what is faint.
    """
    audible = audible_frames(levels)
    last = last_frames(levels, audible)
    new_end, floor, preceding = _outward(start, end, audible, FADE_OUT)
    last_end, _, _ = _outward(start, np.maximum(end, narrow(words, last)[1]), last, FADE_LAST)
    paused = np.append(start[1:], len(audible) + LONGEST_GAP) - last_end >= LONGEST_GAP
    new_end = np.where(paused, np.maximum(last_end, new_end), new_end)
    return np.minimum(start, np.maximum(np.maximum(preceding, start - FADE_IN), floor)), new_end


def _outward(start: Frames, end: Frames, sound: NDArray[np.bool_], longest: int) -> tuple[Frames, Frames, Frames]:
    """(W,) ends moved out over `sound` (T,), where the previous word then ends, and where each start's sound begins.

    An end moves to the next silence, by at most `longest` frames and never into the next word.
    """
    silent = np.flatnonzero(~sound)
    limit = np.append(start[1:], len(sound))
    following = np.append(silent, len(sound))[np.searchsorted(silent, end)]
    new_end = np.maximum(end, np.minimum(np.minimum(following, end + longest), limit))
    return new_end, np.insert(new_end[:-1], 0, 0), np.insert(silent, 0, -1)[np.searchsorted(silent, start)] + 1


def main_parts(
    word: NDArray[np.integer[Any]], start: Frames, end: Frames, loud: NDArray[np.bool_]
) -> Iterator[tuple[int, int, int]]:
    """Words with an implausible pause inside: (word, first and last token of the larger part).

    word, start, end: (U,) word of each token, and its frames; -1 if it is not spoken. If the path misses a token's own
    sound, it puts the token on another's; the part with more tokens is the word's. Equal parts are left to `narrow`,
    which compares probabilities.
    """
    quiet = np.concatenate([[0], np.cumsum(~loud)])
    paused = quiet[np.clip(start[1:], 0, len(loud))] - quiet[np.clip(end[:-1], 0, len(loud))]
    apart = (word[1:] == word[:-1]) & (end[:-1] >= 0) & (start[1:] >= 0) & (paused > LONGEST_GAP)
    for one in np.unique(word[1:][apart]).tolist():
        own = np.arange(np.searchsorted(word, one), np.searchsorted(word, one, "right"))
        parts = np.split(own, np.flatnonzero(apart[own[:-1]]) + 1)  # words are in order
        sizes = sorted(map(len, parts))
        if sizes[-1] > sizes[-2]:
            (largest,) = (part for part in parts if len(part) == sizes[-1])
            yield one, int(largest[0]), int(largest[-1])


def narrow(words: EdgeWords, loud: NDArray[np.bool_]) -> tuple[Frames, Frames]:
    """Move edges that lie in silence inwards to the nearest sound of the word; edges in sound stay.

    If a pause separates a word's first token from its second, and the first is less probable, the word starts with the
    sound of the second; likewise at its end. A start may pass the second token if that one lies in silence. A word
    without sound stays unchanged.
    """
    start, end = words.start, words.end
    second, inner = np.clip(words.second, start, end), np.clip(words.inner, start, end)
    sounding = ~long_runs(~loud, SHORTEST_PAUSE)
    sounds = np.flatnonzero(sounding)
    onsets, offsets = runs(sounding).T
    if not len(sounds):
        return start, end
    # The sound at or after the second token.
    sound_at = np.minimum(np.searchsorted(offsets, second, "right"), len(onsets) - 1)
    apart = words.doubt_first & (onsets[sound_at] - start > LONGEST_GAP) & (onsets[sound_at] < end)
    start = np.where(apart, onsets[sound_at], start)
    sound_at = np.maximum(np.searchsorted(onsets, inner, "left") - 1, 0)  # at or before the second-to-last
    apart = words.doubt_last & (end - offsets[sound_at] > LONGEST_GAP) & (offsets[sound_at] > start)
    end = np.where(apart, offsets[sound_at], end)
    onset = np.append(sounds, len(loud))[np.searchsorted(sounds, start)]
    offset = np.insert(sounds, 0, -1)[np.searchsorted(sounds, end)] + 1
    heard = (onset < end) & (offset > start) & (offset - onset >= SHORTEST_SOUND)
    return np.where(heard, onset, start), np.where(heard, offset, end)
