"""Token sequences that a search has met, as a tree, and what language models and hot words say of each.

A node is a sequence: its parent's and one token more. What is fused with the acoustics depends on the sequence alone,

    F = lm_scale · ln p(words) + bonus · words + unknown · unknown words - low_scale · ln p_low(tokens) + hot words

so each node has it once, and hypotheses of one sequence share it. A word counts when the next one begins or the text
ends; of a language model of tokens each token counts. `ended` adds the last word and the models' `</s>`. What an
unknown word costs is in F as soon as no word of the language model begins with its letters: until its end it would take
the place of words in the beam.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.query.states import Ngrams, first_state, step, word_number
from megahour.lm.text.tokenise import END, PADDING, UNKNOWN

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

LN10 = np.log(10.0)
INSIDE, BEGINS, PARTS = 0, 1, 2  # tokens: of the word before them, of a new word, of none
LM, LOW, COUNT, MISSING, HOT, FUSED = range(6)  # columns of `PrefixTree.sums`
PARENT, TOKEN, CHILD, SIBLING = range(4)  # columns of `PrefixTree.links`
SPACE = 32
NEVER = -np.inf


class Fusion(NamedTuple):
    """What is fused; arrays of V rows are by token.

    lm, low: order 0 where there is none. words: those of `lm`, none where it is of tokens. numbers, low_numbers (V,): a
    token's number in a model of tokens; (0,) where `lm` is of words. kinds (V,): INSIDE, BEGINS or PARTS. letters,
    starts (V + 1,): bytes of each token without marks.
    hot_next (S, C): states of the hot words' automaton, (0, C) without any; classes (256,): the column of each byte;
    hot_value (S,): what an unfinished hot word has so far, and hot_reward (S,) what those that end here are given.
    most (V,): a token adds no more than this to F.
    """

    lm: Ngrams
    low: Ngrams
    words: SortedWords
    numbers: Int32
    low_numbers: Int32
    lm_scale: float
    bonus: float
    unknown: float
    low_scale: float
    kinds: npt.NDArray[np.int8]
    letters: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    hot_next: Int32
    hot_class: npt.NDArray[np.uint8]
    hot_value: Float64
    hot_reward: Float64
    hot_start: int
    most: Float64


class SortedWords(NamedTuple):
    """W words in the order of their bytes, one after the other in `letters`; word i begins at starts[i]."""

    letters: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]

    @staticmethod
    def of(words: Iterable[bytes]) -> SortedWords:
        ordered = sorted(words)
        return SortedWords(np.frombuffer(b"".join(ordered), np.uint8), np.cumsum([0, *map(len, ordered)]))


class PrefixTree(NamedTuple):
    """Nodes; the first ones are empty sequences, one an utterance.

    links (N, 4): parent, token, first child, next child of the parent; -1: none. open (N,): tokens of the word that has
    not ended. begun (N, 3): the range of the sorted words that begin with its letters, and how many bytes these are.
    state, low_state (N,): the models', after the words (or tokens) that have ended. hot (N,): the automaton's. sums
    (N, 6). closing (N, 3): ln p and number of the open word, and ln p of an unknown word in its place, NaN until they
    are asked for. closed (N,): the model's state after the open word. seen (N,): the frame when the node was last in
    the beam, and place (N,) where it was. size (1,): nodes so far.
    """

    links: Int32
    open: Int32
    begun: Int32
    state: Int64
    low_state: Int64
    hot: Int32
    sums: Float64
    closing: Float64
    closed: Int64
    seen: Int32
    place: Int32
    size: Int64


def make_tree(fusion: Fusion, utterances: int, nodes: int = 1 << 10) -> PrefixTree:
    """A tree of the utterances' empty sequences, with room for some more."""
    nodes += utterances
    state, low_state, closed = (np.empty(nodes, np.int64) for _ in range(3))
    links = np.empty((nodes, 4), np.int32)
    opened, hot, seen, place = (np.empty(nodes, np.int32) for _ in range(4))
    begun = np.empty((nodes, 3), np.int32)
    sums, closing = np.empty((nodes, 6)), np.empty((nodes, 3))
    tree = PrefixTree(
        links, opened, begun, state, low_state, hot, sums, closing, closed, seen, place, np.array([utterances])
    )
    roots = slice(0, utterances)
    tree.links[roots], tree.open[roots], tree.hot[roots], tree.seen[roots] = -1, 0, fusion.hot_start, -1
    tree.state[roots], tree.low_state[roots] = first_state(fusion.lm, True), first_state(fusion.low, True)
    tree.begun[roots] = 0, len(fusion.words.starts) - 1, 0
    tree.sums[roots], tree.closing[roots] = 0.0, np.nan
    return tree


def with_room(tree: PrefixTree, more: int) -> PrefixTree:
    """The tree, or a copy of it, with room for `more` nodes."""
    size = int(tree.size[0])
    if size + more <= len(tree.open):
        return tree
    room = max(size + more, 2 * len(tree.open))
    grown = {}
    for name, old in tree._asdict().items():
        if name != "size":
            grown[name] = np.empty((room, *old.shape[1:]), old.dtype)
            grown[name][:size] = old[:size]
    return tree._replace(**grown)


