"""Parameters of what stages lay out for their tasks."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import Params


class BesideParams(Params):
    """Join rows of a table by key to the shards that own the keys."""

    columns: list[str] = Field([])
    """Columns kept beside the key."""
    owners_suffix: str = ".parquet"
    """File suffix of the shards that own the keys."""
    rows_suffix: str = ".parquet"
    """File suffix of the shards with the rows."""
    keys: int = Field(1_000_000, ge=1)
    """Keys per partition. Use fewer for large rows."""
    most: int = Field(1024, ge=1)
    """Largest number of tasks, and of shards, in each exchange. Use more for large rows."""
