"""Look-up of whole texts in the tables of `lookup`, many positions at a time."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.query.lookup import HALF, HIGH, LINE, home, matches
from megahour.lm.text.machine import carray, prefetch, room_for_128, room_for_512, trailing_zeros
from megahour.lm.text.tokenise import BOUNDARY

BLOCK = 128  # positions of a text that are looked up together
AHEAD = 16  # words between the prefetch of a word's entry and its use

_NOTHING, _ONE = np.uint64(0), np.uint64(1)
_BEYOND = np.uint64(1 << (2 * LINE))


# One function, for the reason given in `sweep`: references to array arguments are counted by atomic additions.
@compiled
def score(  # type: ignore[no-untyped-def]
    tokens, begin, stop, order, closed, numbers, weights, segments, keys, values, end, logp, length
):
    """log10 p(tokens[p] | sentence so far) and the length of the n-gram that gave it, for positions begin .. stop-1.

    tokens: sentences that end in BOUNDARY; tokens[begin - 1] is one. closed: the table has the history of every n-gram,
    so an n-gram can be at most one word longer than that of the previous position. numbers (4 V,) int32
    and weights (4 V,) float32 are one memory: log10 p, log10 back-off, segment of each word. segments (2 P,) int64:
    first slot and slots. keys, values: all segments. logp, length: written at p - begin.
    """
    tokens = tokens.view(np.uint32)  # unsigned: indexing needs no test for negative numbers
    # Arrays on the stack: to allocate them takes as long as a short sentence.
    wanted = carray(room_for_128(), (BLOCK,), np.uint64)
    line = carray(room_for_128(), (BLOCK,), np.int64)  # where the key is looked for
    bases, lines = carray(room_for_128(), (BLOCK,), np.int64), carray(room_for_128(), (BLOCK,), np.int64)  # segments
    alive = carray(room_for_128(), (BLOCK,), np.uint32)
    best = carray(room_for_128(), (BLOCK,), np.int32)
    result = carray(room_for_128(), (BLOCK,), np.float32)
    # backs[k, i + 1]: of the k-gram that ends in position i of the block, as history of the next
    small = 4 * (order + 1) * (BLOCK + 1) <= 8 * 512
    shape = order + 1, BLOCK + 1
    backs = carray(room_for_512(), shape, np.float32) if small else np.empty(shape, np.float32)
    backs[:, 0] = 0.0
    backs[1, 0] = weights[4 * BOUNDARY + 1]
    # longest[i + 1]: length of the longest n-gram or blank that ends in position i; the order unless `closed`
    longest = carray(room_for_128(), (BLOCK + 1,), np.int32)
    longest[0] = 1 if closed else order
    for start in range(begin, stop, BLOCK):
        size = min(BLOCK, stop - start)
        for i in range(min(AHEAD, size)):
            prefetch(numbers, 4 * np.int64(tokens[start + i]))
        living = 0
        for i in range(size):
            if i + AHEAD < size:
                prefetch(numbers, 4 * np.int64(tokens[start + i + AHEAD]))
            word, before = np.int64(tokens[start + i]), np.int64(tokens[start + i - 1])
            predicted = end if word == BOUNDARY else word
            best[i], result[i] = 1, weights[4 * predicted]
            backs[1, i + 1] = weights[4 * word + 1]
            longest[i + 1] = 1 if closed else order
            if order > 1:
                segment = 2 * np.int64(numbers[4 * before + 2])
                bases[i], lines[i] = 2 * segments[segment], segments[segment + 1] // LINE
                wanted[i] = ((HIGH | np.uint64(predicted)) << HALF) | np.uint64(before)
                line[i], alive[i] = home(wanted[i], lines[i]), i
                prefetch(keys, bases[i] + 2 * LINE * line[i])
                living += 1
        # Whether an n-gram exists is unpredictable, so no branch below depends on it.
        for k in range(2, order + 1):
            still = 0
            backs[k, 1 : size + 1] = 0.0
            for index in range(living):
                i = alive[index]
                p, key, base = np.uint64(start + i), wanted[i], bases[i]
                at = base + 2 * LINE * line[i]
                same, free = matches(keys, at, key), matches(keys, at, _NOTHING)
                if not (same | free):  # a full line
                    last = base + 2 * LINE * (lines[i] - 1)
                    while not (same | free):
                        at = base if at == last else at + 2 * LINE
                        same, free = matches(keys, at, key), matches(keys, at, _NOTHING)
                hit = same != 0
                at += np.int64(trailing_zeros(same | _BEYOND)) & (2 * LINE - 1)
                place = np.uint64(2 * at + 2)
                value, back = values[place], values[place + _ONE]
                counts = hit & (value == value)
                best[i] = k if counts else best[i]
                result[i] = value if counts else result[i]
                if k == order:
                    continue
                history = hit & (tokens[p] != BOUNDARY)
                backs[k, i + 1] = back if history else np.float32(0.0)
                longest[i + 1] = max(k, longest[i + 1]) if history else longest[i + 1]
                more = hit & (tokens[p - np.uint64(k - 1)] != BOUNDARY) & (longest[i] >= k)
                key = (np.uint64(((at - base) >> 1) + 1) << HALF) | np.uint64(tokens[p - np.uint64(k)])
                line[i], wanted[i], alive[still] = home(key, lines[i]), key, i
                prefetch(keys, base + 2 * LINE * line[i] if more else at)
                still += more
            living = still
        for i in range(size):
            total = np.float64(result[i])
            for k in range(1, order):
                total += backs[k, i] if k >= best[i] else np.float32(0.0)
            logp[start - begin + i] = total
            length[start - begin + i] = best[i]
        for k in range(1, order + 1):
            backs[k, 0] = backs[k, size]
        longest[0] = longest[size]


@compiled
def sum_sentences(tokens, begin, stop, logp, unknown, total, words, missing, lost):  # type: ignore[no-untyped-def]
    """For each sentence: Σ log10 p, tokens, `unknown` tokens, and their Σ log10 p. Returns the number of sentences."""
    sentence = 0
    total[0], words[0], missing[0], lost[0] = 0.0, 0, 0, 0.0
    for p in range(begin, stop):
        total[sentence] += logp[p - begin]
        words[sentence] += 1
        if tokens[p] == unknown:
            missing[sentence] += 1
            lost[sentence] += logp[p - begin]
        if tokens[p] == BOUNDARY:
            sentence += 1
            if sentence < len(total):
                total[sentence], words[sentence], missing[sentence], lost[sentence] = 0.0, 0, 0, 0.0
    return sentence
