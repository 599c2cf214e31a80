"""Licence names, addresses and expressions as people write them → SPDX, and the policy of what may be used.

Identifiers: SPDX License List 3.27. Terms without an identifier get a ``LicenseRef-`` name, as SPDX 2.3, annex D, says;
expressions with AND, OR and WITH are those of annex D as well (`corpus.ingest.licence_expressions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.ingest import licence_expressions as expressions

PUBLIC_DOMAIN = "LicenseRef-public-domain"
RESERVED = "LicenseRef-all-rights-reserved"
UNKNOWN = "NOASSERTION"
MAX_CHARACTERS = 300  # longer texts are prose, and what else they say may matter
# A name without a version allows every version of that licence, and nothing that only begins like it.
DEFAULT_ALLOWED = ("CC0", "public-domain", "CC-PDM", "CC-PDDC", "CC-BY", "CC-BY-SA", "Apache-2.0", "MIT",
    "BSD-2-Clause", "BSD-3-Clause")  # fmt: skip

_CC_URL = re.compile(r"creativecommons\.org/licen[sc]es/([a-z+-]+)(?:/(\d\.\d))?(?:/([a-z]{2,3})\b)?", re.IGNORECASE)
_ADDRESS = re.compile(r"\S*creativecommons\.org\S*", re.IGNORECASE)
_CC_TERMS = r"((?:[\s_,-]*(?:nc|non-?\s?commercial|sa|share-?\s?alike|nd|no-?\s?deriv\w*))*)"
_CC_NAME = re.compile(
    r"(?:(?:cc|creative[\s-]commons)[\s:_-]*(?:by|attribution)|^attribution)(?![a-z])" + _CC_TERMS
    + r"(?:[\s_-]*licen[sc]e)?[\s_,-]*(?:v|version\s)?(?:(\d(?:\.\d)?))?\b",
    re.IGNORECASE,
)  # fmt: skip
_EXACT = {
    "cc-0": "CC0-1.0",
    "cc-zero": "CC0-1.0",
    "creative-commons-zero": "CC0-1.0",
    "cc-pddc": "CC-PDDC",
    "pd": PUBLIC_DOMAIN,
    "pd-us": PUBLIC_DOMAIN,
    "pdm": "CC-PDM-1.0",
    "apache": "Apache-2.0",
    "mit": "MIT",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "gpl-2.0": "GPL-2.0-only",
    "gpl-3.0": "GPL-3.0-only",
    "agpl-3.0": "AGPL-3.0-only",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-3.0": "LGPL-3.0-only",
    "gfdl": "LicenseRef-GFDL",
    "odbl": "ODbL-1.0",
    "odc-by": "ODC-By-1.0",
    "pddl": "PDDL-1.0",
    "unlicense": "Unlicense",
    "isc": "ISC",
    "proprietary": RESERVED,
}
# Phrases and addresses, in the order of what they would be mistaken for.
_PHRASES = tuple(
    (re.compile(pattern, re.IGNORECASE), identifier)
    for pattern, identifier in (
        (r"\bcc[\s-]?(?:0|zero)\b|publicdomain/zero|creative commons zero", "CC0-1.0"),
        (r"public domain mark|publicdomain/mark|\bcc-pdm\b", "CC-PDM-1.0"),
        (r"licen[sc]es/publicdomain", "CC-PDDC"),
        (r"all rights reserved|\bcopyrighted\b|standard youtube licen[sc]e|in[\s-]?copyright", RESERVED),
        (r"apache(?:\.org/licenses/license|,?\s+(?:software\s+)?licen[sc]e,?)?[\s-]*(?:v|version\s)?2(?:\.0)?\b",
         "Apache-2.0"),
        (r"^(?:the\s+)?mit(?:\s+licen[sc]e)?$|licenses/mit\b", "MIT"),
        (r"opendatacommons\.org/licenses/by\b", "ODC-By-1.0"),
        (r"opendatacommons\.org/licenses/odbl\b|open database licen[sc]e", "ODbL-1.0"),
        (r"opendatacommons\.org/licenses/pddl\b", "PDDL-1.0"),
        (r"gnu free documentation licen[sc]e\D*1\.3|gnu\.org/licenses/fdl-1\.3", "GFDL-1.3-only"),
        (r"gnu free documentation licen[sc]e|gnu\.org/(?:copyleft|licenses)/fdl", "LicenseRef-GFDL"),
        (r"free art licen[sc]e|licence art libre|artlibre\.org", "LAL-1.3"),
        (r"^not (?:in )?(?:the )?public domain|^non-public domain", RESERVED),
        (r"public[\s_-]*domain|no known copyright|(?:u\.?s\.?|united states)[\s_-]*government[\s_-]*works?|"
         r"usa\.gov/copyright|government-works", PUBLIC_DOMAIN),
    )
)  # fmt: skip
_SPDX = re.compile(r"(?:LicenseRef-[A-Za-z0-9.-]+|[A-Z][A-Za-z]*(?:-[A-Za-z0-9.]+)*-\d+(?:\.\d+)*(?:-[A-Za-z]+)*)")
_SPDX_PAGE = re.compile(r"spdx\.org/licenses/([A-Za-z0-9.-]+?)(?:\.html|\.json|\.txt)?/?$")
_TERMS = (("nc", r"nc|non-?\s?commercial"), ("nd", r"nd|no-?\s?deriv"), ("sa", r"sa|share-?\s?alike"))
# Beside a licence's name these take back what it gives, or say more than it does.
_RESTRICTED = re.compile(
    r"(?<![a-z])(?:nc|nd|sa|non-?\s?commercial\w*|no-?\s?deriv\w*|share-?\s?alike|only|"
    r"(?:research|academic|educational|personal|private|evaluation)[\s-]+(?:use|purposes?))(?![a-z])",
    re.IGNORECASE,
)
_DASHES = str.maketrans("‐‑‒–—−", "-" * 6)
_NEGATED = re.compile(r"\b(?:not|no|never|isn't|without|except|unless|other than)\b", re.IGNORECASE)
# Licences that were adapted to a country's law and have an identifier of their own.
_PORTED_NAMES = (
    "CC-BY-2.5-AU CC-BY-3.0-AT CC-BY-3.0-AU CC-BY-3.0-DE CC-BY-3.0-IGO CC-BY-3.0-NL CC-BY-3.0-US CC-BY-NC-3.0-DE"
    " CC-BY-NC-ND-3.0-DE CC-BY-NC-ND-3.0-IGO CC-BY-NC-SA-2.0-DE CC-BY-NC-SA-2.0-FR CC-BY-NC-SA-2.0-UK"
    " CC-BY-NC-SA-3.0-DE CC-BY-NC-SA-3.0-IGO CC-BY-ND-3.0-DE CC-BY-SA-2.0-UK CC-BY-SA-2.1-JP CC-BY-SA-3.0-AT"
    " CC-BY-SA-3.0-DE CC-BY-SA-3.0-IGO"
)
_PORTED = frozenset(_PORTED_NAMES.split())


def spdx(written: str) -> str:
    """SPDX identifier or expression of what is written; ``NOASSERTION`` when it is not known.

    Examples: ``https://creativecommons.org/licenses/by-sa/4.0/`` → ``CC-BY-SA-4.0``; ``CC BY 3.0`` → ``CC-BY-3.0``;
    ``Public Domain`` → ``LicenseRef-public-domain``; ``MIT or CC BY 4.0`` → ``MIT OR CC-BY-4.0``. A Creative Commons
    name without version keeps none (``LicenseRef-CC-BY``): SPDX has no identifier for it, and no version may be
    invented. A text with a negation ("not for commercial use") is not understood, rather than understood wrongly.

    >>> spdx("https://creativecommons.org/licenses/by/4.0/")
    'CC-BY-4.0'
    >>> spdx("CC BY-SA 3.0")
    'CC-BY-SA-3.0'
    """
    name = " ".join(written.split()).strip(" .")
    if (single := _single(name)) != UNKNOWN:
        return single
    try:
        return expressions.parse(name, _single, UNKNOWN).text
    except expressions.NoExpressionError:
        return UNKNOWN


def _single(name: str) -> str:
    """SPDX identifier of one licence."""
    slug = re.sub(r"[\s_]+", "-", name.lower())
    if slug in _EXACT:
        return _EXACT[slug]
    if match := _SPDX_PAGE.search(name):
        return _single(match[1])
    if _SPDX.fullmatch(name):
        return name
    if (
        expressions.looks_like_one(name)
        or len(name) > MAX_CHARACTERS
        or (_NEGATED.search(name) and not _PHRASES_WITH_NO.search(name))
    ):
        return UNKNOWN
    if _CC_URL.search(name):
        return _from_url(name)
    name = name.translate(_DASHES).replace("_", " ")
    identifiers = {identifier for pattern, identifier in _PHRASES if pattern.search(name)}
    if "CC0-1.0" in identifiers:
        identifiers.discard(PUBLIC_DOMAIN)  # "CC0 1.0 Universal Public Domain Dedication"
    if "CC-PDM-1.0" in identifiers:
        identifiers.discard(PUBLIC_DOMAIN)
    identifiers |= {_cc(match[1] or "", match[2] or "") for match in _CC_NAME.finditer(name)}
    if _RESTRICTED.search(_CC_NAME.sub(" ", name)):
        return UNKNOWN
    # Two different licences in one sentence are a puzzle for a human.
    return identifiers.pop() if len(identifiers) == 1 else UNKNOWN


_PHRASES_WITH_NO = re.compile(r"no known copyright|^not (?:in )?(?:the )?public domain|\bno-?\s?deriv", re.IGNORECASE)


def _from_url(address: str) -> str:
    identifiers = {_cc_of(match) for match in _CC_URL.finditer(address)}
    if len(identifiers) != 1:
        return UNKNOWN
    single = identifiers.pop()
    beside = _ADDRESS.sub(" ", address).translate(_DASHES)
    named = {_cc(match[1] or "", "").removeprefix("LicenseRef-") for match in _CC_NAME.finditer(beside)}
    agrees = named <= _names(single) and not _RESTRICTED.search(_CC_NAME.sub(" ", beside))
    return single if agrees else UNKNOWN


def _cc_of(match: re.Match[str]) -> str:
    if match[1].lower() == "publicdomain":
        return "CC-PDDC"
    if not match[1].lower().startswith("by"):
        return UNKNOWN
    identifier = _cc(match[1][2:], match[2] or "")
    ported = f"{identifier}-{(match[3] or '').upper()}"
    return ported if ported in _PORTED else identifier


def _cc(terms: str, version: str) -> str:
    """The identifier of a Creative Commons licence; SPDX puts the terms in the order BY, NC, then ND or SA."""
    terms_named = [name.upper() for name, pattern in _TERMS if re.search(pattern, terms, re.IGNORECASE)]
    family = "-".join(["CC-BY", *terms_named])
    if not version:
        return f"LicenseRef-{family}"
    return f"{family}-{version if '.' in version else version + '.0'}"


def is_allowed(identifier: str, allowed: Iterable[str]) -> bool:
    """Whether a policy names this licence, by its identifier or by its name without a version.

    Of an expression: one side of an OR is enough, both sides of an AND are needed; an exception (WITH) only permits
    more, so its licence decides, unless the policy has the whole of it.

    >>> is_allowed("CC-BY-4.0", ["CC-BY"])
    True
    """
    entries = frozenset(allowed)
    try:
        return expressions.parse(identifier, _single, UNKNOWN).allows(lambda single: _names(single) & entries != set())
    except expressions.NoExpressionError:
        return False


def _names(identifier: str) -> set[str]:
    """What a policy may call a licence: its identifier, with or without ``LicenseRef-``, version and country."""
    bare = identifier.removeprefix("LicenseRef-").removesuffix("+")
    return {identifier, bare, re.sub(r"-\d+(\.\d+)*(-[A-Za-z]+)*$", "", bare)}


class LicenceRefused(BadRecord):
    """A licence that may not be used; `licence` is its identifier, or what was written where there is none."""

    def __init__(self, reason: str, detail: str, licence: str) -> None:
        super().__init__(reason, detail)
        self.licence = licence


def check_licence(written: str, allowed: Iterable[str]) -> str:
    """The SPDX identifier of a licence that may be used.

    Raises
    ------
    LicenceRefused: ``licence-unknown`` for none or one that is not understood, ``licence-forbidden`` for one that the
    policy does not name.
    """
    identifier = spdx(written)
    if identifier == UNKNOWN:
        detail = f"{written!r} is no licence known here" if written.strip() else "no licence is given"
        detail += "; set `licence` when all recordings share one"
        raise LicenceRefused("licence-unknown", detail, " ".join(written.split())[:80] or UNKNOWN)
    if not is_allowed(identifier, allowed):
        detail = f"{identifier} is not among the allowed: {', '.join(allowed)}"
        raise LicenceRefused("licence-forbidden", detail, identifier)
    return identifier


def licence_remedies(refused: Iterable[str]) -> dict[str, str]:
    """What lets refused recordings in, by reason. refused: licences as a tally counts them, the most frequent first."""
    known = [name for name in refused if spdx(name) != UNKNOWN]
    add = f"add {', '.join(known[:5])} to --licences" if known else "--licences names what is allowed"
    return {
        "licence-unknown": "--licence NAME is the licence of recordings that name none; it must be one of --licences",
        "licence-forbidden": f"{add}, if you may use it",
    }


def check_policy(allowed: Iterable[str]) -> None:
    """Raise ConfigError for an entry of an allow-list that can match no identifier, such as "cc by"."""
    for entry in allowed:
        known = spdx(entry)
        if known == UNKNOWN and not re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]*", entry):
            raise ConfigError(
                f'"{entry}" is not an SPDX identifier', where="licences", remedy="e.g. CC-BY, CC-BY-SA-4.0, CC0"
            )
        if known != UNKNOWN and not is_allowed(known, [entry]):
            raise ConfigError(
                f'"{entry}" is not an SPDX identifier', where="licences", remedy=f'did you mean "{known}"?'
            )
