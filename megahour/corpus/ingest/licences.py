"""Map licence names, URLs and expressions to SPDX identifiers, and check them against a policy.

Identifiers are those of the SPDX License List 3.27. Terms without one get a ``LicenseRef-`` name (SPDX 2.3, annex D).
Expressions with AND, OR and WITH follow annex D too (`corpus.ingest.licence_expressions`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.ingest import licence_expressions as expressions

PUBLIC_DOMAIN = "LicenseRef-public-domain"
RESERVED = "LicenseRef-all-rights-reserved"
UNKNOWN = "NOASSERTION"
OWN = "for recordings of your own, --licence LicenseRef-NAME --licences '[LicenseRef-NAME]' with any NAME"
MAX_CHARACTERS = 300  # longer texts are prose, and may restrict what the name allows
# A name without a version allows every version of that licence, but no other licence with that prefix.
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
# Words beside a licence's name that restrict or extend it.
_RESTRICTED = re.compile(
    r"(?<![a-z])(?:nc|nd|sa|non-?\s?commercial\w*|no-?\s?deriv\w*|share-?\s?alike|only|proprietary|"
    r"(?:research|academic|educational|personal|private|evaluation)[\s-]+(?:use|purposes?))(?![a-z])",
    re.IGNORECASE,
)
_DASHES = str.maketrans("‐‑‒–—−", "-" * 6)
_NEGATED = re.compile(r"\b(?:not|no|never|isn't|without|except|unless|other than)\b", re.IGNORECASE)
_PHRASES_WITH_NO = re.compile(r"no known copyright|^not (?:in )?(?:the )?public domain|\bno-?\s?deriv", re.IGNORECASE)
# Licences adapted to a country's law that have their own identifier.
_PORTED_NAMES = (
    "CC-BY-2.5-AU CC-BY-3.0-AT CC-BY-3.0-AU CC-BY-3.0-DE CC-BY-3.0-IGO CC-BY-3.0-NL CC-BY-3.0-US CC-BY-NC-3.0-DE"
    " CC-BY-NC-ND-3.0-DE CC-BY-NC-ND-3.0-IGO CC-BY-NC-SA-2.0-DE CC-BY-NC-SA-2.0-FR CC-BY-NC-SA-2.0-UK"
    " CC-BY-NC-SA-3.0-DE CC-BY-NC-SA-3.0-IGO CC-BY-ND-3.0-DE CC-BY-SA-2.0-UK CC-BY-SA-2.1-JP CC-BY-SA-3.0-AT"
    " CC-BY-SA-3.0-DE CC-BY-SA-3.0-IGO"
)
_PORTED = frozenset(_PORTED_NAMES.split())


def spdx(written: str) -> str:
    """The SPDX identifier or expression for a licence as people write it; ``NOASSERTION`` if unknown.

    A Creative Commons name without a version becomes ``LicenseRef-CC-BY``, as SPDX has no identifier for it. A text
    with a negation ("not for commercial use") counts as unknown, because guessing could allow too much.

    >>> spdx("https://creativecommons.org/licenses/by-sa/4.0/")
    'CC-BY-SA-4.0'
    >>> spdx("CC BY 3.0"), spdx("Public Domain")
    ('CC-BY-3.0', 'LicenseRef-public-domain')
    >>> spdx("MIT or CC BY 4.0")
    'MIT OR CC-BY-4.0'
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
    if identifiers & {"CC0-1.0", "CC-PDM-1.0"}:
        identifiers.discard(PUBLIC_DOMAIN)  # "CC0 1.0 Universal Public Domain Dedication"
    identifiers |= {_cc(match[1] or "", match[2] or "") for match in _CC_NAME.finditer(name)}
    if _RESTRICTED.search(_CC_NAME.sub(" ", name)):
        return UNKNOWN
    identifiers |= _listed(name) - {UNKNOWN}
    # A text that names two licences needs a human.
    return identifiers.pop() if len(identifiers) == 1 else UNKNOWN


