"""Tell labels that name the speaker from spoken words.

A label is at the start of a line or after ``>>`` and ends with a colon and a space. It is in capitals ("JOHN:",
"DR. SMITH (on phone):") or names a role ("Speaker 2:", "Interviewer:"). "Note: this" and "10:30" are speech.
Names in mixed case ("Ann:") are labels only in a file that uses them as such: `named_labels`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from megahour.corpus.text.languages.base import one_of
from megahour.corpus.text.sound_words import names_sound

MAX_NAME_WORDS = 3
MIN_LABELS = 3  # mixed-case names count as labels if a file has at least this many
_ROLES = (
    r"(?i:speaker|interviewer|interviewee|host|narrator|moderator|presenter|reporter|announcer|sprecher(?:in)?|"
    r"interviewt?e?r?|moderator(?:in)?|locutor|locutora|entrevistador|presentador|narrador|orateur|présentateur|"
    r"intervieweur|journaliste|narrateur|intervistatore|presentatore|narratore|giornalista|ведущий|ведущая|диктор|"
    r"корреспондент|рассказчик)(?:[ \t]\w{1,12}|\d{1,2})?"
)
_CAPITAL = r"(?:(?![a-zß-öø-ÿа-яё])[\w.'’&/#-]){1,20}"
_CAPITALS = rf"(?=[^:\n]{{0,60}}[^\W\d_]{{2}}){_CAPITAL}(?:,? {_CAPITAL}){{0,2}}"  # three words: a name, not a headline
_LEAD = r"(?:^[ \t]*(?:(?:(?P<lead>>>+)|»|--?|[–—•])[ \t]*)?|(?P<inner>>>+)[ \t]*)"  # >> changes speaker anywhere
LABEL = re.compile(
    rf"(?m:{_LEAD}(?:(?:\[[^\[\]\n]{{0,40}}\][ \t]*)?"
    rf"(?P<label>{_CAPITALS}|{_ROLES}|[QA])(?:[ \t]?[\[(][^()\[\]\n]{{1,30}}[)\]])?:(?=\s|\Z)"
    rf"|(?P<bracketed>\[[^\[\]\n]{{2,40}}\]):?(?=[ \t]+[^\s♪])))"
)
_NOBODY = re.compile(rf"{_ROLES}|[A-Z]|(?i:(?:speaker|spkr?|ch(?:annel)?|s)[ _-]?)?\d{{1,4}}")
_NUMBERED = re.compile(r"(?i:speaker)[ _-]?\d{1,4}")  # WhisperX's [SPEAKER_01]; "speaks" is a sound
_NAME_LABEL = re.compile(
    r"(?m:^[ \t]*(?:(?:>>+|»|--?|[–—•])[ \t]*)?"
    r"((?:[^\W\d_a-zß-öø-ÿа-яё][\w.'’-]{0,20})(?:[ \t][^\W\d_a-zß-öø-ÿа-яё][\w.'’-]{0,20}){0,2}):(?=\s))"
)
_NO_NAMES = one_of(
    "note notes warning remember question answer example step first second third finally next also but and so "
    "tip hint fact summary update breaking ps nota notas atención pregunta respuesta ejemplo primero segundo "
    "remarque attention exemple réponse premièrement deuxièmement conclusion attenzione domanda risposta esempio primo "
    "secondo achtung hinweis frage antwort beispiel erstens zweitens fazit внимание примечание вопрос ответ пример "
    "например итак во-первых во-вторых"
)


def label_name(label: str) -> str:
    """The speaker's name in a label; "" if it is none: "NOTE:" and "10:" are speech."""
    name = " ".join(label.split())
    return "" if name.casefold() in _NO_NAMES or not any(char.isalpha() for char in name) else name


def names_nobody(label: str) -> bool:
    """Whether a label ("Interviewer", "SPEAKER_01", "B") identifies a person only within one recording."""
    return _NOBODY.fullmatch(label.strip()) is not None


def bracketed_name(bracketed: str) -> str:
    """The name in "[Ann] words" or "[Ann, whispering] words", "" if the brackets hold a sound or a remark."""
    name = bracketed[1:-1].partition(",")[0].strip().rstrip(":")
    words = name.split()
    is_name = 0 < len(words) <= MAX_NAME_WORDS and all(word[:1].isupper() or word.isdigit() for word in words)
    is_sound = names_sound(name) and not _NUMBERED.fullmatch(name)
    return "" if not is_name or is_sound or name.casefold() in _NO_NAMES else name


def named_labels(texts: Iterable[str]) -> frozenset[str]:
    """Mixed-case names used as labels in a file: each at least twice, and at least `MIN_LABELS` times in total."""
    counts = Counter(match[1] for text in texts for match in _NAME_LABEL.finditer(text))
    names = {name: n for name, n in counts.items() if n > 1 and name.casefold() not in _NO_NAMES}
    return frozenset(names) if sum(names.values()) >= MIN_LABELS else frozenset()


def leading_name(text: str, names: frozenset[str]) -> tuple[str, int]:
    """The mixed-case name at the start of `text` and the position after it; ("", 0) without one."""
    match = _NAME_LABEL.match(text)
    return (match[1], match.end()) if match and match[1] in names else ("", 0)
