"""Words that captions use to describe sounds, which are not spoken, in six languages and some of East Asia.

Stems match at the start of a word. A parenthesis without any of them is speech, unless its form shows a description.
"""

from __future__ import annotations

import re

_STEMS = {
    "en": "applau|cheer|laugh|chuckl|giggl|snicker|cackl|music|sigh|sob|cough|crosstalk|cry|gasp|groan|moan|grunt|"
    "inaudible|indistinct|nois|pause|scream|shout|yell|silence|sings?|singing|sneez|sniff|snor|song|speak|static|"
    "unintelligible|whisper|whistl|audience|beep|bells?|door|footsteps|phone ring|ringing|clears? throat|"
    "clearing throat|exhal|inhal|breath|pant|mumbl|mutter|bark|chatter|clap|click|explosion|gunshot|thunder|"
    "horn|siren|engine|knock|overlapping|foreign|instrumental|jingle|theme|playing|continues|blank_audio|sound",
    "es": "aplauso|risas?|ríe|rien|riendo|música|musical|suspir|tos|tose|llora|llanto|grit|ruido|silencio|murmullo|"
    "inaudible|ininteligible|canta|cantando|canción|susurr|silb|timbre|teléfono suena|pausa|jade|gime|sonido|voces",
    "fr": "applaudissement|rires?|rit|riant|musique|soupir|tousse|toux|pleur|sanglot|cris?|crie|bruit|silence|murmure|"
    "inaudible|inintelligible|chante|chanson|chuchot|siffle|sonnerie|téléphone sonne|pause|gémi|brouhaha|générique",
    "it": "applaus|applaud|risat|ride|ridono|ridendo|musica|sospir|tosse|tossisce|piang|pianto|grid|urla|rumor|"
    "silenzio|mormor|incomprensibile|inudibile|canta|canzone|sussurr|fischi|squill|pausa|gem[ei]|sigla|brusio|voci",
    "de": "applaus|beifall|gelächter|lach|kicher|musik|seufz|hust|schluchz|wein|schrei|geräusch|lärm|stille|"
    "gemurmel|unverständlich|sing|gesang|flüster|pfeif|klingel|telefon klingel|pause|stöhn|räusper|jubel|stimmengewirr",
    "ru": "аплодисмент|смех|сме[её]тся|смеются|музык|вздох|вздыха|кашл|плач|плач[уе]т|крик|кричит|шум|тишин|"
    "неразборчив|по[её]т|поют|песн|шепч|ш[её]пот|свист|звон|пауз|стон|овац|гул|играет",
}
_EAST = "笑|拍手|音楽|掌声|音乐|音樂|歓声|ため息|泣|歌|웃음|박수|음악"
SOUND = re.compile(rf"\b(?:{'|'.join(_STEMS.values())})|{_EAST}", re.IGNORECASE)
# Words that do not occur in descriptions: a parenthesis with one of them is a spoken aside.
_SPEECH = re.compile(
    r"\b(?:i|i'm|i've|you|you're|we|he's|it's|is|are|was|were|don't|that|this|which|and|but|or|not|no|yes|because|if|"
    r"yo|tú|que|es|está|eso|pero|porque|no|sí|je|tu|nous|vous|c'est|est|qui|mais|pas|oui|non|io|che|è|sono|ma|perché|"
    r"ich|du|wir|ist|sind|das|aber|nicht|ja|nein|und|oder|я|ты|вы|мы|это|что|но|не|да|нет|или)\b",
    re.IGNORECASE,
)
MAX_SOUND_WORDS = 5  # longer parentheses are speech, except those up to twice as long that begin with a sound word


def names_sound(inside: str) -> bool:
    """Whether the text in brackets describes a sound."""
    words = len(inside.split())
    is_named = SOUND.match(inside) if words > MAX_SOUND_WORDS else SOUND.search(inside)
    return words <= 2 * MAX_SOUND_WORDS and is_named is not None and not _is_sentence(inside)


def describes(inside: str) -> bool:
    """Whether a parenthesis that fills its line is a description: short, no sentence, and without words of speech."""
    return len(inside.split()) <= MAX_SOUND_WORDS and not _is_sentence(inside) and _SPEECH.search(inside) is None


def _is_sentence(inside: str) -> bool:
    return inside.rstrip().endswith((".", "?", "!")) and len(inside.split()) > 1
