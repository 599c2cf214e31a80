"""Opens the tokens of an artifact in any of three file formats, and imports tokens made by other toolkits."""

from __future__ import annotations

import json
import re

import fsspec

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.units.tokens import BLANK, BLANKS, CONTROL, Characters, TokenSpeller, lines_of_tokens

PIECES, HUGGING_FACE, CHARACTERS = ".spm.model", ".tokenizer.json", ".characters.json"
FORMS = (PIECES, HUGGING_FACE, CHARACTERS)
MAX_BYTES = 64 << 20
_SPECIAL = re.compile(r"[<\[].+|#[0-9]+")  # <unk>, and the #0 that tells homophones apart in graphs


def form_of(artifact: Artifact) -> str | None:
    """Which of `FORMS` an artifact holds; None if it holds no tokens."""
    files = next(artifact.each_receipt()).files
    return next((form for form in FORMS if form in files), None)


def speller_of(artifact: Artifact) -> TokenSpeller:
    """The speller of a *tokens* artifact. Raises StoreError: it holds no tokens, or they are damaged."""
    form = form_of(artifact)
    if form is None:
        raise StoreError(
            "no tokens in it", where=artifact.url, remedy=f"give an artifact of stage `tokens`: {', '.join(FORMS)}"
        )
    return speller(form, artifact.read_bytes(0, form), where=artifact.url)


def speller(form: str, file: bytes, *, where: str) -> TokenSpeller:
    """The speller for a file of the given form. Raises StoreError: the file does not have this form."""
    if form == PIECES:
        from megahour.units.pieces import Pieces

        return Pieces(file, where=where)
    if form == HUGGING_FACE:
        from megahour.units.hugging_face import HuggingFaceTokens

        return HuggingFaceTokens(file, where=where)
    try:
        return Characters(tuple(json.loads(file)))
    except ValueError as error:
        raise StoreError(f"not a list of characters: {error}", where=where, remedy="make it again") from error


def from_elsewhere(url: str) -> tuple[str, bytes]:
    """Import tokens of another toolkit: the form and the bytes that an artifact stores.

    Accepted are a sentencepiece model (.model), a Hugging Face tokenizer.json, the vocab.json of wav2vec2 (token name →
    number), and a text file with one token per line, such as `get_labels()` of TorchAudio's pipelines gives, or with
    numbers (`a 5`), as icefall's and Kaldi's tokens.txt.

    Raises
    ------
    ConfigError: the file cannot be read, or has none of these formats.
    """
    try:
        with fsspec.open(url, "rb") as opened:
            file = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokens cannot be read: {error}", where=url, remedy="check the path") from error
    if len(file) > MAX_BYTES:
        raise ConfigError(f"more than {MAX_BYTES} bytes", where=url, remedy="give a tokenizer's file")
    if url.endswith(".model"):
        return PIECES, file
    try:
        if not url.endswith(".json"):
            listed = lines_of_tokens(file.decode("utf-8-sig"))
            return CHARACTERS, _characters(
                listed if isinstance(listed, list) else sorted(listed, key=listed.__getitem__)
            )
        read = json.loads(file)
        if "model" in read:
            return HUGGING_FACE, file
        return CHARACTERS, _characters(sorted(read, key=read.__getitem__))
    except (ValueError, TypeError, RecursionError) as error:
        remedy = "give a sentencepiece .model, a tokenizer.json, a vocab.json, or a text file with a token per line"
        raise ConfigError(f"not a list of tokens: {error}", where=url, remedy=remedy) from error


def _characters(labels: list[str]) -> bytes:
    """JSON of the blank and the single-character labels, in order, in lower case. `|` and U+2581 become the space.
    Control characters, which no cleaned text has, are left out."""
    signs = (*BLANKS, "")
    plain = [each for each in labels if not (each in signs or _SPECIAL.fullmatch(each) or CONTROL.search(each))]
    spelled = [" " if label in ("|", "\u2581", "<space>") else label.lower() for label in plain]
    if longer := next((label for label in spelled if len(label) > 1), None):
        raise ValueError(f"label {longer!r} is not one character")
    if not spelled:
        raise ValueError("no label that is a character")
    return json.dumps([BLANK, *dict.fromkeys(spelled)], ensure_ascii=False).encode()
