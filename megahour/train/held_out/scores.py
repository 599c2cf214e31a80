"""Scores held-out speech while a voice trains, with the functions of `score-speech`."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.batches.loader import Loader
from megahour.core.errors import BadRecord
from megahour.core.extras import needing
from megahour.learn.options import SpeechScoreOptions

LOG = logging.getLogger(__name__)
SCORES = ("pesq", "stoi", "mos")
Sound = NDArray[np.float32]
Text = tuple[str, str]  # and its language
Texts = Callable[[Collection[int]], Mapping[int, Text]]
"""Text and language of utterances by key."""
Pairs = Iterator[tuple[int, tuple[Sound, Sound]]]


def columns_of(options: SpeechScoreOptions) -> list[str]:
    """The columns of rows that are scored."""
    found = ["held_out_pesq", "held_out_stoi"] + ["held_out_mos"] * options.mos
    return found + ["held_out_words_misheard"] * bool(options.recogniser)


class SpeechScorer:
    """Scores speech, and keeps the training as it was: its random state, its threads, and its course after an error.

    alive: passes on what it is given, with a sign of life for each (`RunMeters.alive`).

    Raises ConfigError: the recogniser does not exist, or a package is missing, which is named with its extra.
    """

    def __init__(self, options: SpeechScoreOptions, texts: Texts, alive: Callable[[Pairs], Pairs] = iter) -> None:
        self._options, self._texts, self._alive, self._failed = options, texts, alive, set[str]()
        self._read: Mapping[int, Text] | None = None
        self._listen: Callable[[Sound, int], str] | None = None
        with needing("tts", install_as="tts"):
            import pesq  # type: ignore[import-untyped] # noqa: F401
            import pystoi  # type: ignore[import-untyped] # noqa: F401
        with undisturbed():
            if options.mos:
                with needing("mos", install_as="mos"):
                    import speechmos.dnsmos  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401
            if options.recogniser:
                with needing("transcribe", install_as="transcribe"):
                    from megahour.transcribe.intelligibility import listener

                    self._listen = listener(options.recogniser)

    def score(self, pairs: Mapping[int, tuple[Sound, Sound]], rate_hz: int) -> tuple[list[float], bytes]:
        """Means of `columns_of` (NaN without any value), and the utterances with their sound as Parquet.

        pairs: the recording and what the voice said (N,), by the key of the utterance; the same utterances each time.
        """
        if self._read is None:
            self._read = self._texts(pairs)
        rows = []
        for key, pair in self._alive(iter(pairs.items())):
            text, language = self._read.get(key, ("", ""))
            rows.append({"key": key, "text": text, **self._scores(*pair, rate_hz, text, language)})
        names = SCORES[: 3 if self._options.mos else 2]
        means = means_of([[row.get(name, np.nan) for name in names] for row in rows], len(names))
        if self._listen is not None:
            words, errors = (sum(row.get(name, 0) for row in rows) for name in ("words", "errors"))
            means.append(errors / words if words else np.nan)
        return means, _table(rows, pairs, rate_hz)

    def _scores(self, true: Sound, said: Sound, rate_hz: int, text: str, language: str) -> dict[str, Any]:
        """What is known of one utterance: a measure that fails is left out, with a warning the first time."""
        from megahour.features.perceived import dnsmos, pesq_and_stoi
        from megahour.transcribe.intelligibility import heard

        found = self._tried("PESQ and STOI", partial(pesq_and_stoi, true, rate_hz, said, rate_hz))
        if self._options.mos:
            found |= self._tried("DNSMOS", partial(dnsmos, said, rate_hz))
        if (listen := self._listen) is not None and text:
            found |= self._tried("the recogniser", lambda: heard(listen(said, rate_hz), text, language or "en"))
        return found

    def _tried(self, what: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            with undisturbed():
                return measure()
        except BadRecord:  # silent
            return {}
        except Exception as error:  # whatever a user's function raises: the training is worth more than a score
            if what not in self._failed:
                LOG.warning("%s failed on held-out speech, which has no such score: %r", what, error)
            self._failed.add(what)
            return {}


def means_of(rows: Sequence[Sequence[float]], columns: int) -> list[float]:
    """Means of the finite values of each column; NaN if there are none."""
    table = np.ma.masked_invalid(np.array(rows, np.float64).reshape(-1, columns))
    means: list[float] = np.ma.filled(table.mean(axis=0).astype(np.float64), np.nan).tolist()
    return means


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the random state of Python, numpy and torch, and torch's number of threads."""
    threads, of_python, of_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def texts_of(held_out: Loader, keys: Collection[int]) -> dict[int, tuple[str, str]]:
    """Text and language of utterances of *voice_data* by key; shards are read until all are found."""
    found: dict[int, tuple[str, str]] = {}
    for shelf in held_out.shelves:
        table = held_out.features.read_table(shelf.shard, ".arrow", ["key", "text", "language"])
        rows = zip(*(table[name].to_pylist() for name in ("key", "text", "language")), strict=True)
        found |= {key: (text, language) for key, text, language in rows if key in keys}
        if len(found) == len(keys):
            break
    return found


def _table(rows: Sequence[Mapping[str, Any]], pairs: Mapping[int, tuple[Sound, Sound]], rate_hz: int) -> bytes:
    """`HELD_OUT_SPEECH` as Parquet: what is known of each utterance, and both sounds as FLAC."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    import soundfile

    from megahour.core.schemas import HELD_OUT_SPEECH

    def flac(sound: Sound) -> bytes:
        soundfile.write(file := io.BytesIO(), sound, rate_hz, format="FLAC", subtype="PCM_16")
        return file.getvalue()

    said = [{**row, **dict(zip(("natural", "spoken"), map(flac, pairs[row["key"]]), strict=True))} for row in rows]
    pq.write_table(pa.Table.from_pylist(said, HELD_OUT_SPEECH), file := io.BytesIO(), compression="none")
    return file.getvalue()
