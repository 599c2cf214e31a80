"""How much of what comes in may be bad: a stage whose quarantine grows past its limit fails loudly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from megahour.core.errors import TooManyBad
from megahour.core.store import Artifact, Counts

EARLY_CHECK = 200  # records after which too large a bad share stops a stage before its end


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
            # `dropped` also counts good records that policy left out: quarantine tells them apart.
            worst = _bad_reasons(self.output).most_common(3)
            raise TooManyBad(
                f"{bad} of {seen} records are bad ({bad / max(seen, bad):.1%}, limit {self.limit:.1%}): "
                + ", ".join(f"{reason} {n}" for reason, n in worst),
                where=self.output.url,
                remedy=f"look at {self.output.path('quarantine')}, mend the input, or raise max_bad",
            )


def _bad_reasons(output: Artifact) -> Counter[str]:
    """Reasons of the quarantined records of all committed shards, of an unfinished artifact too."""
    lines = (
        line
        for path in sorted(output.fs.glob(output.path("quarantine/*.jsonl")))
        for line in output.fs.cat_file(path).splitlines()
    )
    return Counter(str(json.loads(line)["reason"]) for line in lines)
