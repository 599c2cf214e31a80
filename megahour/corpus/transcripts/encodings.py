"""Decode bytes of unknown encoding, or refuse: a wrong guess would silently corrupt a corpus."""

from __future__ import annotations

import codecs
import re
import unicodedata

from megahour.core.errors import BadRecord
from megahour.core.unicode import REPLACEMENT, mended
from megahour.corpus.media.containers import POINTER, POINTER_REMARK

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Code pages of old subtitle files by language; all other languages used cp1252.
CODE_PAGES = {
    **dict.fromkeys(("ru", "uk", "bg", "sr", "mk", "be"), "cp1251"),
    **dict.fromkeys(("pl", "cs", "sk", "hu", "sl", "hr", "ro"), "cp1250"),
    **dict.fromkeys(("el",), "cp1253"),
    **dict.fromkeys(("tr",), "cp1254"),
    **dict.fromkeys(("he",), "cp1255"),
    **dict.fromkeys(("ar", "fa", "ur"), "cp1256"),
    **dict.fromkeys(("et", "lv", "lt"), "cp1257"),
    **dict.fromkeys(("ja",), "cp932"),
    **dict.fromkeys(("zh",), "gb18030"),
    **dict.fromkeys(("ko",), "cp949"),
}
MAX_CONTROL_SHARE = 0.01
MIN_HIGH_SHARE = 0.7  # in UTF-16 without a mark, least share of high bytes that are zero or the most common other value
_STRAY = re.compile("[\udc80-\udcff]")  # a byte, as `surrogateescape` shows it
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
MAX_ACCENTED_SHARE = 0.4  # non-ASCII share of letters in cp1252 text; French: about 0.05, Cyrillic mojibake: nearly 1


def decode_text(data: bytes, language: str = "en") -> str:
    """Decode a transcript by its byte-order mark, else as UTF-16 if its zeros suggest it, else UTF-8 or the code page.

    Of a text whose characters are mostly UTF-8, the code page reads only the bytes that are not. What a cut left of the
    last character becomes U+FFFD, and so does a stray NUL, as in WebVTT and HTML. UTF-8 that a program took for the
    code page and wrote as UTF-8 again ("cafÃ©") is read as it was meant.

    Raises
    ------
    BadRecord: ``unreadable-encoding`` if no encoding gives plausible text (binary data, wrong code page);
    ``unreadable-transcript`` for RTF, whose commands would be spoken, and for a pointer to the file.
    """
    if data.startswith(b"{\\rtf"):
        raise BadRecord("unreadable-transcript", "RTF of a word processor; save it as plain text")
    if data.startswith(POINTER):
        raise BadRecord("unreadable-transcript", POINTER_REMARK)
    encoding = marked_encoding(data)
    page = CODE_PAGES.get(language.lower()[:2], "cp1252")
    candidates = [encoding] if encoding else ["utf-8", page]
    for candidate in candidates:
        try:
            text = _decoded(data, candidate, page)
        except UnicodeDecodeError:
            continue
        if _plausible(text, candidate):
            text = _written_once(text, page) if candidate.startswith("utf") and page.startswith("cp125") else text
            return text.replace("\0", REPLACEMENT).replace("\r\n", "\n").replace("\r", "\n")
    tried = ", ".join(candidates)
    raise BadRecord("unreadable-encoding", f"the {len(data)} bytes are not text in {tried}; save the file as UTF-8")


def marked_encoding(data: bytes) -> str | None:
    """The encoding of the byte-order mark, or UTF-16 if the zeros suggest it; None otherwise (most likely UTF-8)."""
    return next((name for mark, name in BOMS if data.startswith(mark)), None) or _by_zeros(data)


def _decoded(data: bytes, encoding: str, page: str) -> str:
    """Decode, with U+FFFD for lone surrogates, which some programs write as if they were characters."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        if not encoding.startswith("utf"):
            raise
        strays = 0
        try:
            text, rest = _up_to_cut(data, encoding, "surrogatepass")
        except UnicodeDecodeError:
            if not encoding.startswith("utf-8"):
                raise
            text, rest = _up_to_cut(data, encoding, "surrogateescape")
            strays = len(_STRAY.findall(text))
            text = _STRAY.sub(lambda byte: byte[0].encode("utf-8", "surrogateescape").decode(page, "replace"), text)
        # A text of the code page has next to no characters that are also UTF-8.
        if encoding == "utf-8" and 2 * (strays + bool(rest)) > sum(char > "\x7f" for char in text):
            raise
    return mended(text) + REPLACEMENT * bool(rest)


def _written_once(text: str, page: str) -> str:
    """Undo a second UTF-8 encoding, if most runs of characters beyond ASCII are the bytes of characters of `page`."""
    runs = set(_BEYOND_ASCII.findall(text))
    meant = {run: found for run in runs if (found := _meant(run, page))}
    if 2 * len(meant) <= len(runs):
        return text
    return _BEYOND_ASCII.sub(lambda run: meant.get(run[0], run[0]), text)


def _meant(run: str, page: str) -> str:
    """What a run of characters says if its bytes in `page` are UTF-8; "" otherwise."""
    try:
        # Windows gives undefined bytes, as 0x81 in cp1252, the control character of the same number.
        found = b"".join(bytes([ord(c)]) if "\x80" <= c <= "\x9f" else c.encode(page) for c in run).decode()
        "".join(c for c in found if c.isalpha()).encode(page)  # a letter of another script was not meant
    except UnicodeError:
        return ""
    return found


def _up_to_cut(data: bytes, encoding: str, errors: str) -> tuple[str, bytes]:
    """The text, and the bytes of an incomplete last character."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    return decoder.decode(data), decoder.getstate()[0]


def _by_zeros(data: bytes) -> str | None:
    """Detect UTF-16 without a mark: in most scripts that use spaces, every other byte is often zero."""
    head = data[:4096]
    if len(head) < 4 or len(data) % 2:
        return None
    for high, low, name in ((head[1::2], head[0::2], "utf-16-le"), (head[0::2], head[1::2], "utf-16-be")):
        zeros, block = high.count(0) / len(high), max(map(high.count, set(high) - {0}), default=0) / len(high)
        # Rule out stray zeros in plain text: in UTF-16, the letters of a script share their high byte.
        if zeros > 0.1 and zeros + block > MIN_HIGH_SHARE and low.count(0) < 0.01 * len(low):
            return name
    return None


def _plausible(text: str, encoding: str) -> bool:
    control = sum(unicodedata.category(char) in ("Cc", "Cn", "Co") and char not in "\t\n\r\f\v" for char in text)
    if control > max(1, MAX_CONTROL_SHARE * len(text)):
        return False
    if encoding != "cp1252":
        return True
    letters = [char for char in text if char.isalpha()]
    return sum(char > "\x7f" for char in letters) <= MAX_ACCENTED_SHARE * len(letters)
