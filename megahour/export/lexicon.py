"""Collect the words of a voice's lexicon: sherpa-onnx skips words that the lexicon lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.store import Artifact
from megahour.export.origin import ModelOrigin
from megahour.tts.durations import PAUSE
from megahour.tts.script import Reader, SpokenPiece

NUMBERS = 1000  # 0 to 999 are also added as digits: sherpa-onnx cannot read numbers
_WHOLE = re.compile("[a-z0-9'äöüßáéíóúñàèùçâêîôûë’]+")


def looked_up(word: str) -> bool:
    """Whether sherpa-onnx (2.0.1) looks this word up as a whole; it splits other words into letters."""
    return _WHOLE.fullmatch(word) is not None


def words_of_run(origin: ModelOrigin, language: str) -> dict[str, None]:
    """Words of the training texts in `language` of the model's run, in order."""
    texts = texts_of_run(origin, language) if origin.selection else iter(())
    return dict.fromkeys(word for text in texts for word in text.split())


def texts_of_run(origin: ModelOrigin, language: str) -> Iterator[str]:
    """Yield the training texts of the voice that are in `language`, or whose language is not known."""
    selection = Artifact(origin.selection)
    for receipt in selection.receipts():
        for row in selection.read_table(receipt.shard, columns=["text", "set", "language"]).to_pylist():
            if (not origin.sets or row["set"] in origin.sets) and (row["language"] or language) == language:
                yield row["text"]


def lines_of(paths: Sequence[str]) -> list[str]:
    """Non-empty lines of text files. Raises ConfigError: a file is missing or not UTF-8."""
    lines = []
    for path in paths:
        try:
            lines += [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", where=path, remedy="give text files in UTF-8") from error
    return [line for line in lines if line]


def pronounced(words: Iterable[str], reader: Reader) -> tuple[dict[str, list[str]], int]:
    """Phones of each word that the voice can say, sorted by word, and the number of words that it cannot say."""
    found, not_said = {}, 0
    for word in sorted(dict.fromkeys(words)):
        if any(c.isspace() for c in word) or not word:
            continue
        try:
            found[word] = reader.pronounce.word(word)
        except BadRecord:
            not_said += 1
    for number in range(NUMBERS):
        read = [piece.symbols for piece in reader.pieces(str(number))]
        phones = [symbol for symbols in read for symbol in symbols if symbol != PAUSE]
        if phones and str(number) not in found and not reader.left_out:
            found[str(number)] = phones
        reader.left_out.clear()
    return found, not_said


def written(piece: SpokenPiece, reader: Reader) -> str:
    """A text that reads back as this piece: words, a comma per pause, a full stop; "" if there is no such text."""
    text, place = "", 1
    for word in piece.text.split():
        try:
            phones = reader.pronounce.word(word)
        except BadRecord:
            return ""
        if piece.symbols[place : place + len(phones)] != phones:
            return ""  # phones in braces, for one
        place += len(phones)
        text += f" {word}"
        if place < len(piece.symbols) - 1 and piece.symbols[place] == PAUSE:
            text, place = f"{text},", place + 1
    return text.strip() + ("." if piece.after_s else "")
