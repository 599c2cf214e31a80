"""What transcripts contain besides speech: tags, speaker labels, sound cues, lyrics. What is left is to be said."""

from __future__ import annotations

import html
import re

_TAG = re.compile(r"</?[a-zA-Z][^<>\n]*>|<\d[\d:.]*>|<>|\{\\[^{}]*\}|\{[a-zA-Z]:[^{}]*\}")
_NOTES = "♪♫♬"
_LYRICS = re.compile(rf"[{_NOTES}][^{_NOTES}\n]*[{_NOTES}]?|^\s*#\s[^\n]*\s#\s*$", re.MULTILINE)
_BRACKETS = re.compile(r"\[[^\[\]]*\]|［[^［］]*］|【[^【】]*】")
_STARS = re.compile(r"\*[^*\n]{1,40}\*")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_SOUNDS = re.compile(
    r"\b(applau|cheer|laugh|chuckl|giggl|music|sigh|sob|cough|crosstalk|cry|gasp|groan|inaudible|indistinct|noise|pause|"
    r"scream|shout|silence|sings?\b|singing|sneez|sniff|song|speak|static|unintelligible|whisper|whistl|audience|beep|"
    r"bell|door|footsteps|phone|aplausos|risas|música|applaudi|rires|musique|risate|musica|смех|музыка|аплодисменты|"
    r"gelächter|beifall|musik)",
    re.IGNORECASE,
)
MAX_SOUND_WORDS = 5  # longer parentheses are somebody's words
_CHEVRONS = re.compile(r"^\s*(?:>>+|»|--?(?=\s*[^\W\d_])|[–—•])\s*", re.MULTILINE)
# A label is in capitals, or says that it is one: "JOHN:", "DR. SMITH:", "Speaker 2:"; "Note: …" is speech.
_ROLES = r"(?i:speaker|interviewer|interviewee|host|narrator|moderator)(?:\s\w{1,12}|\d{1,2})?"
_CAPITAL = r"(?:(?![a-zß-öø-ÿа-яё])[\w.'’&/#-]){1,20}"
_CAPITALS = rf"(?=[^:\n]{{0,60}}[^\W\d_]{{2}}){_CAPITAL}(?:,? {_CAPITAL}){{0,2}}"  # three words: a name, not a headline
_LABEL = re.compile(rf"^\s*(?:{_CAPITALS}|{_ROLES}):(?=\s|$)", re.MULTILINE)


def spoken_text(raw: str) -> str:
    """The words that a cue's author meant to be heard; empty when there are none.

    Removed: HTML, WebVTT and ASS tags, ``JOHN:`` and ``>>``, ``[music]``, ``(applause)``, ``*sighs*``, lyrics between ♪
    (they are sung). Parentheses stay when their words read like speech. Lines are joined with one space.
    """
    text = _TAG.sub("", html.unescape(_TAG.sub("", raw)))  # twice: some programs write &lt;i&gt;
    text = text.replace("\u200b", "").replace("\ufeff", "")
    if text.strip()[:1] in tuple(_NOTES) and text.strip()[-1:] in tuple(_NOTES):
        return ""
    text = _LYRICS.sub(" ", text)
    text = _STARS.sub(" ", _BRACKETS.sub(" ", text))
    text = _PARENTHESES.sub(_parenthesis, text)
    text = _LABEL.sub(" ", _CHEVRONS.sub("", text))
    text = " ".join(text.split())
    return text if any(char.isalnum() for char in text) else ""


def _parenthesis(match: re.Match[str]) -> str:
    inside = match[1]
    if len(inside.split()) > MAX_SOUND_WORDS:
        return match[0]
    whole_line = _line_around(match).strip(" -–>") == match[0]
    is_sound = whole_line or _SOUNDS.search(inside) or (inside.isupper() and len(inside) > 1)
    return " " if is_sound else match[0]


def _line_around(match: re.Match[str]) -> str:
    text = match.string
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)]
