"""Arrow schemas of the tables that stages hand to each other (docs/architecture.md explains the columns)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from megahour.core.errors import BadRecord

_COLUMNS = {
    pa.int64(): "key recording offset size samples start_samples end_samples created_s duplicate_of count",
    pa.int32(): "rate_hz channel cue transcript word sentence shard frames",
    pa.float64(): "seconds scale frame_s",
    pa.float32(): "confidence loss text_language_probability cer edge_cer wildcard_share snr_db clipped_share score "
    "similarity tag_probability",
    pa.bool_(): "kept bad finished",
    pa.string(): "name speaker language licence attribution source condition text_language raw text reason detail "
    "split set heard tier model kind tag",
    pa.list_(pa.int64()): "token_start_samples word_start_samples word_end_samples",
    pa.list_(pa.int32()): "offsets ends word_offset word_end durations frame target labels",
    pa.list_(pa.int16()): "senones phones sound",
    pa.list_(pa.float32()): "token_confidence word_confidence pitch energy graph acoustic",
    pa.list_(pa.string()): "words tokens",
    pa.large_list(pa.float16()): "features logits",
    pa.large_list(pa.float64()): "mean",
    pa.large_list(pa.uint16()): "indices",
}
"""Columns by their type, which is the same in all tables but for those that `_table` gets others for."""
_TYPES = {name: kind for kind, names in _COLUMNS.items() for name in names.split()}


def _table(names: str, **others: pa.DataType) -> pa.Schema:
    return pa.schema([(name, others.get(name, _TYPES.get(name))) for name in names.split()])


RECORDINGS = _table(
    "key name offset size samples rate_hz channel speaker language licence attribution source condition created_s "
    "text_language text_language_probability"
)
CUES = _table("key cue start_samples end_samples raw text offsets ends speaker transcript")

BY_RECOGNISER = -1
"""Number, in `transcript`, of what a recogniser wrote; the candidates that people gave count from 0."""

TRUTH = _table("name word text start_samples end_samples sentence")

ALIGNED_WORDS = _table(
    "key cue word text start_samples end_samples confidence token_start_samples token_confidence",
)
ALIGNED_SEGMENTS = _table("key cue kept reason confidence start_samples end_samples loss")
HEARD = _table("key tokens start_samples", start_samples=pa.list_(pa.int64()))

UTTERANCES = _table(
    "key recording offset size start_samples end_samples samples rate_hz speaker language licence attribution "
    "condition created_s raw text words word_start_samples word_end_samples word_confidence confidence split name "
    "channel source word_offset word_end loss heard cer edge_cer wildcard_share snr_db clipped_share tier transcript"
)
DROPPED = _table("recording name cue start_samples end_samples text reason detail")

LEFT_OUT_S = "left_out_s."  # before a reason: seconds that a shard of a selection lacks for it, in its statistics

LEFT_OUT = _table("name source reason detail bad licence seconds")
NOT_READ = _table("source kind")
DUPLICATES = _table("key duplicate_of kind similarity")
SELECTION = pa.schema([*UTTERANCES, *_table("set shard")])

FEATURES = _table("key speaker frames text set condition features")
TAGGED_TEXTS = _table("key text")
"""Beside features: transcripts with the tags of noises, which `text` of the features lacks."""
MEANS = _table("key shard offset size samples rate_hz count mean")
SENONE_ALIGNMENTS = _table("key frames senones")

VOICE_DATA = _table("key speaker frames text set condition language phones durations pitch energy features")
"""As features, whose mels are those of `features.mel_spectrum`, with a value a phone in the four lists: its number
among `symbols` of the summary, frames, mean logarithm of the pitch in Hz, and mean over frames and mels."""

VOICE_SOUND = _table("key sound")
"""The samples from the middle of an utterance's first frame to that of its last."""

HELD_OUT_SPEECH = _table(
    "key text heard words errors pesq stoi mos natural spoken",
    **dict.fromkeys(("words", "errors"), pa.int32()),
    **dict.fromkeys(("pesq", "stoi", "mos"), pa.float32()),
    **dict.fromkeys(("natural", "spoken"), pa.binary()),
)
"""Of `train` with `score_speech`: what the voice said of held-out texts, beside the recording through the same
vocoder, as FLAC. A score is null where it is not known."""

TARGETS = _table("key offset frames indices logits", offset=pa.int8())

HYPOTHESES = _table("key model text score frames")
CONFIDENCE = pa.field("confidence", pa.float32())
"""A further column of hypotheses that were asked for it; from 0 to 1, null where it is not known."""

TAG = list(_table("tag tag_probability"))
"""Further columns of hypotheses, of a model that tells tags; null for an utterance without a frame."""

LATTICES = _table(
    "key scale frame_s finished frame source target word graph acoustic labels",
    source=pa.list_(pa.int32()),
    word=pa.list_(pa.string()),
)
"""A row an utterance: a value of `frame` a state, of `source` to `acoustic` an arc; see `lattices.lattice.Lattice`."""

PSEUDO_LABELS = _table("key text confidence model")


def check_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Raise BadRecord ``unwritable-record`` for a value that the table cannot store, such as a number beyond its type.

    Without this check, writing the shard's table would fail, end the stage and not name the record.

    >>> check_rows([{"n": 1 << 40}], pa.schema([("n", pa.int32())]))
    Traceback (most recent call last):
    megahour.core.errors.BadRecord: unwritable-record: n: Value 1099511627776 too large to fit in C integer type
    """
    for field in schema:
        try:
            pa.array([row.get(field.name) for row in rows], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise BadRecord("unwritable-record", f"{field.name}: {str(error)[:200]}") from error
