"""Determines the speaker of each utterance, and the split of each speaker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megahour.corpus.text.speaker_labels import names_nobody
from megahour.corpus.transcripts.speaker_names import is_address, one_name
from megahour.cut.params import CutParams
from megahour.cut.tiers import SPLITS, split_of


class Speakers:
    """Speakers of one recording: its own, and the labels of its cues ("ANNA:").

    If a recording's speaker is known and its cues name at most one person, that speaker is used: the label is another
    spelling, or a mistake. If cues name several people, each label is a speaker; a label that is not a name ("Speaker
    1", "Q") is specific to this recording.

    recording: a row of *recordings*; cues: its rows of the table of cues.
    """

    def __init__(self, recording: dict[str, Any], cues: Iterable[dict[str, Any]]) -> None:
        self.recording = recording
        self.own: str = recording["speaker"]
        self._of_file = self.own.removesuffix(f"/{recording['channel']}")  # all channels of a file are in one split
        written = [str(cue.get("speaker") or "") for cue in cues]
        known = bool(self.own) and not is_address(self.own) and self.own != recording["source"]
        self._labels_count = len({one_name(label) for label in written if label}) > 1 or not known
        self.everyone = frozenset(self.of([label]) for label in written) or frozenset([self.own])

    def of(self, labels: Iterable[str]) -> str:
        """Speaker of an utterance whose cues have these `labels`: theirs if they agree on one, else the recording's."""
        spellings = {one_name(label): label for label in sorted(labels)}
        if not self._labels_count or len(spellings) != 1:
            return self.own
        folded, label = spellings.popitem()
        if folded in ("", one_name(self.own)):
            return self.own
        return f"{self.own}/{label}" if names_nobody(label) else label

    def split(self, p: CutParams, speaker: str) -> str:
        """The split of a speaker's utterances here: "" where another speaker of the recording is held out and this one
        is not, so that nothing of a recording is in two splits.
        """
        strictest = min((self._split(p, each) for each in self.everyone), key=SPLITS.index)
        split = self._split(p, speaker)
        return split if split == strictest else ""

    def _split(self, p: CutParams, speaker: str) -> str:
        """The split by the speaker's name; for unnamed speakers, who may be the recording's own, by the recording's."""
        is_named = speaker != self.own and not speaker.startswith(f"{self.own}/")
        return split_of(p, {**self.recording, "speaker": speaker if is_named else self._of_file})