def fused_sums(fusion: Fusion, tree: PrefixTree, root: int, tokens: Sequence[int]) -> Float64:
    """The sums (6,) of a whole text whose sequence the tree has."""
    node = root
    for token in tokens:
        node = child_of(tree, node, token)
    sums = np.empty(6)
    ended(fusion, tree, node, sums)
    return sums


@compiled
def after(fusion, tree, node, token, sums):  # type: ignore[no-untyped-def]
    """Writes the sums of the sequence of `node` and `token` to `sums` (6,); its state of the hot words."""
    _copy(tree.sums, node, sums)
    hot = np.int64(tree.hot[node])
    if tree.open[node] and fusion.kinds[token] != INSIDE:
        hot = _closed(fusion, tree, node, sums)
    if len(fusion.numbers):
        sums[LM] += LN10 * step(fusion.lm, tree.state[node], np.int64(fusion.numbers[token]))[0]
        sums[COUNT] += 1.0
        sums[MISSING] += fusion.numbers[token] == UNKNOWN
    if fusion.low.order:
        sums[LOW] += LN10 * step(fusion.low, tree.low_state[node], np.int64(fusion.low_numbers[token]))[0]
    if len(fusion.hot_next):
        for at in range(fusion.starts[token], fusion.starts[token + 1]):
            hot = np.int64(fusion.hot_next[hot, fusion.hot_class[fusion.letters[at]]])
            sums[HOT] += fusion.hot_reward[hot]
    _fuse(fusion, sums, hot)
    if len(fusion.words.starts) > 1:
        sums[FUSED] += _of_no_word(fusion, tree, node, token)
    return hot


@compiled
def _of_no_word(fusion, tree, node, token):  # type: ignore[no-untyped-def]
    """What an unknown word costs, if the open word of the sequence of `node` and `token` is one for certain; or 0."""
    first, last, _ = _begun(fusion, tree, node, token)
    if fusion.kinds[token] == PARTS or first < last:
        return 0.0
    if tree.open[node] and fusion.kinds[token] != INSIDE:
        return fusion.unknown + fusion.lm_scale * LN10 * step(fusion.lm, tree.closed[node], np.int64(UNKNOWN))[0]
    if np.isnan(tree.closing[node, 2]):
        tree.closing[node, 2] = LN10 * step(fusion.lm, tree.state[node], np.int64(UNKNOWN))[0]
    return fusion.unknown + fusion.lm_scale * tree.closing[node, 2]


@compiled
def _begun(fusion, tree, node, token):  # type: ignore[no-untyped-def]
    """The row of `begun` of the sequence of `node` and `token`."""
    words = fusion.words
    first, last, length = np.int64(0), np.int64(len(words.starts) - 1), np.int64(0)
    if fusion.kinds[token] == PARTS:
        return first, last, length
    if fusion.kinds[token] == INSIDE and tree.open[node]:
        first, last, length = (
            np.int64(tree.begun[node, 0]),
            np.int64(tree.begun[node, 1]),
            np.int64(tree.begun[node, 2]),
        )
    for at in range(fusion.starts[token], fusion.starts[token + 1]):
        letter = np.int64(fusion.letters[at])
        first = _first_from(words, first, last, length, letter)
        last = _first_from(words, first, last, length, letter + 1)
        length += 1
    return first, last, length


@compiled
def _first_from(words, first, last, place, letter):  # type: ignore[no-untyped-def]
    """The first of the words `first` to `last`, the same before byte `place`, that has `letter` or a later one there; a
    word that ends before comes first."""
    while first < last:
        middle = (first + last) // 2
        at = words.starts[middle] + place
        if at >= words.starts[middle + 1] or words.letters[at] < letter:
            first = middle + 1
        else:
            last = middle
    return first


@compiled
def ended(fusion, tree, node, sums):  # type: ignore[no-untyped-def]
    """Writes the sums of the sequence of `node` as a whole text to `sums` (6,)."""
    _copy(tree.sums, node, sums)
    state = tree.state[node]
    if tree.open[node]:
        _closed(fusion, tree, node, sums)
        if len(fusion.numbers) == 0:
            state = tree.closed[node]
    if fusion.lm.order:
        sums[LM] += LN10 * step(fusion.lm, state, np.int64(END))[0]
    if fusion.low.order:
        sums[LOW] += LN10 * step(fusion.low, tree.low_state[node], np.int64(END))[0]
    _fuse(fusion, sums, np.int64(-1))


@compiled
def child_of(tree, node, token):  # type: ignore[no-untyped-def]
    """The node of the sequence of `node` and `token`, or -1."""
    child = np.int64(tree.links[node, CHILD])
    while child >= 0 and tree.links[child, TOKEN] != token:
        child = np.int64(tree.links[child, SIBLING])
    return child


@compiled
def grown_sum(fusion, tree, node, token, t, sums):  # type: ignore[no-untyped-def]
    """F of the sequence of `node` and `token`; NEVER where the beam of frame `t` has it, and counts it there."""
    child = child_of(tree, node, token)
    if child < 0:
        after(fusion, tree, node, token, sums)
        return sums[FUSED]
    return NEVER if tree.seen[child] == t else tree.sums[child, FUSED]


