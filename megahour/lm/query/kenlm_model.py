"""Scores by KenLM's binary models, through the kenlm package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.core.extras import install
from megahour.lm.query.batch import SentenceScores, spelled
from megahour.lm.text.tokenise import BOUNDARY, UNKNOWN

KNOWN = -1  # replaces word numbers, which the package does not return
UNSEEN = b"<unk>"
_REMEDY = "copy it whole, or write it again: megahour lm convert MODEL.arpa OUT --to kenlm-probing"
_SPACES = re.compile(rb"[\v\f]")


class KenlmModel:
    """A model in KenLM's binary format. Raises MegahourError: no kenlm package, or it cannot read the file."""

    def __init__(self, path: str | Path) -> None:
        try:
            import kenlm
        except ImportError:
            raise MegahourError(
                "KenLM's binary format needs the kenlm package",
                where=str(path),
                remedy=f"{install('kenlm')}, or use the ARPA file that it was made from",
            ) from None
        try:
            self._model = kenlm.Model(str(path))
        except (OSError, RuntimeError) as error:
            raise MegahourError(f"KenLM cannot read it: {error}", where=str(path), remedy=_REMEDY) from None
        self.order: int = self._model.order

    def score_lines(self, lines: bytes) -> SentenceScores:
        """Like `batch.score_lines`. Words are separated as for all other formats, not as the package does."""
        sentences = lines.removesuffix(b"\n").split(b"\n") if lines else []
        result = [list(self._model.full_scores(_split(sentence))) for sentence in sentences]
        flat = [word for sentence in result for word in sentence]
        logp = np.array([word[0] for word in flat], np.float32)
        unknown = np.array([word[2] for word in flat], np.bool_)
        lengths = np.array([len(sentence) for sentence in result], np.int64)
        ends = np.cumsum(lengths)
        tokens = np.where(unknown, UNKNOWN, KNOWN).astype(np.int32)
        tokens[ends - 1] = BOUNDARY
        sums = [_sums(values, ends - lengths) for values in (logp, unknown, np.where(unknown, logp, 0.0))]
        return SentenceScores(
            sums[0],
            (lengths - 1).astype(np.int32),
            sums[1].astype(np.int32),
            sums[2],
            tokens,
            logp,
            np.array([word[1] for word in flat], np.int8),
        )


def _split(line: bytes) -> bytes:
    """A line that the package splits into the words of all other formats. It takes VT and FF for spaces, so words that
    contain them become unknown."""
    return b" ".join(UNSEEN if _SPACES.search(word) else word for word in spelled(line))


def _sums(values: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.add.reduceat(values.astype(np.float64), starts) if len(starts) else np.zeros(0)
