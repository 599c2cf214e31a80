"""Scores the tags that a model assigns to utterances, such as the language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.store import Artifact
from megahour.score.references import Reference


def tag_scores(
    references: Sequence[Reference], selection: Artifact | None, systems: Mapping[str, Artifact]
) -> dict[str, Any]:
    """By system: `column`, `utterances` with a known tag, `right` ones, `accuracy`, and `heard`: [known tag, assigned
    tag, count].

    Systems without tags, and utterances whose tag neither the references nor the `selection` know, are left out. An
    utterance that was not decoded counts as assigned "".
    """
    scores = {}
    for name, hypotheses in systems.items():
        column = hypotheses.summary.get("tag", "")
        known = _known(references, selection, column)
        assigned = _column(hypotheses, "tag") if known else {}
        counts = Counter((known[key], assigned.get(key) or "") for r in references if known.get(key := r.key))
        if utterances := counts.total():
            right = sum(n for (tag, other), n in counts.items() if tag == other)
            scores[name] = {
                "column": column,
                "utterances": utterances,
                "right": right,
                "accuracy": round(right / utterances, 6),
                "heard": [[*pair, n] for pair, n in sorted(counts.items())],
            }
    return scores


def _known(references: Sequence[Reference], selection: Artifact | None, column: str) -> dict[int, str]:
    if column in ("speaker", "condition"):
        return {each.key: getattr(each, column) for each in references}
    return {} if selection is None or not column else _column(selection, column)


def _column(artifact: Artifact, name: str) -> dict[int, str]:
    """Values by key, skipping shards without the column."""
    values: dict[int, str] = {}
    for receipt in artifact.each_receipt():
        table = artifact.read_table(receipt.shard, columns=["key", name])
        if name in table.column_names:
            values.update(zip(table["key"].to_pylist(), table[name].to_pylist(), strict=True))
    return values
