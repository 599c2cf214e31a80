"""Convert words to the phones that a voice knows: by a lexicon, by espeak-ng's rules, or as written in braces."""

from __future__ import annotations

import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from megahour.core.errors import BadRecord
from megahour.units.lexicon import Lexicon

# X-SAMPA (Wells, 1995) to IPA for espeak-ng's phones. `_ipa` tries longer symbols first.
_SAMPA_PAIRS = (
    "A=ɑ {=æ 6=ɐ Q=ɒ E=ɛ @=ə 3=ɜ I=ɪ O=ɔ 2=ø 9=œ &=ɶ V=ʌ U=ʊ }=ʉ 1=ɨ M=ɯ Y=ʏ 7=ɤ 8=ɵ @`=ɚ 3`=ɝ :=ː "
    "B=β C=ç D=ð G=ɣ H=ɥ J=ɲ K=ɬ L=ʎ N=ŋ R=ʁ S=ʃ T=θ X=χ Z=ʒ g=ɡ r\\=ɹ 4=ɾ ?=ʔ tS=tʃ dZ=dʒ l\\=ɺ s\\=ɕ z\\=ʑ "
    "h\\=ɦ v\\=ʋ x\\=ɧ P=ʋ F=ɱ s`=ʂ z`=ʐ t`=ʈ d`=ɖ n`=ɳ l`=ɭ I\\=ᵻ"
)
_X_SAMPA = dict(pair.split("=") for pair in _SAMPA_PAIRS.split())
_UNSAID_SAMPA = {ord(mark): None for mark in '"%.'}
_LONGEST = max(map(len, _X_SAMPA))
_UNSAID = {ord(mark): None for mark in "ˈˌ.‿|‖"}
MOST_CHARACTERS = 200  # of a phone that is taken apart
Alphabet = Literal["", "ipa", "x-sampa"]
# The nearest phones, by place and manner of articulation, for a phone that the voice was not trained on. Of several, it
# takes the first that it knows.
_NEAR_PAIRS = (
    "ʒ=ʃ ʃ=s ð=d θ=t x=k ç=ʃ ɣ=ɡ χ=k ʁ=ɹ r=ɹ ɹ=r ɾ=t ʔ=t ŋ=n ɲ=nʲ ɲ=n ɱ=m ʎ=ɭʲ ʎ=l ɫ=ɭ ɫ=l l=ɭ lʲ=ɭʲ ɭ=l ɬ=l β=v v=f "
    "w=v ʋ=v ɥ=j j=i z=s b=p d=t ɡ=k f=v s=z p=b t=d k=ɡ h=x dʒ=tʃ tʃ=tʃʲ tʃ=ʃ tɕ=tʃʲ tɕ=tʃ c=kʲ c=k ɟ=ɡʲ ɟ=ɡ ts=s "
    "n̩=n əl=l m̩=m l̩=l ɒ=ɔ ɔ=o o=ɔ ɑ=a a=ɑ æ=a ʌ=ɐ ʌ=a ɐ=ə ɐ=ʌ ɐ=a ə=ɐ ə=ʌ ə=e ɛ=e e=ɛ ɪ=i i=ɪ ʊ=u u=ʊ y=i ø=e œ=ɛ "
    "ɨ=ɪ ᵻ=ɪ ɯ=u ʉ=u ɜ=ə ɚ=ɜː ɝ=ɚ ɤ=ʌ ɵ=ʊ oʊ=oː əʊ=oʊ ɪə=ɪɹ eə=ɛɹ ʊə=ʊɹ ɕ=ʃ ʑ=ʒ ʂ=ʃ ʐ=ʒ"
)
_NEAR: defaultdict[str, list[str]] = defaultdict(list)
for _pair in _NEAR_PAIRS.split():
    _NEAR[_pair.partition("=")[0]].append(_pair.partition("=")[2])
_MARKS = {ord(mark): None for mark in "ːʲʰ\u0303\u0329\u035c\u0361"}  # length, palatal, breath, nasal, syllable, ties


def from_x_sampa(written: str) -> list[str]:
    """Convert space-separated X-SAMPA phones to IPA; stress marks are removed.

    >>> from_x_sampa('h @ "l @U')
    ['h', 'ə', 'l', 'əʊ']
    """
    return [found for phone in written.split() if (found := _ipa(phone.translate(_UNSAID_SAMPA)))]


