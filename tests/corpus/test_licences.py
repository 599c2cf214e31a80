"""Licences: what people write becomes SPDX identifiers, and only what a policy names is used."""

from __future__ import annotations

import pytest

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.licences import DEFAULT_ALLOWED, UNKNOWN, check_licence, check_policy, is_allowed, spdx


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
