"""A prefix tree of the token sequences that a search has visited, with the fused score of each.

A node stands for a sequence: its parent's plus one token. The score fused with the acoustics depends only on it:

    F = lm_scale · ln p(words) + bonus · words + unknown · unknown words - low_scale · ln p_low(tokens) + hot words

so it is stored once per node and shared by all hypotheses with that sequence. A word is scored when the next one begins
or the text ends; a language model of tokens scores each token. `ended` adds the last word and the models' `</s>`. F
includes the cost of an unknown word as soon as no word of the language model begins with its letters; otherwise it
would crowd known words out of the beam until it ends.
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
INSIDE, BEGINS, PARTS = 0, 1, 2  # token kinds: continues a word, begins a word, belongs to no word
LM, LOW, COUNT, MISSING, HOT, FUSED = range(6)  # columns of `PrefixTree.sums`
PARENT, TOKEN, CHILD, SIBLING = range(4)  # columns of `PrefixTree.links`
SPACE = 32
NEVER = -np.inf


class Fusion(NamedTuple):
    """The language models and hot words to fuse; arrays with V rows are indexed by token.

    lm, low: order 0 if absent. words: the words of `lm`, empty if it models tokens. numbers, low_numbers (V,): each
    token's number in a token model; `numbers` is (0,) if `lm` models words. kinds (V,): INSIDE, BEGINS or PARTS.
    letters, starts (V + 1,): bytes of each token without marks.
    hot_next (S, C): transitions of the hot-word automaton, (0, C) without hot words; hot_class (256,): the column of
    each byte; hot_value (S,): credit for unfinished hot words; hot_reward (S,): reward for those that end here.
    most (V,): upper bound on what each token adds to F.
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
    """W words sorted by their bytes and concatenated in `letters`; word i begins at starts[i]."""

    letters: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]

    @staticmethod
    def of(words: Iterable[bytes]) -> SortedWords:
        ordered = sorted(words)
        return SortedWords(np.frombuffer(b"".join(ordered), np.uint8), np.cumsum([0, *map(len, ordered)]))


class PrefixTree(NamedTuple):
    """The nodes; the first ones are the empty sequences, one per utterance.

    links (N, 4): parent, token, first child, next sibling; -1 if none. open (N,): number of tokens in the unfinished
    word. begun (N, 3): the range of sorted words that begin with its letters, and the number of those letters in bytes.
    state, low_state (N,): model states after the finished words (or tokens). hot (N,): automaton state. sums (N, 6).
    closing (N, 3): ln p and number of the open word, and ln p of an unknown word in its place; NaN until computed.
    closed (N,): model state after the open word. seen (N,): the frame in which the node was last in the beam, and
    place (N,) its position there. size (1,): number of nodes.
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
    """A tree with an empty sequence per utterance, and room for `nodes` more."""
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
    """The tree with room for `more` new nodes; a larger copy if it has too little."""
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
    """The sums (6,) of a complete text; its sequence must be in the tree."""
    node = root
    for token in tokens:
        node = child_of(tree, node, token)
    sums = np.empty(6)
    ended(fusion, tree, node, sums)
    return sums


@compiled
def after(fusion, tree, node, token, sums):  # type: ignore[no-untyped-def]
    """Writes the sums after appending `token` to `node` to `sums` (6,). Returns the hot-word state."""
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
    """Cost of an unknown word if `node` plus `token` cannot spell a known one any more, else 0."""
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
    """The row of `begun` for `node` plus `token`."""
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
    """Binary search among words first … last - 1, which agree before byte `place`: the first whose byte there is at
    least `letter`. Words that end before it sort first."""
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
    """Writes the sums of `node` as a complete text to `sums` (6,)."""
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
    """The child of `node` by `token`, or -1."""
    child = np.int64(tree.links[node, CHILD])
    while child >= 0 and tree.links[child, TOKEN] != token:
        child = np.int64(tree.links[child, SIBLING])
    return child


@compiled
def grown_sum(fusion, tree, node, token, t, sums):  # type: ignore[no-untyped-def]
    """F of `node` plus `token`; NEVER if that sequence is already in the beam of frame `t`, which scores it itself."""
    child = child_of(tree, node, token)
    if child < 0:
        after(fusion, tree, node, token, sums)
        return sums[FUSED]
    return NEVER if tree.seen[child] == t else tree.sums[child, FUSED]


@compiled
def grown_node(fusion, tree, node, token):  # type: ignore[no-untyped-def]
    """The child of `node` by `token`, created if missing; `node` itself for the blank (0)."""
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
    """Insertion index in ranking[:held] (best first, after ties), or -1 if the score does not make the ranking."""
    if held == len(ranking) and not score > ranking[held - 1]:
        return np.int64(-1)
    at = np.int64(held)
    while at and score > ranking[at - 1]:
        at -= 1
    return at


@compiled
def put_in(at, held, ranking, score, entries, node, token, one, other):  # type: ignore[no-untyped-def]
    """Inserts a candidate at `at` and drops the last one if full. entries (K, 4). Returns the new number held."""
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
    """Adds the open word to `sums`. Returns the hot-word state after it."""
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
    """Fills in `closing` and `closed` for the open word: its ln p, its number, and the model state after it."""
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