def _ipa(phone: str) -> str:
    found = ""
    while phone:
        size = next((n for n in range(_LONGEST, 0, -1) if phone[:n] in _X_SAMPA), 1)
        found += _X_SAMPA.get(phone[:size], phone[:size])
        phone = phone[size:]
    return found


def known_phones(phone: str, symbols: Collection[str]) -> list[str]:
    """Express `phone` in the voice's `symbols`: itself, without its marks, the nearest, or its parts; [] if none.

    Of several ways to part it, the one with the fewest phones; one that is only near counts as two.

    >>> known_phones("aɪə", {"aɪ", "ə"}), known_phones("ʒ", {"ʃ"}), known_phones("ǃ", {"k"})
    (['aɪ', 'ə'], ['ʃ'], [])
    """
    if (near := _nearest(phone, symbols)) or len(phone) > MOST_CHARACTERS:
        return [near] if near else []
    longest = max(map(len, [*symbols, *_NEAR]), default=1)
    best: list[tuple[int, int, list[str]] | None] = [
        (0, 0, [])
    ]  # of the first n characters: cost, phones only near, phones
    for end in range(1, len(phone) + 1):
        ways = []
        for start in range(max(0, end - longest), end):
            part, before = phone[start:end], best[start]
            if before is not None and (near := _nearest(part, symbols)):
                cost, distant, phones = before
                only_near = near != part
                ways.append((cost + 1 + only_near, distant + only_near, [*phones, near]))
        best.append(min(ways, key=lambda way: way[:2]) if ways else None)
    return best[-1][2] if best[-1] else []


def _nearest(phone: str, symbols: Collection[str]) -> str:
    """The phone itself, the nearest one by `_NEAR`, or without its marks; "" if the voice has none."""
    tried = dict.fromkeys([phone])
    waiting = deque(tried)
    while waiting:
        each = waiting.popleft()
        if each in symbols:
            return each
        ways = (near for near in (*_NEAR.get(each, ()), each.translate(_MARKS)) if near and near not in tried)
        new = dict.fromkeys(ways)
        tried |= new
        waiting.extend(new)
    return ""


def scripts_of(text: str) -> set[str]:
    """The scripts of the letters of a text, as Unicode names them: LATIN, CYRILLIC, CJK, …"""
    return {unicodedata.name(c, "?").split()[0] for c in set(text) if c.isalpha()}


class Pronounce:
    """Look up a word's phones in `lexicon`, else apply `rules`, and map them to the voice's phones.

    symbols: the voice's symbols. scripts: those of its training texts; it cannot read others.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        scripts: Collection[str],
        rules: Callable[[str], list[str]] | None,
        lexicon: Lexicon | Mapping[str, list[list[str]]],
    ) -> None:
        self.symbols, self.scripts, self.rules, self.lexicon = frozenset(symbols), frozenset(scripts), rules, lexicon

    def word(self, word: str) -> list[str]:
        """The phones of a word. Raises BadRecord: the voice cannot say it."""
        if others := scripts_of(word) - self.scripts:
            scripts = ", ".join(sorted(self.scripts)).lower()
            raise BadRecord(
                "other-script", f"{word!r} has {sorted(others)[0].lower()} letters; the voice reads {scripts}"
            )
        found = self.lexicon.get(word) or self.lexicon.get(word.casefold())
        phones = found[0] if found else (self.rules(word) if self.rules else [])
        if not phones:
            raise BadRecord("no-pronunciation", f"{word!r} is not in the lexicon" if not self.rules else repr(word))
        return self.phones(phones)

    def phones(self, phones: Sequence[str]) -> list[str]:
        """Map phones to the voice's own. Raises BadRecord: the voice has no phone near one of them."""
        found: list[str] = []
        for phone in phones:
            known = known_phones(phone, self.symbols)
            if not known:
                raise BadRecord("unknown-phone", f"the voice has no phone like {phone!r}")
            found += known
        return found

    def written(self, phones: str, alphabet: Alphabet = "") -> list[str]:
        """Phones as somebody wrote them, with or without spaces; stress and syllable marks are removed.

        alphabet: "" is X-SAMPA if some phone is ASCII and not one of the voice's, else IPA.
        """
        ipa = phones.translate(_UNSAID).split()
        known = all(phone in self.symbols or any(ord(c) > 127 for c in phone) for phone in ipa)
        if alphabet == "ipa" or (not alphabet and known):
            return self.phones(ipa)
        return self.phones(from_x_sampa(phones))
