"""The parameters of `apply`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import Params


class ApplyParams(Params):
    """Apply a function of your own to rows.

    It can be a normaliser, a language identifier or a filter.
    """

    function: str = Field(min_length=3)
    """package.module:function or FILE.py:function, called with Arrow record batches. Every worker must be able to
    import it."""
    table: Literal["rows", "cues"] = "rows"
    """rows: the artifact's own table. cues: the transcripts of recordings."""
    batch_rows: int = Field(4096, ge=1)
    """Largest number of rows per batch. Smaller batches need less memory in the function."""
    code_version: str = ""
    """Version of the function, used in the fingerprint instead of the digest of its file. Set it if the function
    depends on other files, or so that edited comments do not run the stage again."""

    def identity(self) -> dict[str, Any]:
        """A changed file is another job, unless its author says which version it is."""
        from megahour.core.hooks import code_digest

        return {**super().identity(), "code": self.code_version or code_digest(self.function)}

    def reach(self) -> None:
        """The function's file, which is not run."""
        from megahour.core.hooks import check_file

        check_file(self.function, "function")
