"""Names of speakers: which spellings are one person, and which are not a name."""

from __future__ import annotations

import re
import unicodedata

from megahour.corpus.transcripts.pairing import MEDIA, split_suffix

# What Unicode lets a reader ignore (Default_Ignorable_Code_Point) beyond the format characters (Cf): above all the
# variation selectors, with which Japanese names choose a glyph.
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
_ASCII_WORD = re.compile("[0-9a-z]+")


def one_name(name: str) -> str:
    """A name as it is compared: "VOICE 001", "voice-001" and "Voice_001" are one speaker.

    Names fold as Unicode identifiers do (UAX #31: NFKC, case folding, no invisible characters), and whatever is
    neither letter, mark nor digit separates words. A name of punctuation alone stays as it is.

    >>> one_name("Dr._O’Neil, Ann")
    'dr o neil ann'
    """
    if name.isascii():  # as below, and much sooner
        return " ".join(_ASCII_WORD.findall(name.lower())) or name.strip()
    visible = "".join(char for char in _IGNORABLE.sub("", name) if unicodedata.category(char) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    words = "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in folded)
    return " ".join(words.split()) or name.strip()


def is_address(speaker: str) -> bool:
    """Whether a recording's speaker is only the address of its file: what `ingest` writes where no name is known."""
    address = re.sub(r"/\d+$", "", speaker)  # a channel of the file
    return "://" in address or split_suffix(address)[1] in MEDIA