def _listed(name: str) -> set[str]:
    """The identifiers among the parts of a list, such as "CC BY 4.0, GPL-3.0"."""
    parts = [part.strip() for part in re.split("[,;|]", name)]
    return {_single(part) for part in parts} if len(parts) > 1 else set()


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
    """Whether a policy allows this licence, named by its identifier or by its name without a version.

    An expression with OR needs one allowed side, one with AND both. An exception (WITH) only adds permissions, so the
    licence before it decides, unless the policy names the whole.

    >>> is_allowed("CC-BY-4.0", ["CC-BY"])
    True
    """
    entries = frozenset(allowed)
    try:
        return expressions.parse(identifier, _single, UNKNOWN).allows(lambda single: _names(single) & entries != set())
    except expressions.NoExpressionError:
        return False


def _names(identifier: str) -> set[str]:
    """The names by which a policy may allow a licence: with or without ``LicenseRef-``, version and country."""
    bare = identifier.removeprefix("LicenseRef-").removesuffix("+")
    return {identifier, bare, re.sub(r"-\d+(\.\d+)*(-[A-Za-z]+)*$", "", bare)}


class LicenceRefused(BadRecord):
    """A licence that the policy forbids or that is unknown; `licence` is its identifier, else the text as written."""

    def __init__(self, reason: str, detail: str, licence: str) -> None:
        super().__init__(reason, detail)
        self.licence = licence


def check_licence(written: str, allowed: Iterable[str]) -> str:
    """The SPDX identifier of a licence, if the policy allows it.

    Raises
    ------
    LicenceRefused: ``licence-unknown`` if it is missing or not recognised, ``licence-forbidden`` if the policy does not
    allow it.
    """
    identifier = spdx(written)
    if identifier == UNKNOWN:
        detail = f"{written!r} is not a known licence" if written.strip() else "no licence is given"
        detail += "; set `licence` if all recordings share one"
        raise LicenceRefused("licence-unknown", detail, " ".join(written.split())[:80] or UNKNOWN)
    if not is_allowed(identifier, allowed):
        detail = f"{identifier} is not among the allowed licences {', '.join(allowed)}"
        raise LicenceRefused("licence-forbidden", detail, identifier)
    return identifier


def licence_remedies(refused: Iterable[str]) -> dict[str, str]:
    """How to admit refused recordings, by reason. refused: the refused licences, the most frequent first."""
    known = [name for name in refused if spdx(name) != UNKNOWN]
    add = f"add {', '.join(known[:5])} to --licences" if known else "--licences lists the allowed ones"
    return {
        "licence-unknown": f"--licence NAME, one of --licences, sets the licence of recordings that name none; {OWN}",
        "licence-forbidden": f"{add}, if you may use it",
    }


def check_policy(allowed: Collection[str], licence: str = "") -> None:
    """Raise ConfigError for an entry of an allow-list that matches no identifier, such as "cc by".

    licence: that of the records that name none; an unknown one or one that is not allowed would drop them all.
    """
    for entry in allowed:
        known = spdx(entry)
        if known == UNKNOWN:
            valid, remedy = bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]*", entry)), "e.g. CC-BY, CC-BY-SA-4.0, CC0"
        else:
            valid, remedy = is_allowed(known, [entry]), f'did you mean "{known}"?'
        if not valid:
            raise ConfigError(f'"{entry}" is not an SPDX identifier', where="licences", remedy=remedy)
    if licence and (identifier := spdx(licence)) == UNKNOWN:
        remedy = f"e.g. CC-BY-4.0, MIT, CC0; {OWN}"
        raise ConfigError(f'"{licence}" is not a known licence', where="licence", remedy=remedy)
    if licence and not is_allowed(identifier, allowed):
        remedy = f"add {identifier} to --licences, if you may use it"
        raise ConfigError(f"{identifier} is not an allowed licence", where="licence", remedy=remedy)
