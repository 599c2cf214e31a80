"""The reference describes every column, and no other."""

from __future__ import annotations

from megahour.cli.reference_tables import MEANING, TABLES, side_reference, table_reference
from megahour.core.schemas import SELECTION, UTTERANCES


def test_every_column_has_a_meaning_and_every_meaning_a_column() -> None:
    names = {name for _, schema in TABLES.values() for name in schema.names}
    assert names == set(MEANING)
    assert set(SELECTION.names) == {*UTTERANCES.names, *TABLES["selection"][1].names}


def test_the_reference_is_made_of_them() -> None:
    lines = list(table_reference())
    assert "| `cue` | int32 | " + MEANING["cue"] + " |" in lines
    assert [line for line in lines if line.startswith("### ")] == [f"### Table: {name}" for name in TABLES]
    assert "| licence | `licence`, `license`, `licenseurl`, `license_url` |" in list(side_reference())
