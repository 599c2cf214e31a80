"""Stage `tokens`: learns word pieces from text, or imports tokens from a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Task
from megahour.units.params import TokensParams


class MakeTokens(SingleShard[TokensParams]):
    """Writes a file in one of `spellers.FORMS`, for `train`, and `.tokens.txt`, one token per line, for people."""

    name = "tokens"
    version = 2
    params = TokensParams
    inputs = Input.if_given("text", "selection", "features")

    def check(self, p: TokensParams, roles: Collection[str]) -> None:
        if not roles and not p.file:
            raise ConfigError("no text", where="tokens", remedy="give an input (text, selection or features) or `file`")

    def remedies(self, p: TokensParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        if not receipts or not receipts[0].counts.came_in:
            return {}
        if p.file:
            letters = "check that they have the letters and the case of these texts, and mark where words begin"
            return {"not-spellable": f"{letters} (as Metaspace and ByteLevel of Hugging Face do)"}
        pieces = ", or take method unigram, which spells rare words in pieces" if p.method == "word" else ""
        return {"not-spellable": f"raise `size`{pieces}"}

    def plan(self, p: TokensParams, inputs: Inputs) -> list[Task]:
        if p.file and not p.differs("sets"):  # nothing is learnt, and the default need not be there
            return super().plan(p, inputs)
        from megahour.units.texts import check_text_sets

        check_text_sets(inputs, p.sets, where=self.name)
        return super().plan(p, inputs)

    def run(self, p: TokensParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.spellers import PIECES, from_elsewhere, speller
        from megahour.units.texts import input_lines

        def texts() -> Iterator[str]:
            return (line for line in islice(input_lines(inputs, p.sets), p.most_lines) if line.strip())

        if p.file:
            form, file = from_elsewhere(p.file)
        else:
            from megahour.units.pieces import learn

            form, file = PIECES, learn(p, texts(), where=" and ".join(artifact.url for artifact in inputs.values()))
        tokens = speller(form, file, where=p.file or "tokens")
        with out.open(form) as opened:
            opened.write(file)
        out.text("".join(f"{token}\n" for token in tokens.tokens), ".tokens.txt")
        kept = lines = 0
        for line in texts():
            lines += 1
            kept += tokens.spellable(" ".join(line.split()))
        out.came_in(lines)
        out.kept(kept)
        out.drop("not-spellable", lines - kept)
        out.stats.update(tokens=len(tokens.tokens), lines=lines)