@compiled
def grown_node(fusion, tree, node, token):  # type: ignore[no-untyped-def]
    """The node of the sequence of `node` and `token`, made where there is none; with the blank that is `node`."""
    child = child_of(tree, node, token) if token else node
    if child >= 0:
        return child
    child = tree.size[0]
    tree.size[0] += 1
    tree.links[child, PARENT], tree.links[child, TOKEN] = node, token
    tree.links[child, CHILD], tree.links[child, SIBLING] = -1, tree.links[node, CHILD]
    tree.links[node, CHILD] = child
    tree.hot[child] = after(fusion, tree, node, token, tree.sums[child])
    tree.closing[child, 1], tree.closing[child, 2], tree.seen[child] = np.nan, np.nan, -1
    if len(fusion.words.starts) > 1:
        tree.begun[child, 0], tree.begun[child, 1], tree.begun[child, 2] = _begun(fusion, tree, node, token)
    kind, state, low_state = fusion.kinds[token], tree.state[node], tree.low_state[node]
    if tree.open[node] and kind != INSIDE and len(fusion.numbers) == 0:
        state = tree.closed[node]
    if len(fusion.numbers):
        state = step(fusion.lm, state, np.int64(fusion.numbers[token]))[2]
    if fusion.low.order:
        low_state = step(fusion.low, low_state, np.int64(fusion.low_numbers[token]))[2]
    tree.state[child], tree.low_state[child] = state, low_state
    tree.open[child] = 0 if kind == PARTS else 1 if kind == BEGINS else tree.open[node] + 1
    return child


@compiled
def place_for(score, ranking, held):  # type: ignore[no-untyped-def]
    """Where a candidate goes among ranking[:held], best first, behind equal ones; -1: it is not among the best."""
    if held == len(ranking) and not score > ranking[held - 1]:
        return np.int64(-1)
    at = np.int64(held)
    while at and score > ranking[at - 1]:
        at -= 1
    return at


@compiled
def put_in(at, held, ranking, score, entries, node, token, one, other):  # type: ignore[no-untyped-def]
    """Puts a candidate there; where there is no room the last one goes. entries (K, 4). Returns how many there are."""
    held = min(held + 1, len(ranking))
    for i in range(held - 1, at, -1):
        ranking[i] = ranking[i - 1]
        for column in range(4):
            entries[i, column] = entries[i - 1, column]
    ranking[at] = score
    entries[at, 0], entries[at, 1], entries[at, 2], entries[at, 3] = node, token, one, other
    return held


@compiled
def log_sum(a, b):  # type: ignore[no-untyped-def]
    """ln(e^a + e^b)."""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + np.log1p(np.exp(b - a))


@compiled
def _closed(fusion, tree, node, sums):  # type: ignore[no-untyped-def]
    """Counts the open word; the hot words' state after it."""
    if len(fusion.numbers) == 0:
        if np.isnan(tree.closing[node, 1]):
            _look_up(fusion, tree, node)
        sums[LM] += tree.closing[node, 0]
        sums[COUNT] += 1.0
        if fusion.lm.order and tree.closing[node, 1] == UNKNOWN:
            sums[MISSING] += 1.0
    hot = np.int64(tree.hot[node])
    if len(fusion.hot_next):
        hot = np.int64(fusion.hot_next[hot, fusion.hot_class[SPACE]])
        sums[HOT] += fusion.hot_reward[hot]
    return hot


@compiled
def _look_up(fusion, tree, node):  # type: ignore[no-untyped-def]
    """The open word's number and ln p."""
    tree.closing[node, 0] = tree.closing[node, 1] = 0.0
    tree.closed[node] = 0
    if fusion.lm.order == 0:
        return
    length, at = np.int64(0), node
    for _ in range(tree.open[node]):
        token, at = tree.links[at, TOKEN], np.int64(tree.links[at, PARENT])
        length += fusion.starts[token + 1] - fusion.starts[token]
    text, end, at = np.zeros(length + PADDING, np.uint8), length, node
    for _ in range(tree.open[node]):
        token, at = tree.links[at, TOKEN], np.int64(tree.links[at, PARENT])
        for i in range(fusion.starts[token + 1] - 1, fusion.starts[token] - 1, -1):
            end -= 1
            text[end] = fusion.letters[i]
    number = word_number(fusion.lm, text, length)
    ln_p, _, tree.closed[node] = step(fusion.lm, tree.state[node], number)
    tree.closing[node, 0], tree.closing[node, 1] = LN10 * ln_p, number


@compiled
def _fuse(fusion, sums, hot):  # type: ignore[no-untyped-def]
    total = fusion.lm_scale * sums[LM] + fusion.bonus * sums[COUNT] + fusion.unknown * sums[MISSING]
    total += sums[HOT] - fusion.low_scale * sums[LOW]
    if hot >= 0 and len(fusion.hot_next):
        total += fusion.hot_value[hot]
    sums[FUSED] = total


@compiled
def _copy(rows, row, to):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[1]):
        to[i] = rows[row, i]
