"""The machine code behind `scorer`: Python objects in, Python objects out. The functions are bound to the bytes of
`Ngrams.places`, others get their address."""

from __future__ import annotations

import numpy as np
from numba import carray

from megahour.core.compiled import compiled
from megahour.lm.query.direct import CONTENT, Direct, int_of, is_true, new_float, new_int, new_triple, text_of
from megahour.lm.query.scoring import score
from megahour.lm.query.states import arrays_of, is_state, number_in, opened, step, vocabulary_of
from megahour.lm.text.machine import address_of, int32_at, int64_at, pointer, prefetch_at, room_for_128, room_for_512
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, encode_block

SHORT = 1000  # bytes of a text that is read without an allocation
_BEHIND = 64  # bytes behind a text that may be read
_PAGE_BITS = 12  # of the smallest pages that there are

_score_here = compiled(inline=True)(score.py_func)
"""`score` inside its caller, where array arguments need no references: 30 ns of a sentence, and two seconds more to
compile."""


@Direct
def sentence_score(own, arguments, count):  # type: ignore[no-untyped-def]
    """(text) or (text, bos, eos) → Σ log10 p of a short sentence; NaN if it is none, or has a line break."""
    text, size = _text(int64_at(arguments), room_for_512())
    if size < 0:
        return new_float(np.nan)
    bos = eos = True
    if count > 1:
        bos, eos = is_true(int64_at(arguments + 8)) > 0, is_true(int64_at(arguments + 16)) > 0
    tokens, logp = carray(room_for_512(), (1024,), np.int32), carray(room_for_512(), (1024,), np.float32)
    length = carray(room_for_128(), (1024,), np.int8)
    lm = opened(own + CONTENT)
    words, breaks = _encoded(lm, text, size, eos, tokens)
    if bos:
        begin, closed, end = np.int64(1), np.bool_(True), np.int64(END)
        numbers, weights, segments, keys, values = arrays_of(lm)
        _score_here(
            tokens, begin, words + 1, lm.order, closed, numbers, weights, segments, keys, values, end, logp, length
        )
    else:
        _walk(lm, tokens[1:], logp[:words], length)
    total = np.nan if breaks else 0.0
    for i in range(words):
        total += logp[i]
    return new_float(total)


@Direct
def score_after(own, arguments, count):  # type: ignore[no-untyped-def]
    """(state, number) → (log10 p, n-gram length, next state); the length is 0 if the model lacks one of them."""
    return _stepped(own + CONTENT, int_of(int64_at(arguments)), int_of(int64_at(arguments + 8)))


@Direct
def score_word_after(own, arguments, count):  # type: ignore[no-untyped-def]
    """The same for (state, short word)."""
    places = own + CONTENT
    return _stepped(places, int_of(int64_at(arguments)), _number(places, int64_at(arguments + 8)))


@Direct
def word_number(own, arguments, count):  # type: ignore[no-untyped-def]
    """(short word) → its number, UNKNOWN if the model lacks it; -1 if it is no such word."""
    return new_int(_number(own + CONTENT, int64_at(arguments)))


@compiled
def score_words(places, data, bos, eos):  # type: ignore[no-untyped-def]
    """Of bytes with PADDING more behind them: word numbers, with BOUNDARY for the end; log10 p; n-gram lengths; number
    of line breaks."""
    size = len(data) - PADDING
    tokens, logp, length = np.empty(size + 3, np.int32), np.empty(size + 2, np.float32), np.empty(size + 2, np.int8)
    text = carray(pointer(address_of(data)), (len(data),), np.uint8)
    lm = opened(places)
    count, breaks = _encoded(lm, text, size, eos, tokens)
    if bos:
        begin, closed, end = np.int64(1), np.bool_(True), np.int64(END)
        numbers, weights, segments, keys, values = arrays_of(lm)
        score(tokens, begin, count + 1, lm.order, closed, numbers, weights, segments, keys, values, end, logp, length)
    else:
        _walk(lm, tokens[1:], logp[:count], length)
    return tokens[1 : count + 1], logp[:count], length[:count], breaks


@compiled(inline=True)
def _text(thing, room):  # type: ignore[no-untyped-def]
    """The UTF-8 of a str with _BEHIND more bytes, and its length: where it is, unless these bytes are in another page,
    which may not exist, else copied to a room of 2048 bytes. The length is -1 if it is above SHORT or there is none."""
    address, size = text_of(thing)
    if address == 0 or size > SHORT:
        return carray(room, (0,), np.uint8), np.int64(-1)
    there = pointer(address)
    if (address ^ (address + size + _BEHIND - 1)) >> _PAGE_BITS:
        text, copy = carray(there, (size,), np.uint8), carray(room, (size,), np.uint8)
        for i in range(size):
            copy[i] = text[i]
        there = room
    return carray(there, (size + _BEHIND,), np.uint8), size


@compiled
def _number(places, thing):  # type: ignore[no-untyped-def]
    text, size = _text(thing, room_for_512())
    return number_in(opened(places), text, size) if size >= 0 else size


@compiled
def _stepped(places, state, word):  # type: ignore[no-untyped-def]
    lm = opened(places)
    logp, length, after = 0.0, np.int64(0), np.int64(0)
    if is_state(lm, state) and 0 <= word < lm.words:
        logp, length, after = step(lm, state, word)
        prefetch_at(lm.segments_at + 16 * int32_at(lm.words_at + 16 * word + 8))  # where the next step will begin
    return new_triple(new_float(logp), new_int(length), new_int(after))


@compiled(inline=True)
def _encoded(lm, text, size, eos, tokens):  # type: ignore[no-untyped-def]
    """Write the word numbers of a sentence to `tokens`, behind a BOUNDARY, and for `eos` another one after them.
    Returns (words, with this end; line breaks)."""
    table, arena, starts = vocabulary_of(lm)
    begin, frozen = np.int64(0), np.int64(1)  # literals would compile the function once more
    tokens[0] = BOUNDARY
    _, count, _, _ = encode_block(text, begin, size, size, table, arena, starts, lm.words, tokens[1:], begin, frozen)
    breaks = 0
    for i in range(1, count + 1):
        breaks += tokens[i] == BOUNDARY
    if eos:
        count += 1
        tokens[count] = BOUNDARY
    return count, breaks


@compiled
def _walk(lm, tokens, logp, length):  # type: ignore[no-untyped-def]
    """Score each word after the state of the one before it, the first after an unknown history."""
    state = np.int64(0)
    for i in range(len(logp)):
        word = np.int64(END) if tokens[i] == BOUNDARY else np.int64(tokens[i])
        found, words, state = step(lm, state, word)
        logp[i], length[i] = found, words
