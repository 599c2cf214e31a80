"""What a user may set of `apply`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import Params


class ApplyParams(Params):
    """Rows through a function of your own: a normaliser, a language identifier, a filter."""

    function: str = Field(
        min_length=3,
        description="package.module:function or FILE.py:function, called with Arrow record batches; every worker must "
        "be able to import it",
    )
    table: Literal["rows", "cues"] = Field(
        "rows", description="rows: the artifact's own table; cues: the transcripts of recordings"
    )
    batch_rows: int = Field(
        4096,
        ge=1,
        description="most rows of a batch; a smaller one needs less memory for what the function makes of it",
    )
    code_version: str = Field(
        "",
        description="your name for what the function does, which replaces the digest of its file in the job: set it "
        "where it depends on other files, or so that a change of comments makes nothing again",
    )

    def identity(self) -> dict[str, Any]:
        """A changed file is another job, unless its author says which version it is."""
        from megahour.core.hooks import code_digest

        return {**super().identity(), "code": self.code_version or code_digest(self.function)}
