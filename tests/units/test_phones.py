"""Phones as tokens: what a text is spelled in, and what cannot be."""

import pytest

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.units.phones import Phones

LEXICON = "a  AH\na  EY\nbat  B AE T\n"


def lexicon(folder, text):
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        out.text(text, ".lexicon.txt")
        out.commit()
    return artifact


def test_words_are_spelled_in_their_first_pronunciation(tmp_path):
    phones = Phones.read(lexicon(tmp_path, LEXICON))
    assert phones.tokens == ("<blank>", "AE", "AH", "B", "EY", "T")
    assert [phones.tokens[n] for n in phones.encode("a bat")] == ["AH", "B", "AE", "T"]
    assert phones.spellable("bat a")
    assert not phones.spellable("")
    assert not phones.spellable("a cat")
    with pytest.raises(KeyError, match="cat"):
        phones.encode("a cat")


def test_a_lexicon_without_words_is_refused(tmp_path):
    with pytest.raises(StageError, match="without words"):
        Phones.read(lexicon(tmp_path, ""))
