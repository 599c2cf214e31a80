"""Grapheme-to-phoneme conversion: a joint n-gram model trained on a dictionary (Bisani and Ney, 2008).

A word and its phones are segmented into *graphones*: pairs of one or two letters and up to two phones (`CUTS` lists the
sizes). Expectation maximisation learns the segmentation of the dictionary's words. An n-gram model of graphones with
interpolated Kneser–Ney smoothing is counted on the best segmentations. A beam search then finds the likeliest phones
for the letters of a new word.
"""

from __future__ import annotations

import heapq
import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from megahour.core.errors import StageError

Graphone = tuple[str, tuple[str, ...]]
History = tuple[Graphone, ...]
CUTS = ((1, 0), (1, 1), (1, 2), (2, 1))  # numbers of letters and phones that a graphone may have
ORDER = 7
ROUNDS = 6
CUT_WORDS = 20_000  # at most this many train the segmentation; more add no useful graphones
DISCOUNT = 0.75
BEAM = 40
LEAST = 1e-7  # smallest share of a graphone; rarer ones are discarded after each round
START: Graphone = ("", ("<s>",))
END: Graphone = ("", ("</s>",))


class Pronouncer:
    """Trained on a dictionary, predicts the pronunciation of other words. `letters_of` normalises the spelling.

    Raises StageError: no entry of the dictionary can be segmented into graphones.
    """

    def __init__(self, lexicon: Mapping[str, list[list[str]]], order: int = ORDER) -> None:
        pairs = [(letters_of(word), tuple(way)) for word, ways in sorted(lexicon.items()) for way in ways]
        pairs = [(letters, phones) for letters, phones in pairs if _fit(letters, phones)]
        if not pairs:
            raise StageError("no word of the dictionary has letters for its phones", remedy="give a larger dictionary")
        shares = _shares(pairs[:: -(-len(pairs) // CUT_WORDS)])
        cuts = [cut for letters, phones in pairs if (cut := _best_cut(letters, phones, shares))]
        self.model = _NgramOfGraphones(cuts, order)
        self._spelled: dict[str, list[Graphone]] = defaultdict(list)
        for graphone in sorted({graphone for cut in cuts for graphone in cut}):
            self._spelled[graphone[0]].append(graphone)

    def pronounce(self, word: str) -> list[list[str]]:
        """The likeliest pronunciation, in a list; an empty list if no sequence of known graphones spells the word."""
        letters = letters_of(word)
        beams: list[dict[History, tuple[float, tuple[Graphone, ...]]]] = [{} for _ in range(len(letters) + 1)]
        beams[0][START,] = (0.0, ())
        for at in range(len(letters)):
            for history, (score, path) in heapq.nlargest(BEAM, beams[at].items(), key=lambda item: item[1][0]):
                for size in (1, 2):
                    if at + size > len(letters):
                        break
                    for graphone in self._spelled.get(letters[at : at + size], ()):
                        total = score + math.log(self.model.probability(graphone, history))
                        following = self.model.history((*history, graphone))
                        if total > beams[at + size].get(following, (-math.inf, ()))[0]:
                            beams[at + size][following] = (total, (*path, graphone))
        ends = [
            (score + math.log(self.model.probability(END, history)), path)
            for history, (score, path) in beams[-1].items()
            if any(phones for _, phones in path)
        ]
        return [[phone for _, phones in max(ends)[1] for phone in phones]] if ends else []


def letters_of(word: str) -> str:
    """The word case-folded and in NFC."""
    return unicodedata.normalize("NFC", word.casefold())


def _fit(letters: str, phones: tuple[str, ...]) -> bool:
    return 0 < len(phones) <= 2 * len(letters)


def _shares(pairs: list[tuple[str, tuple[str, ...]]]) -> dict[Graphone, float]:
    """Relative frequency of each graphone, by EM over all segmentations of all words, from a uniform start."""
    shares: dict[Graphone, float] = {}
    for number in range(ROUNDS):
        counts: dict[Graphone, float] = defaultdict(float)
        for letters, phones in pairs:
            _expect(letters, phones, shares if number else None, counts)
        total = sum(counts.values())
        shares = {graphone: count / total for graphone, count in counts.items() if count > LEAST * total}
    return shares


def _expect(
    letters: str, phones: tuple[str, ...], shares: Mapping[Graphone, float] | None, counts: dict[Graphone, float]
) -> None:
    """Add the expected counts of the graphones of one word (forward-backward over all segmentations)."""
    arcs = list(_arcs(letters, phones, shares))
    width = len(phones) + 1
    forward, backward = [0.0] * ((len(letters) + 1) * width), [0.0] * ((len(letters) + 1) * width)
    forward[0] = backward[-1] = 1.0
    for source, target, share, _ in arcs:
        forward[target] += forward[source] * share
    if not forward[-1]:
        return
    for source, target, share, graphone in reversed(arcs):
        counts[graphone] += forward[source] * share * backward[target] / forward[-1]
        backward[source] += share * backward[target]


def _arcs(
    letters: str, phones: tuple[str, ...], shares: Mapping[Graphone, float] | None
) -> Iterator[tuple[int, int, float, Graphone]]:
    """(source, target, share, graphone), sorted by source; both are positions in the letters × phones grid."""
    width = len(phones) + 1
    for at in range(len(letters)):
        for said in range(width):
            for size, sounds in CUTS:
                if at + size <= len(letters) and said + sounds <= len(phones):
                    graphone = (letters[at : at + size], phones[said : said + sounds])
                    share = 1.0 if shares is None else shares.get(graphone, 0.0)
                    if share:
                        source = at * width + said
                        yield source, source + size * width + sounds, share, graphone


def _best_cut(letters: str, phones: tuple[str, ...], shares: Mapping[Graphone, float]) -> tuple[Graphone, ...]:
    """The likeliest segmentation; empty if there is none."""
    best: dict[int, tuple[float, tuple[Graphone, ...]]] = {0: (0.0, ())}
    for source, target, share, graphone in _arcs(letters, phones, shares):
        if source in best:
            score = best[source][0] + math.log(share)
            if target not in best or score > best[target][0]:
                best[target] = (score, (*best[source][1], graphone))
    last = (len(letters) + 1) * (len(phones) + 1) - 1
    return best.get(last, (0.0, ()))[1]


class _NgramOfGraphones:
    """Interpolated Kneser–Ney with one discount; below the unigrams lies a uniform distribution over graphones."""

    def __init__(self, cuts: Iterable[tuple[Graphone, ...]], order: int) -> None:
        self.order = order
        after: dict[History, dict[Graphone, int]] = defaultdict(lambda: defaultdict(int))
        for cut in cuts:
            sequence = (START, *cut, END)
            for i in range(1, len(sequence)):
                context = sequence[max(0, i - order + 1) : i]
                after[context][sequence[i]] += 1
        longest = sorted(after, key=len, reverse=True)
        for size in range(order - 1, 0, -1):  # Kneser–Ney: a shorter history counts distinct predecessors
            for context in [known for known in longest if len(known) == size]:
                for graphone in after[context]:
                    after[context[1:]][graphone] += 1
            longest = sorted(after, key=len, reverse=True)
        self._after = {context: dict(counts) for context, counts in after.items()}
        self._totals = {context: sum(counts.values()) for context, counts in self._after.items()}
        self._alike = 1.0 / len(self._after[()])

    def history(self, sequence: History) -> History:
        """The longest suffix, of at most `order` − 1 graphones, that occurred as a history in training."""
        last = sequence[max(0, len(sequence) - self.order + 1) :]
        while last and last not in self._after:
            last = last[1:]
        return last

    def probability(self, graphone: Graphone, history: History) -> float:
        result = self._alike
        for start in range(len(history), -1, -1):
            counts = self._after.get(history[start:])
            if counts is None:
                break
            total = self._totals[history[start:]]
            kept = max(counts.get(graphone, 0) - DISCOUNT, 0.0) + DISCOUNT * len(counts) * result
            result = kept / total
        return result
