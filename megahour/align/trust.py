"""Which cues of an aligned document are not to be believed, and why."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.align.confidence import Aligned, inner_frames, word_frames
from megahour.align.document import Document

UNSPOKEN, NO_ANCHOR, HIGH_LOSS, ENDLESS_WORD = "unspoken", "no-anchor", "high-loss", "endless-word"


def refusals(
    aligned: Aligned, document: Document, *, max_loss_nats: float, longest_word_frames: int
) -> NDArray[np.str_]:
    """(J,) why each cue is refused, "" where it is not.

    `unspoken`: the path leaves it out. `no-anchor`: it is in a stretch too large to be aligned without an anchor.
    `high-loss`: more nats per token than `max_loss_nats`. `endless-word`: one of its words lasts longer than
    `longest_word_frames`, not counting a first or a last token that is far from the others, which `edges` brings back.
    """
    endless = np.zeros(len(document.cues), bool)
    lasting = word_lengths(aligned, document)
    of_word = np.searchsorted(document.cues, document.word_cue)
    endless[of_word[lasting > longest_word_frames]] = True
    with np.errstate(invalid="ignore"):  # the loss of a cue that is not spoken is NaN
        costly = aligned.cue_loss > max_loss_nats
    return np.select(
        [aligned.refused, ~aligned.spoken, endless, costly], [NO_ANCHOR, UNSPOKEN, ENDLESS_WORD, HIGH_LOSS], ""
    )


def word_lengths(aligned: Aligned, document: Document) -> NDArray[np.int32]:
    """(W,) frames from each word's second token to its last but one, from end to end if it has up to three; 0 unspoken.

    Without the outer tokens, because one that the model missed may lie anywhere in the pause beside the word.
    """
    start, end = word_frames(aligned.path, document)
    second, inner = inner_frames(aligned.path, document)
    tokens = np.bincount(document.token_word[document.token_word >= 0], minlength=len(document.words))
    return np.where(start < 0, 0, np.where(tokens > 3, inner - second, end - start)).astype(np.int32)
