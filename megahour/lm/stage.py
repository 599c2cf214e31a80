"""Stage `language-model`: estimates an ARPA n-gram model from text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import Artifact, Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Task
from megahour.lm.params import LanguageModelParams
from megahour.lm.text.token_lines import TokenLines
from megahour.units.listed_pieces import ListedPieces
from megahour.units.spellers import form_of, speller_of
from megahour.units.tokens import BLANK, Characters

if TYPE_CHECKING:
    from megahour.lm.text.sources import Block


class LanguageModel(SingleShard[LanguageModelParams]):
    """Counts, smooths and writes `.arpa` and `.vocab.txt` (one word per line, without the specials).

    With the input `tokens` it is a model of tokens, for `decode`: the text is spelled in the tokens of an artifact of
    stage `tokens`, or in the characters or pieces of a *model*, with the space as ▁. Lines with other characters
    are dropped.
    """

    name = "language-model"
    version = 2
    params = LanguageModelParams
    inputs = (
        *Input.if_given("text", "selection", "features"),
        Input("tokens", optional=True, kinds=("tokens", "model")),
    )

    def check(self, p: LanguageModelParams, roles: Collection[str]) -> None:
        if not p.source and not set(roles) - {"tokens"}:
            raise ConfigError("no text", where=self.name, remedy="give the input `text` or the parameter `source`")

    def plan(self, p: LanguageModelParams, inputs: Inputs) -> list[Task]:
        from megahour.units.texts import check_text_sets

        check_text_sets(inputs, p.sets, where=self.name)
        return super().plan(p, inputs)

    def run(self, p: LanguageModelParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.text.sources import text_bytes
        from megahour.lm.text.tokenise import RESERVED
        from megahour.lm.train import fit, read

        room = text_bytes(p.source) // 2
        spelling = _spelling(inputs["tokens"]) if "tokens" in inputs else None
        reading = read(p, _blocks(p, inputs, spelling), utf8=True, max_tokens=p.max_words, room=room)
        if not reading.words:
            raise StageError("the text has no words", remedy="check `source`, `sets` and the input `text`")

        def progress(phase: str, done: int, total: int) -> None:
            ctx.progress(done, total, "partitions", phase=phase)

        corpus, model = reading.corpus, fit(p, reading, out.path(".arpa"), 1, progress)
        words = (corpus.spell(number) + b"\n" for number in range(len(RESERVED), corpus.size))
        with out.open(".vocab.txt") as file:  # a list of words may have any encoding
            file.writelines(words)
        out.came_in(reading.sentences)
        if spelling is not None:
            out.came_in(spelling.left_out)
            out.drop("not-spellable", spelling.left_out)
        out.kept(reading.sentences)
        out.stats.update(
            words=reading.words,
            unknown_words=reading.unknown,
            empty_sentences=reading.empty,
            skipped_symbols=reading.reserved,
            types=reading.types,
            ngrams=model.sizes,
            discounts=[list(values) for values in model.discounts],
            fallbacks={str(k): why for k, why in model.fallbacks.items()},
        )

    def finish(self, p: LanguageModelParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"order": p.order, **receipts[0].stats}


def _spelling(artifact: Artifact) -> TokenLines:
    """The speller of an artifact of tokens or a model. Raises ConfigError: a model that cannot spell text."""
    if form_of(artifact):
        return TokenLines(speller_of(artifact))
    config = artifact.read_json(0, ".model.json")
    if not config.get("tokens"):
        remedy = "give the artifact of stage `tokens` that it was trained with"
        raise ConfigError("a model without tokens cannot spell a text", where=artifact.url, remedy=remedy)
    if config.get("marks"):
        return TokenLines(ListedPieces.of(config))
    return TokenLines(Characters((BLANK, *config["tokens"][1:])))


def _blocks(p: LanguageModelParams, inputs: Inputs, spelling: TokenLines | None) -> Iterator[Block]:
    from megahour.lm.estimate.reading import lines_of
    from megahour.lm.text.sources import blocks, line_blocks
    from megahour.units.texts import input_lines

    given = input_lines(inputs, p.sets)
    if not p.language and spelling is None:
        yield from line_blocks(given, "transcripts and the input `text`")
        yield from blocks(p.source)
        return
    for name, lines in (("transcripts and the input `text`", given), ("the text", lines_of(blocks(p.source)))):
        normalised = _normalised(lines, p.language) if p.language else lines
        yield from line_blocks(spelling(normalised) if spelling else normalised, f"{name}, normalised")


def _normalised(lines: Iterable[str], language: str) -> Iterator[str]:
    """Normalised lines, without empty ones."""
    from megahour.corpus.text.normalise import normalise

    return (text for line in lines if (text := normalise(line, language).text))
