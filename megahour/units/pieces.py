"""Word pieces (Sennrich et al., 2016; Kudo, 2018) from sentencepiece. Token 0 is the blank."""

from __future__ import annotations

import io
from collections.abc import Iterable

import sentencepiece

from megahour.core.errors import StageError, StoreError
from megahour.units.params import TokensParams
from megahour.units.tokens import BLANK, BLANKS, printable_name

MAX_BYTES = 16 << 20


class Pieces:
    """Encodes texts in the pieces of a sentencepiece model.

    The model's token 0 must be its unknown token or a blank; here it is the blank. A text that needs the unknown token
    is not `spellable`. Sentence markers are never used.

    Raises
    ------
    StoreError: the bytes are no sentencepiece model, or its token 0 is another token.
    """

    def __init__(self, model: bytes, *, where: str) -> None:
        if len(model) > MAX_BYTES:
            raise StoreError(f"{len(model)} bytes of pieces, at most {MAX_BYTES}", where=where, remedy=_AGAIN)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise StoreError(f"not a sentencepiece model: {error}", where=where, remedy=_AGAIN) from error
        self._unknown = self._processor.unk_id()
        if self._unknown != 0 and (first := self._processor.id_to_piece(0)) not in BLANKS:
            remedy = "train it with unk_id=0, or with <blk> as its first symbol, or use stage `tokens`"
            raise StoreError(f"token 0 must be the unknown one or a blank, not {first!r}", where=where, remedy=remedy)
        size = self._processor.get_piece_size()
        self.tokens = (
            BLANK,
            *(printable_name(self._processor.id_to_piece(number), number) for number in range(1, size)),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._processor.encode(text))

    def spellable(self, text: str) -> bool:
        """Whether a text is not empty and all its tokens are known."""
        return bool(text) and not {0, self._unknown} & set(self.encode(text))


_AGAIN = "the file is damaged or something else: run `megahour verify`, then make it again"


def learn(p: TokensParams, texts: Iterable[str], *, where: str) -> bytes:
    """Train a sentencepiece model on `texts`. Equal texts give the same bytes.

    Raises StageError: there is no text, or it has more distinct characters than `size` allows.
    """
    made = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=made,
            vocab_size=p.size,
            model_type=p.method,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1][-300:]
        remedy = "check `sets`, and give `size` room for every character of the texts"
        raise StageError(f"sentencepiece: {reason}", where=where, remedy=remedy) from error
    return made.getvalue()
