"""Speaker names: which spellings mean the same person, and which are not names."""

from __future__ import annotations

import re
import unicodedata

from megahour.corpus.transcripts.pairing import MEDIA, split_suffix

# Unicode's ignorable characters (Default_Ignorable_Code_Point) other than format characters (Cf): mainly variation
# selectors, which choose a glyph in Japanese names.
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
_ASCII_WORD = re.compile("[0-9a-z]+")


def one_name(name: str) -> str:
    """Normalise a name for comparison: "VOICE 001", "voice-001" and "Voice_001" are the same speaker.

    Names fold as Unicode identifiers do (UAX #31: NFKC, case folding, no invisible characters), and any
    character other than a letter, mark or number separates words. A name of punctuation alone is left unchanged.

    >>> one_name("Dr._O’Neil, Ann")
    'dr o neil ann'
    """
    if name.isascii():  # same result as below, but much faster
        return " ".join(_ASCII_WORD.findall(name.lower())) or name.strip()
    visible = "".join(char for char in _IGNORABLE.sub("", name) if unicodedata.category(char) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    words = "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in folded)
    return " ".join(words.split()) or name.strip()


def is_address(speaker: str) -> bool:
    """Whether a speaker is only the address of the audio file, which `ingest` writes if no name is known."""
    address = re.sub(r"/\d+$", "", speaker)  # a channel of the file
    return "://" in address or split_suffix(address)[1] in MEDIA
