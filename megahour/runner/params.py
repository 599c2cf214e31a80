"""Parameters of what stages lay out for their tasks."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import Params


class BesideParams(Params):
    """Which columns of which tables meet by their keys."""

    columns: list[str] = Field(default=[], description="columns that go along with the key")
    owners_suffix: str = Field(default=".parquet", description="file of the owners' shards that has their keys")
    rows_suffix: str = Field(default=".parquet", description="file that has the rows")
    keys: int = Field(default=1_000_000, ge=1, description="keys that meet in one partition: fewer of large rows")
    most: int = Field(default=1024, ge=1, description="tasks, and shards, of either exchange: more of large rows")
