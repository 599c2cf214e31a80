"""Parameters of what stages lay out for their tasks."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import Params


class BesideParams(Params):
    """Join rows of a table by key to the shards that own the keys."""

    columns: list[str] = Field(default=[], description="Columns kept beside the key.")
    owners_suffix: str = Field(default=".parquet", description="File suffix of the shards that own the keys.")
    rows_suffix: str = Field(default=".parquet", description="File suffix of the shards with the rows.")
    keys: int = Field(default=1_000_000, ge=1, description="Keys per partition. Use fewer for large rows.")
    most: int = Field(
        default=1024,
        ge=1,
        description="Largest number of tasks, and of shards, in each exchange. Use more for large rows.",
    )
