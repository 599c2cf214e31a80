"""Licences: common spellings become SPDX identifiers, and only those named by the policy are used."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.ingest.licences import DEFAULT_ALLOWED, UNKNOWN, check_licence, check_policy, is_allowed, spdx


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        ("https://creativecommons.org/licenses/by-sa/4.0/", "CC-BY-SA-4.0"),
        ("http://creativecommons.org/licenses/by-nc-nd/3.0/us/", "CC-BY-NC-ND-3.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("http://creativecommons.org/publicdomain/mark/1.0/", "CC-PDM-1.0"),
        ("CC BY 3.0", "CC-BY-3.0"),
        ("cc-by-sa-4.0", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-NonCommercial 2.5", "CC-BY-NC-2.5"),
        ("CC BY", "LicenseRef-CC-BY"),
        ("CC0", "CC0-1.0"),
        ("Public Domain", "LicenseRef-public-domain"),
        ("Apache-2.0", "Apache-2.0"),
        ("GPL-3.0-or-later", "GPL-3.0-or-later"),
        ("LicenseRef-AN4", "LicenseRef-AN4"),
        ("Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("This work is licensed under a Creative Commons Attribution 4.0 International License.", "CC-BY-4.0"),
        ("CC-BY 4.0 (https://creativecommons.org/licenses/by/4.0/)", "CC-BY-4.0"),
        ("http://creativecommons.org/licenses/by/3.0/us/", "CC-BY-3.0-US"),
        ("http://creativecommons.org/licenses/publicdomain/", "CC-PDDC"),
        ("Creative Commons Attribution license (reuse allowed)", "LicenseRef-CC-BY"),
        ("CC0 1.0 Universal (CC0 1.0) Public Domain Dedication", "CC0-1.0"),
        ("Public Domain Mark 1.0", "CC-PDM-1.0"),
        ("US Government Work", "LicenseRef-public-domain"),
        ("https://spdx.org/licenses/CC-BY-4.0.html", "CC-BY-4.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("https://opensource.org/licenses/MIT", "MIT"),
        ("Standard YouTube License", "LicenseRef-all-rights-reserved"),
        ("MIT or CC BY 4.0", "MIT OR CC-BY-4.0"),
        ("MIT/Apache-2.0", "MIT OR Apache-2.0"),
        ("CC BY-SA 3.0 and GFDL", "CC-BY-SA-3.0 AND LicenseRef-GFDL"),
        ("(MIT OR CC BY-NC 4.0) AND CC0", "(MIT OR CC-BY-NC-4.0) AND CC0-1.0"),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
        ("GPL-2.0+", "GPL-2.0-or-later"),
        ("MIT OR", UNKNOWN),
        ("mit and ask my lawyer", UNKNOWN),
        ("(MIT", UNKNOWN),
        ("Creative Commons — Attribution 4.0 International — CC BY 4.0", "CC-BY-4.0"),
        ("CC_BY-SA_4.0", "CC-BY-SA-4.0"),
        ("not public domain", UNKNOWN),
        ("CC BY 4.0, non-commercial only", UNKNOWN),
        ("CC BY 4.0; no derivatives", UNKNOWN),
        ("CC BY-SA 4.0, GPL-3.0", UNKNOWN),
        ("CC0, GFDL", UNKNOWN),
        ("CC BY 4.0 | proprietary", UNKNOWN),
        ("CC BY 4.0 and proprietary parts", UNKNOWN),
        ("CC BY 4.0, Ann Lee", "CC-BY-4.0"),
        ("CC BY 4.0, version 4.0; Attribution 4.0 International", "CC-BY-4.0"),
        ("CC BY 4.0 for research use", UNKNOWN),
        ("CC BY-NC (https://creativecommons.org/licenses/by/4.0/)", UNKNOWN),
        ("https://creativecommons.org/licenses/by/4.0/ but non-commercial", UNKNOWN),
        ("public domain in the US only", UNKNOWN),
        ("CC BY except the music", UNKNOWN),
        ("text CC BY 4.0, audio CC BY-NC 4.0", UNKNOWN),
        ("", UNKNOWN),
        ("ask my lawyer", UNKNOWN),
        ("https://creativecommons.org/", UNKNOWN),
    ],
)
def test_names_and_addresses(written: str, identifier: str) -> None:
    assert spdx(written) == identifier
    assert spdx(identifier) == identifier


def test_a_name_without_version_allows_its_versions_and_nothing_longer() -> None:
    assert is_allowed("CC-BY-4.0", ["CC-BY"])
    assert is_allowed("LicenseRef-CC-BY", ["CC-BY"])
    assert not is_allowed("CC-BY-NC-4.0", ["CC-BY"])
    assert not is_allowed("CC-BY-SA-4.0", ["CC-BY"])
    assert not is_allowed("CC-BY-3.0", ["CC-BY-4.0"])


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT OR CC-BY-NC-4.0", True),
        ("MIT AND CC-BY-NC-4.0", False),
        ("MIT AND (CC-BY-NC-4.0 OR CC0-1.0)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("NOASSERTION", False),
    ],
)
def test_a_policy_judges_expressions(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, DEFAULT_ALLOWED) is allowed


LICENCES = st.sampled_from(["MIT", "CC-BY-4.0", "CC-BY-NC-4.0", "CC0-1.0", "LicenseRef-GFDL", "Apache-2.0"])
EXPRESSIONS = st.recursive(
    LICENCES, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner), max_leaves=8
)


@given(EXPRESSIONS)
@settings(max_examples=80)
def test_expressions_keep_their_meaning_when_they_are_written_again(expression: str) -> None:
    """The meaning: for each set of allowed licences, whether the whole is allowed."""
    names = ["MIT", "CC-BY-4.0", "CC-BY-NC-4.0", "CC0-1.0", "GFDL", "Apache-2.0"]
    written = spdx(expression)
    assert spdx(written) == written != UNKNOWN
    python = re.sub(
        r"[A-Za-z][\w.-]*", lambda m: m[0].lower() if m[0] in ("AND", "OR") else f"('{m[0]}' in x)", expression
    )
    for bits in range(64):
        allowed = {name for place, name in enumerate(names) if bits >> place & 1}
        full = {"LicenseRef-GFDL" if name == "GFDL" else name for name in allowed}
        assert is_allowed(written, allowed) == eval(python, {"x": full})


def test_the_default_policy_excludes_non_commercial_and_reserved() -> None:
    for written, reason in [
        ("CC BY-NC 4.0", "licence-forbidden"),
        ("CC BY-ND 4.0", "licence-forbidden"),
        ("All rights reserved", "licence-forbidden"),
        ("", "licence-unknown"),
    ]:
        with pytest.raises(BadRecord) as caught:
            check_licence(written, DEFAULT_ALLOWED)
        assert caught.value.reason == reason


def test_a_policy_that_can_match_nothing_is_an_error() -> None:
    check_policy([*DEFAULT_ALLOWED, "CC-BY-NC-4.0", "LicenseRef-AN4"])
    with pytest.raises(ConfigError, match="CC-BY"):
        check_policy(["cc by"])


@pytest.mark.parametrize(
    ("licence", "message"), [("CC BI 4", "not a known licence"), ("CC BY-NC 4.0", "CC-BY-NC-4.0 is not an allowed")]
)
def test_a_licence_for_all_that_would_drop_them_all_is_an_error(licence: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_policy(DEFAULT_ALLOWED, licence)
    check_policy([*DEFAULT_ALLOWED, "CC-BY-NC"], "cc by-nc 4.0")
