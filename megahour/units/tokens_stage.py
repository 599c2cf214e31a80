"""Stage `tokens`: pieces of words from text."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, SingleShard, Task
from megahour.units.params import TokensParams

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter


class MakeTokens(SingleShard[TokensParams]):
    """Writes `.spm.model`, for `train`, and `.tokens.txt`, a token a line, to read."""

    name = "tokens"
    params = TokensParams
    inputs = (Input("text", optional=True), Input("selection", optional=True), Input("features", optional=True))

    def check(self, p: TokensParams, roles: Collection[str]) -> None:
        if not roles:
            raise ConfigError("no text", where="tokens", remedy="give an input: text, selection or features")

    def run(self, p: TokensParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.pieces import Pieces, learn
        from megahour.units.texts import input_lines

        lines = 0

        def counted(line: str) -> str:
            nonlocal lines
            lines += 1
            return line

        texts = (counted(line) for line in islice(input_lines(inputs, p.sets), p.most_lines) if line.strip())
        model = learn(p, texts, where=" and ".join(artifact.url for artifact in inputs.values()))
        pieces = Pieces(model, where="tokens")
        with out.open(".spm.model") as file:
            file.write(model)
        out.text("".join(f"{token}\n" for token in pieces.tokens), ".tokens.txt")
        out.came_in(lines)
        out.kept(lines)
        out.stats.update(tokens=len(pieces), lines=lines)
