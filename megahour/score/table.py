"""The table of word error rates per condition, as data and as Markdown (Table II of Parthasarathi & Strom 2019)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from megahour.corpus.text.edit_distance import Edits
from megahour.score.references import Reference
from megahour.score.wer import Bootstrap, Comparison, Rate, character_edits, compare, rate, word_edits

BASELINE, STUDENT = "baseline", "student"


class Scored:
    """Edits of every system on every reference. A missing hypothesis counts as empty."""

    def __init__(self, references: Sequence[Reference], systems: Mapping[str, Mapping[int, str]]) -> None:
        self.references = references
        self.texts = {name: [texts.get(r.key, "") for r in references] for name, texts in systems.items()}
        self.missing = {name: sum(r.key not in texts for r in references) for name, texts in systems.items()}
        self.words = {name: self._edits(texts, word_edits) for name, texts in self.texts.items()}
        self.characters = {name: self._edits(texts, character_edits) for name, texts in self.texts.items()}

    def _edits(self, texts: Sequence[str], edits_of: Any) -> list[Edits]:
        return [edits_of(reference.text, text) for reference, text in zip(self.references, texts, strict=True)]

    def table(self, draws: int, seed: int) -> list[dict[str, Any]]:
        """A row for each condition, sorted, and a last row for all. A comparison needs a baseline and a student."""
        conditions = sorted({reference.condition for reference in self.references})
        groups = [(c, [i for i, r in enumerate(self.references) if r.condition == c]) for c in conditions]
        everything = ("all", list(range(len(self.references))))
        return [self._row(name, rows, draws, seed) for name, rows in [*groups, everything]]

    def speakers(self) -> list[dict[str, Any]]:
        """Words and each system's WER by speaker, sorted."""
        result, rows_of = [], defaultdict[str, list[int]](list)  # a voice without a name is a speaker of its own
        for i, reference in enumerate(self.references):
            rows_of[reference.speaker].append(i)
        for speaker, rows in sorted(rows_of.items()):
            sums = {name: sum((edits[i] for i in rows), Edits()) for name, edits in self.words.items()}
            words = next(iter(sums.values())).length
            rates = {f"wer_{name}": _number(edits.rate) for name, edits in sums.items()}
            result.append({"speaker": speaker, "utterances": len(rows), "words": words, **rates})
        return result

    def _row(self, name: str, rows: list[int], draws: int, seed: int) -> dict[str, Any]:
        speakers = [self.references[i].speaker for i in rows]
        bootstrap = Bootstrap(len(rows), speakers if len(set(speakers)) > 1 else None, draws, seed)
        words = {system: [edits[i] for i in rows] for system, edits in self.words.items()}
        row: dict[str, Any] = {"condition": name, "utterances": len(rows), "speakers": len(set(speakers))}
        row["words"] = sum(edits.length for edits in next(iter(words.values())))
        for system, edits in words.items():
            row |= _rate_columns(system, rate(edits, [self.characters[system][i] for i in rows], bootstrap))
        if words.keys() >= {BASELINE, STUDENT}:
            row |= _comparison_columns(compare(words[BASELINE], words[STUDENT], bootstrap))
        return row


def _rate_columns(system: str, rate: Rate) -> dict[str, Any]:
    return {
        f"wer_{system}": _number(rate.wer),
        f"wer_{system}_interval": [_number(value) for value in rate.interval],
        f"cer_{system}": _number(rate.cer),
        f"substitutions_{system}": rate.words.substitutions,
        f"deletions_{system}": rate.words.deletions,
        f"insertions_{system}": rate.words.insertions,
    }


def _comparison_columns(comparison: Comparison) -> dict[str, Any]:
    return {
        "werr": _number(comparison.werr),
        "werr_interval": [_number(value) for value in comparison.interval],
        "probability_of_improvement": _number(comparison.probability),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def to_markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """WERs and WERR in percent, with the 95 % interval of WERR and the probability of improvement.

    Without a comparison, each WER has its interval instead.
    """
    systems = [name.removeprefix("wer_") for name in table[0] if name.startswith("wer_") and "interval" not in name]
    paired = "werr" in table[0]
    heads = ["condition", "utterances", "words"]
    for system in systems:
        heads += [f"WER {system} %", *([] if paired else ["95 % interval"])]
    heads += ["WERR %", "95 % interval", "P(better)"] if paired else []
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in table:
        line = [str(row["condition"]) or "–", str(row["utterances"]), str(row["words"])]
        for system in systems:
            line += [_percent(row[f"wer_{system}"]), *([] if paired else [_span(row[f"wer_{system}_interval"])])]
        if paired:
            better = row["probability_of_improvement"]
            line += [_percent(row["werr"], 1), _span(row["werr_interval"]), "–" if better is None else f"{better:.3f}"]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _span(interval: Sequence[float | None]) -> str:
    low, high = interval
    return "–" if low is None else f"{_percent(low, 1)} … {_percent(high, 1)}"


def _percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"
