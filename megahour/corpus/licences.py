"""Licence names and addresses as people write them → SPDX identifiers, and the policy of what may be used.

Identifiers: SPDX License List 3.27. Terms without an identifier get a ``LicenseRef-`` name, as SPDX 2.3, annex D, says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from megahour.core.errors import BadRecord, ConfigError

PUBLIC_DOMAIN = "LicenseRef-public-domain"
UNKNOWN = "NOASSERTION"
# A name without a version allows every version of that licence, and nothing that only begins like it.
DEFAULT_ALLOWED = ("CC0", "public-domain", "CC-BY", "CC-BY-SA", "Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause")

_CC_URL = re.compile(r"creativecommons\.org/licen[sc]es/([a-z+-]+)(?:/(\d\.\d))?", re.IGNORECASE)
_CC_NAME = re.compile(
    r"^(?:cc|creative[\s-]commons)[\s:_-]*(by|attribution)((?:[\s_-]*(?:nc|non-?commercial|sa|share-?alike|nd|no-?deriv\w*))*)"
    r"[\s_-]*v?(?:(\d(?:\.\d)?))?(?:\s*(?:international|unported|generic|licen[sc]e))*$",
    re.IGNORECASE,
)
_EXACT = {
    "cc0": "CC0-1.0",
    "cc-0": "CC0-1.0",
    "cc-zero": "CC0-1.0",
    "cc0-1.0": "CC0-1.0",
    "cc0-1.0-universal": "CC0-1.0",
    "cc-pdm": "CC-PDM-1.0",
    "cc-pdm-1.0": "CC-PDM-1.0",
    "cc-pddc": "CC-PDDC",
    "pd": PUBLIC_DOMAIN,
    "public-domain": PUBLIC_DOMAIN,
    "publicdomain": PUBLIC_DOMAIN,
    "no-known-copyright": PUBLIC_DOMAIN,
    "us-government-work": PUBLIC_DOMAIN,
    "apache": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache-license-2.0": "Apache-2.0",
    "mit": "MIT",
    "mit-license": "MIT",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "gpl-2.0": "GPL-2.0-only",
    "gpl-3.0": "GPL-3.0-only",
    "odbl": "ODbL-1.0",
    "odbl-1.0": "ODbL-1.0",
    "odc-by-1.0": "ODC-By-1.0",
    "pddl": "PDDL-1.0",
    "pddl-1.0": "PDDL-1.0",
    "all-rights-reserved": "LicenseRef-all-rights-reserved",
    "proprietary": "LicenseRef-all-rights-reserved",
}
_SPDX = re.compile(r"(?:LicenseRef-[A-Za-z0-9.-]+|[A-Z][A-Za-z]*(?:-[A-Za-z0-9.]+)*-\d+(?:\.\d+)*(?:-[A-Za-z]+)*)")
_TERMS = (("nc", r"nc|non-?commercial"), ("nd", r"nd|no-?deriv"), ("sa", r"sa|share-?alike"))


def spdx(written: str) -> str:
    """SPDX identifier of a licence's name or address; ``NOASSERTION`` when it is not known.

    Examples: ``https://creativecommons.org/licenses/by-sa/4.0/`` → ``CC-BY-SA-4.0``; ``CC BY 3.0`` → ``CC-BY-3.0``;
    ``Public Domain`` → ``LicenseRef-public-domain``. A Creative Commons name without version keeps none
    (``LicenseRef-CC-BY``): SPDX has no identifier for it, and no version may be invented.
    """
    name = written.strip()
    if "creativecommons.org" in name.lower():
        return _from_url(name)
    slug = re.sub(r"[\s_]+", "-", name.lower())
    if slug in _EXACT:
        return _EXACT[slug]
    if match := _CC_NAME.match(name):
        return _cc(match[2] or "", match[3] or "")
    return name if _SPDX.fullmatch(name) else UNKNOWN


def _from_url(address: str) -> str:
    if "publicdomain/zero" in address:
        return "CC0-1.0"
    if "publicdomain/mark" in address:
        return "CC-PDM-1.0"
    if "licenses/publicdomain" in address:
        return "CC-PDDC"
    match = _CC_URL.search(address)
    if not match or not match[1].lower().startswith("by"):
        return UNKNOWN
    return _cc(match[1][2:], match[2] or "")


def _cc(terms: str, version: str) -> str:
    """The identifier of a Creative Commons licence; SPDX puts the terms in the order BY, NC, then ND or SA."""
    found = [name.upper() for name, pattern in _TERMS if re.search(pattern, terms, re.IGNORECASE)]
    family = "-".join(["CC-BY", *found])
    if not version:
        return f"LicenseRef-{family}"
    return f"{family}-{version if '.' in version else version + '.0'}"


def is_allowed(identifier: str, allowed: Iterable[str]) -> bool:
    """Whether a policy names this licence: by its identifier, or by its name without a version."""
    bare = identifier.removeprefix("LicenseRef-")
    family = re.sub(r"-\d+(\.\d+)*(-[A-Za-z]+)?$", "", bare)
    return any(entry in (identifier, bare, family) for entry in allowed)


def check_licence(written: str, allowed: Iterable[str]) -> str:
    """The SPDX identifier of a licence that may be used.

    Raises
    ------
    BadRecord: ``licence-unknown`` for none or one that is not understood, ``licence-forbidden`` for one not allowed.
    """
    identifier = spdx(written)
    if identifier == UNKNOWN:
        detail = f"{written!r} is no licence known here" if written.strip() else "no licence is given"
        raise BadRecord("licence-unknown", f"{detail}; set `licence` when all recordings share one")
    if not is_allowed(identifier, allowed):
        raise BadRecord("licence-forbidden", f"{identifier} is not among the allowed: {', '.join(allowed)}")
    return identifier


def check_policy(allowed: Iterable[str]) -> None:
    """Raise ConfigError for an entry of an allow-list that can match no identifier, such as "cc by"."""
    for entry in allowed:
        known = spdx(entry)
        if known == UNKNOWN and not re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]*", entry):
            raise ConfigError(
                f'"{entry}" is no SPDX identifier', where="licences", remedy="e.g. CC-BY, CC-BY-SA-4.0, CC0"
            )
        if known != UNKNOWN and not is_allowed(known, [entry]):
            raise ConfigError(f'"{entry}" is no SPDX identifier', where="licences", remedy=f'did you mean "{known}"?')
