"""Imports published Sphinx cepstra and transcriptions, with the checks and the normalisation of stage `features`.

A cepstra file is an int32 count of floats, then the float32 values, frame after frame, in the byte order of the machine
that wrote it. The file does not record its byte order; the reader takes the one in which the count matches the size.
A transcription file has lines `WORD WORD (utterance)`, with fillers such as `<s>`, `<sil>` and `++noise++`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import key_of
from megahour.core.schemas import TAGGED_TEXTS
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.sources import list_source, open_source
from megahour.corpus.transcripts.speaker_names import one_name
from megahour.features.cepstra_mels import mel_matrix
from megahour.features.extract import check_features, features_table, write_statistics
from megahour.features.normalise import CausalMean, Moments, without_mean
from megahour.features.params import ImportFeaturesParams, Simulated
from megahour.features.sets import TAGGED
from megahour.features.simulated import simulated

_LINE = re.compile(r"^(.*?)\(([^()\s]+)\)\s*$")
_FILLER = re.compile(r"^(<[^>]*>|\+\+.*\+\+|\[[^\]]*\])$")
_VARIANT = re.compile(r"\(\d+\)$")
FRAME_S = 0.01


class CepstraUtterance(NamedTuple):
    """A line of a transcription file, with the path of its cepstra or the `reason` why they cannot be read."""

    name: str
    text: str
    path: str
    speaker: str
    reason: str


def read_cepstra(data: bytes, dims: int) -> NDArray[np.float32]:
    """Cepstra (T, dims) from the bytes of one file.

    Raises
    ------
    BadRecord: `truncated-cepstra` when the count matches the size in neither byte order, `wrong-dims` when the count is
        not a multiple of `dims`.

    >>> read_cepstra(np.array([2], "<i4").tobytes() + np.array([0.5, 1], "<f4").tobytes(), dims=2)
    array([[0.5, 1. ]], dtype=float32)
    """
    floats, remainder = divmod(len(data) - 4, 4)
    counts = {order: int(np.frombuffer(data[:4], f"{order}i4")[0]) for order in "<>"} if len(data) >= 4 else {}
    order = next((order for order, count in counts.items() if count == floats), None)
    if order is None or remainder:
        raise BadRecord("truncated-cepstra", f"{len(data)} bytes, count {' or '.join(map(str, counts.values()))}")
    if floats % dims:
        raise BadRecord("wrong-dims", f"{floats} floats are not whole frames of {dims}")
    return np.frombuffer(data, f"{order}f4", offset=4).astype(np.float32).reshape(-1, dims)


def clean_transcript(text: str) -> str:
    """Words in lower case, without fillers and pronunciation numbers.

    >>> clean_transcript("<s> READ(2) IT ++noise++ </s>")
    'read it'
    """
    return tagged_transcript(" ".join(word for word in text.split() if not _FILLER.match(word)))


def tagged_transcript(text: str) -> str:
    """Words and fillers in lower case, without pronunciation numbers.

    >>> tagged_transcript("READ(2) IT ++NOISE++")
    'read it ++noise++'
    """
    return " ".join(_VARIANT.sub("", word) for word in text.split()).lower()


def parse_transcription(
    lines: Iterable[str], where: str, clean: Callable[[str], str] = clean_transcript
) -> list[tuple[str, str]]:
    """(utterance, clean text) of each line.

    Raises
    ------
    ConfigError: a line names no utterance, or an utterance is listed twice.

    >>> parse_transcription(["<s> GO (speaker1/a)"], where="train.transcription")
    [('speaker1/a', 'go')]
    """
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise ConfigError(
                f"{line.strip()!r} names no utterance", where=f"{where}:{number}", remedy="`WORDS (name)`"
            )
        if match[2] in texts:
            raise ConfigError(f"utterance {match[2]} is listed twice", where=f"{where}:{number}")
        texts[match[2]] = clean(match[1])
    return list(texts.items())


def plan_import(p: ImportFeaturesParams) -> list[tuple[str, list[CepstraUtterance]]]:
    """(set, utterances) of each shard.

    A shard holds whole speakers, in a seeded order; a speaker's utterances keep the order of the list.

    Raises
    ------
    ConfigError: the source is empty, the speaker pattern does not match a path, a speaker is in both lists, or with
        `folds` an utterance is, or the fold has no speaker.
    """
    paths: dict[str, list[str]] = {}
    for path in list_source(p.source).sizes:
        if path.endswith(p.extension):
            paths.setdefault(path[: -len(p.extension)].rpartition("/")[2], []).append(path)
    listed = _listed(p.test, paths, p) if p.test else [], _listed(p.train, paths, p)
    test, train = (_by_speaker(p, part) for part in listed)
    if p.folds:
        _check_lists(p, *listed)
        train = _by_speaker(p, [utterance for part in listed for utterance in part])
        test = {speaker: train.pop(speaker) for speaker in list(filter(None, train))[p.fold :: p.folds]}
        if not test:
            what = f"fold {p.fold} of {p.folds} has no speaker, of {len([*filter(None, train)])} in all"
            raise ConfigError(what, where=p.train, remedy="use fewer `folds`")
    held_out = {one_name(speaker) for speaker in test if speaker}
    if common := sorted(speaker for speaker in train if one_name(speaker) in held_out):
        raise ConfigError(
            f"speakers {common} are in the training and in the test list", where=p.train, remedy="take them out of one"
        )
    speakers = [speaker for speaker in train if speaker]
    if not speakers and not any(test):
        raise ConfigError(f"none of the listed {p.extension} files exists", where=p.source, remedy="check `extension`")
    tune, count = (round(share * len(speakers)) or int(share > 0) for share in (p.tune, p.labelled))
    shards = _shards("test", list(test), test, p.shards)
    shards += _shards("tune", speakers[:tune], train, p.shards)
    shards += _shards("labelled", speakers[tune : tune + count], train, p.shards)
    shards += _shards("unlabelled", speakers[tune + count :], train, p.shards)
    if "" in train:
        shards[-1][1].extend(train[""])  # no file, so no speaker: goes to quarantine there
    return _of_sets(shards, p)


def _of_sets(
    shards: list[tuple[str, list[CepstraUtterance]]], p: ImportFeaturesParams
) -> list[tuple[str, list[CepstraUtterance]]]:
    present = {name for name, _ in shards}
    if missing := sorted(set(p.sets) - present):
        what = f"no speaker is in sets {missing}; the sets are {sorted(present)}"
        raise ConfigError(what, where="import-features", remedy="set `sets` to some of them, or leave it empty")
    return [(name, shard) for name, shard in shards if not p.sets or name in p.sets]


def _check_lists(p: ImportFeaturesParams, *lists: Sequence[CepstraUtterance]) -> None:
    counts = Counter(utterance.name for each in lists for utterance in each)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        what = f"{len(twice)} utterances, such as {twice[0]}, are in the training and in the test list"
        raise ConfigError(what, where=p.train, remedy="take them out of one")


def _listed(url: str, paths: dict[str, list[str]], p: ImportFeaturesParams) -> list[CepstraUtterance]:
    import fsspec

    with fsspec.open(url, "r", encoding="utf-8") as file:
        try:
            lines = parse_transcription(file, url, tagged_transcript if p.fillers else clean_transcript)
        except UnicodeDecodeError as error:
            what = f"not UTF-8: byte {error.object[error.start]:#04x}"
            raise ConfigError(what, where=url, remedy="iconv -f latin1 -t utf-8 FILE, with its encoding") from None
    utterances = []
    for name, text in lines:
        same = paths.get(name.rpartition("/")[2], [])
        matches = [path for path in same if f"/{path}".endswith(f"/{name}{p.extension}")]
        reason = "" if len(matches) == 1 else "ambiguous-name" if matches else "missing-file"
        path = matches[0] if len(matches) == 1 else ""
        utterances.append(CepstraUtterance(name, text, path, _speaker(p, path) if path else "", reason))
    return utterances


def _speaker(p: ImportFeaturesParams, path: str) -> str:
    match = re.search(p.speaker_pattern, path)
    if match is None:
        raise ConfigError(f"speaker_pattern {p.speaker_pattern!r} does not match {path!r}", where=p.source)
    return match[1]


def _by_speaker(p: ImportFeaturesParams, utterances: Sequence[CepstraUtterance]) -> dict[str, list[CepstraUtterance]]:
    """Utterances by speaker, in a seeded order. Spellings of one name are merged under the first."""
    grouped: dict[str, list[CepstraUtterance]] = {}
    spelling: dict[str, str] = {}
    for utterance in utterances:
        speaker = spelling.setdefault(one_name(utterance.speaker), utterance.speaker)
        grouped.setdefault(speaker, []).append(utterance._replace(speaker=speaker))
    return {speaker: grouped[speaker] for speaker in sorted(grouped, key=lambda s: (key_of("speaker", p.seed, s), s))}


def _shards(
    name: str, speakers: Sequence[str], utterances: dict[str, list[CepstraUtterance]], shards: int
) -> list[tuple[str, list[CepstraUtterance]]]:
    count = min(shards, len(speakers))
    bounds = [i * len(speakers) // count for i in range(count + 1)] if count else []
    return [
        (name, [utterance for speaker in speakers[first:last] for utterance in utterances[speaker]])
        for first, last in pairwise(bounds)
    ]


def import_shard(p: ImportFeaturesParams, name: str, utterances: Iterable[CepstraUtterance], out: ShardWriter) -> None:
    """Read, check, normalise and write one shard of the set `name`, each utterance in each condition."""
    fs, root, _ = open_source(p.source)
    prior = np.array(p.prior or [0.0] * p.dims, np.float32)
    conditions: list[Simulated | None] = list(p.simulate) or [None]
    speaker, means = None, [CausalMean(prior) for _ in conditions]
    moments = Moments.zero(p.mels or p.dims)
    to_mels = mel_matrix(p.dims, p.mels) if p.mels else None
    rows: list[dict[str, Any]] = []
    arrays: list[NDArray[np.float16]] = []
    tagged: list[str] = []
    for utterance in utterances:
        if utterance.speaker != speaker:
            speaker, means = utterance.speaker, [CausalMean(prior) for _ in conditions]
        try:
            if utterance.reason:
                raise BadRecord(utterance.reason, f"{p.extension} file of {utterance.name}")
            with fs.open(f"{root}/{utterance.path}", "rb") as file:
                cepstra = read_cepstra(file.read(), p.dims)
            check_features(cepstra, utterance.name)
        except BadRecord as bad:
            out.came_in()
            out.quarantine(utterance.name, bad.reason, bad.detail, source=utterance.path or p.source)
            continue
        for condition, mean in zip(conditions, means, strict=True):
            row = _row(p, name, utterance, condition)
            recorded = cepstra if condition is None else simulated(condition, cepstra, row["key"], FRAME_S)
            features = mean.apply(recorded) if p.mean == "causal" else without_mean(recorded)
            if to_mels is not None:
                features = features @ to_mels
            if p.range_db:
                features = without_mean(features, None, p.range_db)
            moments.add(features)
            arrays.append(features.astype(np.float16))
            rows.append({**row, "frames": len(features)})
            tagged.append(utterance.text)
        out.kept_all(len(conditions))
    out.table(features_table(rows, arrays), ".arrow")
    if p.fillers:
        out.table(pa.table([[row["key"] for row in rows], tagged], TAGGED_TEXTS), TAGGED)
    write_statistics(out, moments, moments.frames * FRAME_S)
    out.tags["set"] = name


def utterance_key(corpus: str, name: str, simulate: str | None = None) -> int:
    """The key of an utterance, in its own or in a simulated condition."""
    key = key_of("cepstra", corpus, name)
    return key if simulate is None else key_of("simulated", simulate, key)


def _row(p: ImportFeaturesParams, name: str, utterance: CepstraUtterance, simulate: str | None) -> dict[str, Any]:
    """The columns of an utterance, in its own or in a simulated condition, but for its frames."""
    return {
        "key": utterance_key(p.corpus, utterance.name, simulate),
        "speaker": utterance.speaker,
        "text": clean_transcript(utterance.text) if p.fillers else utterance.text,
        "set": name,
        "condition": p.condition if simulate is None else f"{simulate} (simulated)",
    }
