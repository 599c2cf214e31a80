"""Arrow schemas of the tables that stages hand to each other (docs/architecture.md explains the columns)."""

from __future__ import annotations

import pyarrow as pa

RECORDINGS = pa.schema(
    [
        ("key", pa.int64()),
        ("name", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("samples", pa.int64()),
        ("rate_hz", pa.int32()),
        ("channel", pa.int32()),
        ("speaker", pa.string()),
        ("language", pa.string()),
        ("licence", pa.string()),
        ("attribution", pa.string()),
        ("source", pa.string()),
        ("condition", pa.string()),
        ("created_s", pa.int64()),
        ("text_language", pa.string()),
        ("text_language_probability", pa.float32()),
    ]
)

CUES = pa.schema(
    [
        ("key", pa.int64()),
        ("cue", pa.int32()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("raw", pa.string()),
        ("text", pa.string()),
        ("offsets", pa.list_(pa.int32())),
        ("ends", pa.list_(pa.int32())),
        ("speaker", pa.string()),
        ("transcript", pa.int32()),
    ]
)

BY_RECOGNISER = -1
"""Number, in `transcript`, of what a recogniser wrote; the candidates that people gave count from 0."""

TRUTH = pa.schema(
    [
        ("name", pa.string()),
        ("word", pa.int32()),
        ("text", pa.string()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("sentence", pa.int32()),
    ]
)

ALIGNED_WORDS = pa.schema(
    [
        ("key", pa.int64()),
        ("cue", pa.int32()),
        ("word", pa.int32()),
        ("text", pa.string()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("confidence", pa.float32()),
        ("token_start_samples", pa.list_(pa.int64())),
        ("token_confidence", pa.list_(pa.float32())),
    ]
)

ALIGNED_SEGMENTS = pa.schema(
    [
        ("key", pa.int64()),
        ("cue", pa.int32()),
        ("kept", pa.bool_()),
        ("reason", pa.string()),
        ("confidence", pa.float32()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("loss", pa.float32()),
    ]
)

HEARD = pa.schema([("key", pa.int64()), ("tokens", pa.list_(pa.string())), ("start_samples", pa.list_(pa.int64()))])

UTTERANCES = pa.schema(
    [
        ("key", pa.int64()),
        ("recording", pa.int64()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("samples", pa.int64()),
        ("rate_hz", pa.int32()),
        ("speaker", pa.string()),
        ("language", pa.string()),
        ("licence", pa.string()),
        ("attribution", pa.string()),
        ("condition", pa.string()),
        ("created_s", pa.int64()),
        ("raw", pa.string()),
        ("text", pa.string()),
        ("words", pa.list_(pa.string())),
        ("word_start_samples", pa.list_(pa.int64())),
        ("word_end_samples", pa.list_(pa.int64())),
        ("word_confidence", pa.list_(pa.float32())),
        ("confidence", pa.float32()),
        ("split", pa.string()),
        ("name", pa.string()),
        ("channel", pa.int32()),
        ("source", pa.string()),
        ("word_offset", pa.list_(pa.int32())),
        ("word_end", pa.list_(pa.int32())),
        ("loss", pa.float32()),
        ("heard", pa.string()),
        ("cer", pa.float32()),
        ("edge_cer", pa.float32()),
        ("wildcard_share", pa.float32()),
        ("snr_db", pa.float32()),
        ("clipped_share", pa.float32()),
        ("tier", pa.string()),
        ("transcript", pa.int32()),
    ]
)

DROPPED = pa.schema(
    [
        ("recording", pa.int64()),
        ("name", pa.string()),
        ("cue", pa.int32()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
        ("text", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)

LEFT_OUT_S = "left_out_s."  # before a reason: seconds that a shard of a selection lacks for it, in its statistics

LEFT_OUT = pa.schema(
    [
        ("name", pa.string()),
        ("source", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("bad", pa.bool_()),
        ("licence", pa.string()),
        ("seconds", pa.float64()),
    ]
)

DUPLICATES = pa.schema(
    [("key", pa.int64()), ("duplicate_of", pa.int64()), ("kind", pa.string()), ("similarity", pa.float32())]
)

SELECTION = pa.schema([*UTTERANCES, pa.field("set", pa.string()), pa.field("shard", pa.int32())])

FEATURES = pa.schema(
    [
        ("key", pa.int64()),
        ("speaker", pa.string()),
        ("frames", pa.int32()),
        ("text", pa.string()),
        ("set", pa.string()),
        ("condition", pa.string()),
        ("features", pa.large_list(pa.float16())),
    ]
)

MEANS = pa.schema(
    [
        ("key", pa.int64()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("samples", pa.int64()),
        ("rate_hz", pa.int32()),
        ("count", pa.int64()),
        ("mean", pa.large_list(pa.float64())),
    ]
)

SENONE_ALIGNMENTS = pa.schema([("key", pa.int64()), ("frames", pa.int32()), ("senones", pa.list_(pa.int16()))])

VOICE_DATA = pa.schema(
    [
        *list(FEATURES)[:-1],
        ("language", pa.string()),
        ("phones", pa.list_(pa.int16())),
        ("durations", pa.list_(pa.int32())),
        ("pitch", pa.list_(pa.float32())),
        ("energy", pa.list_(pa.float32())),
        FEATURES.field("features"),
    ]
)
"""As features, whose mels are those of `features.mel_spectrum`, with a value a phone in the four lists: its number
among `symbols` of the summary, frames, mean logarithm of the pitch in Hz, and mean over frames and mels."""

VOICE_SOUND = pa.schema([("key", pa.int64()), ("sound", pa.list_(pa.int16()))])
"""The samples from the middle of an utterance's first frame to that of its last."""

TARGETS = pa.schema(
    [
        ("key", pa.int64()),
        ("offset", pa.int8()),
        ("frames", pa.int32()),
        ("indices", pa.large_list(pa.uint16())),
        ("logits", pa.large_list(pa.float16())),
    ]
)

HYPOTHESES = pa.schema(
    [
        ("key", pa.int64()),
        ("model", pa.string()),
        ("text", pa.string()),
        ("score", pa.float32()),
        ("frames", pa.int32()),
    ]
)
CONFIDENCE = pa.field("confidence", pa.float32())
"""A further column of hypotheses that were asked for it; from 0 to 1, null where it is not known."""

TAG = [pa.field("tag", pa.string()), pa.field("tag_probability", pa.float32())]
"""Further columns of hypotheses, of a model that tells tags; null for an utterance without a frame."""

LATTICES = pa.schema(
    [
        ("key", pa.int64()),
        ("scale", pa.float64()),
        ("frame_s", pa.float64()),
        ("finished", pa.bool_()),
        ("frame", pa.list_(pa.int32())),
        ("source", pa.list_(pa.int32())),
        ("target", pa.list_(pa.int32())),
        ("word", pa.list_(pa.string())),
        ("graph", pa.list_(pa.float32())),
        ("acoustic", pa.list_(pa.float32())),
        ("labels", pa.list_(pa.int32())),
    ]
)
"""A row an utterance: a value of `frame` a state, of `source` to `acoustic` an arc; see `lattices.lattice.Lattice`."""

PSEUDO_LABELS = pa.schema([("key", pa.int64()), ("text", pa.string()), CONFIDENCE, ("model", pa.string())])
