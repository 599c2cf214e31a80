"""Stages' requests to a store, and their computation, grow no faster than the number of shards.

Function calls stand for CPU time, which says nothing on a machine that others use. Tasks never read all receipts.
"""

from __future__ import annotations

import pytest
from growing import WORK, Corpus, asked, growth

SIZES = (10, 20, 40)
LISTS_READ = 10  # of all receipts, by the driver, for all of a stage's artifacts together


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slow_store.DELAY_S", 0.0)
        return [Corpus(size, tmp_path_factory.mktemp("growing")) for size in SIZES]


@pytest.mark.parametrize("name", WORK)
def test_requests_bytes_calls_and_blocks_grow_with_the_shards(
    name: str, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slow_store.DELAY_S", 0.0)
    monkeypatch.setattr("megahour.select.duplicates_stage.FEW_BLOCKS", 0)  # all sizes by way of groups
    asked(WORK[name], corpora[0])  # imports what it needs
    found = [asked(WORK[name], corpus, calls=True) for corpus in corpora]
    assert found[0].requests > SIZES[0]
    assert growth([each.requests for each in found]) <= 1.05, found
    assert growth([each.bytes for each in found]) <= 1.05, found
    assert growth([each.calls for each in found]) <= 1.05, found
    if name == "duplicates":
        assert growth([each.blocks for each in found]) <= 1.05, found
    assert max(each.lists for each in found) <= LISTS_READ, found
