"""Tags of noises in transcripts, such as `[noise]` or `++breath++`: where they stand between the words of an utterance.

Texts have words alone, so that tags reach neither language models nor error rates. `import-features` keeps the lines
with tags beside the features, and a selection has the transcripts as written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.sets import TAGGED
from megahour.units.hmm import BOUNDARY, SILENCE

Tagged = Mapping[int, list[str]]
"""By utterance: its words with the tags between them."""


@dataclass(frozen=True)
class Noises:
    """The phone of each tag. Tags are found whatever their case; others are ignored."""

    phones: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The phones, sorted."""
        return tuple(sorted(set(self.phones.values())))

    @cached_property
    def by_tag(self) -> dict[str, str]:
        """The phone of each tag in lower case."""
        return {tag.casefold(): phone for tag, phone in self.phones.items()}

    @cached_property
    def _any(self) -> re.Pattern[str]:
        longest_first = sorted(self.phones, key=lambda tag: (-len(tag), tag))
        return re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)

    def tags_in(self, text: str) -> list[str]:
        """The tags in a stretch of transcript, in lower case.

        >>> Noises({"[noise]": "NSN"}).tags_in(" - [Noise] [applause]")
        ['[noise]']
        """
        return [tag.casefold() for tag in self._any.findall(text)] if self.phones else []

    def check(self, *, unknown: str) -> None:
        """Raises ConfigError: a phone has a reserved name or is that of unknown words, or a tag is empty."""
        wrong = [phone for phone in self.names if phone in ("", SILENCE, BOUNDARY, unknown) or len(phone.split()) != 1]
        if wrong or not all(map(str.strip, self.phones)):
            what = f"noises = {dict(self.phones)}: {wrong[0]!r} is no phone for noise" if wrong else "a tag is empty"
            remedy = "write noises: {'[noise]': NSN}, with phones of their own"
            raise ConfigError(what, where="senones", remedy=remedy)

    def tagged(self, features: Artifact, shard: int, selection: Artifact | None, beside: int | None) -> Tagged:
        """The tagged words of a features shard: as imported beside it, otherwise from the transcripts as written.

        beside: the matching shard of the selection; None if there is none.
        """
        if not self.phones:
            return {}
        receipt = features.receipt(shard)
        if receipt is not None and TAGGED in receipt.files:
            rows = features.read_table(shard, TAGGED).to_pylist()
            return {row["key"]: row["text"].split() for row in rows}
        if selection is None or beside is None:
            return {}
        columns = ["key", "raw", "text", "word_offset", "word_end"]
        return {row["key"]: self._written(row) for row in selection.read_table(beside, columns=columns).to_pylist()}

    def _written(self, row: Mapping[str, Any]) -> list[str]:
        """The words of a row of a selection, with the tags between their places in the raw text."""
        words: list[str] = row["text"].split()
        raw = row["raw"] or ""
        starts, ends = row["word_offset"] or [], row["word_end"] or []
        if not len(words) == len(starts) == len(ends):
            return words
        found: list[str] = []
        last = 0
        for word, start, end in zip(words, starts, ends, strict=True):
            found += [*self.tags_in(raw[last:start]), word]
            last = max(last, end)
        return found + self.tags_in(raw[last:])

    def placed(self, words: Sequence[str], tagged: Sequence[str] | None) -> list[str]:
        """`words` with the known tags of `tagged`; as they are if its words are others, as of another text.

        >>> Noises({"[noise]": "NSN"}).placed(["a", "b"], ["a", "[noise]", "(cough)", "b"])
        ['a', '[noise]', 'b']
        """
        placed: list[str] = []
        at = 0
        for word in tagged or ():
            if word.casefold() in self.by_tag:
                placed.append(word)
            elif at < len(words) and word == words[at]:
                placed.append(word)
                at += 1
        return placed if tagged and at == len(words) else list(words)
