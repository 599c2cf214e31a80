"""Limits on a stage's losses: too many bad records, or none kept, end it with the reasons and a remedy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megahour.core.errors import NothingKept, TooManyBad
from megahour.core.receipts import Counts, Receipt
from megahour.core.store import Artifact

MOST_REASONS = 3
SHOWN = 300  # characters of an example
EARLY_CHECK = 200  # records after which an excessive bad share stops a stage early


@dataclass
class BadShare:
    """Fails a stage whose quarantine grows past the allowed share of the records that came in."""

    limit: float
    output: Artifact
    total: Counts = field(default_factory=Counts)

    def add(self, counts: Counts) -> None:
        self.total.add(counts)
        if self.total.came_in >= EARLY_CHECK:
            self.close()

    def close(self) -> None:
        bad, seen = self.total.bad, self.total.came_in
        if bad > self.limit * max(seen, bad):
            # `dropped` also counts good records that policy left out; quarantine does not.
            raise TooManyBad(
                f"{bad} of {seen} records are bad ({bad / max(seen, bad):.1%}, limit {self.limit:.1%}): "
                + _worst(self.output),
                where=self.output.url,
                remedy=f"see {self.output.path('quarantine')}; fix the input, or raise max_bad (--max-bad)",
            )


def _worst(output: Artifact) -> str:
    """The most frequent reasons of quarantined records, with an example of the first, over all committed shards."""
    counts, examples = Counter[str](), dict[str, str]()
    for path in output.matching("quarantine/*.jsonl"):
        for line in output.fs.cat_file(path).splitlines():
            bad = json.loads(line)
            counts[bad["reason"]] += 1
            examples.setdefault(bad["reason"], f"{bad['id']}: {bad['detail'] or 'no detail'}"[:SHOWN])
    worst = counts.most_common(MOST_REASONS)
    named = [f"{reason} {n}" for reason, n in worst]
    if worst:
        named[0] += f" (such as {examples[worst[0][0]]})"
    if rest := len(counts) - len(worst):
        named.append(f"{rest} other reason{'s' * (rest > 1)} {sum(counts.values()) - sum(n for _, n in worst)}")
    return ", ".join(named)


MOST = 0.5  # share of the input records; a larger loss for one reason gets a hint


def check_kept(stage: str, remedies: Mapping[str, str], receipts: Sequence[Receipt], output: Artifact) -> str:
    """A hint if more than half of the records were dropped for one reason, else "".

    remedies: which option keeps more records, by drop reason or its prefix; empty: no check.

    Raises
    ------
    NothingKept: the whole artifact has no records; a single empty shard is not an error.
    """
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
    if not remedies or not receipts:
        return ""
    reasons = sorted(counts.dropped.items(), key=lambda item: (-item[1], item[0]))
    if counts.kept:
        named = [(reason, _remedy(reason, remedies)) for reason, n in reasons if n > MOST * counts.came_in]
        return "; ".join(f"most records were dropped as {reason}: {remedy}" for reason, remedy in named if remedy)
    options = dict.fromkeys(_remedy(reason, remedies) for reason, _ in reasons)
    lines = [option for option in options if option]
    if counts.bad:
        lines.append(f"{counts.bad:,} bad records are explained in {output.path('quarantine')}")
    raise NothingKept(_loss(stage, counts, reasons, receipts), where=output.url, remedy="; ".join(lines))


def _loss(stage: str, counts: Counts, reasons: list[tuple[str, int]], receipts: Sequence[Receipt]) -> str:
    if not counts.came_in:
        return f"{stage} kept nothing: its input has no records"
    hours = sum(float(receipt.stats.get("audio_s", 0.0)) for receipt in receipts) / 3600
    audio = f" ({hours:,.2f} h of audio)" if hours >= 0.01 else ""
    lost = {
        reason: sum(float(receipt.stats.get(f"dropped_s_{reason}", 0.0)) for receipt in receipts) / 3600
        for reason, _ in reasons
    }
    listed = ", ".join(
        f"{reason} {n:,}" + (f" ({lost[reason]:,.2g} h)" if lost[reason] else "") for reason, n in reasons
    )
    return f"{stage} kept none of {counts.came_in:,} records{audio}: {listed}"


def _remedy(reason: str, remedies: Mapping[str, str]) -> str:
    return next((text for beginning, text in remedies.items() if reason.startswith(beginning)), "")
