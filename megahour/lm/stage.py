"""Stage `language-model`: text to an ARPA n-gram model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from megahour.core.config import Params
from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

BYTES_PER_WORD_AND_ORDER = 75
"""Peak memory, rounded up: 156 bytes a word for order 3 and 366 for order 5, measured on 2.2 million words of news."""


class LanguageModelParams(Params):
    """Interpolated modified Kneser-Ney n-grams from text."""

    source: list[str] = Field([], description="text files, URLs or globs, one sentence a line, .gz too")
    sets: list[str] = Field([], description="sets whose transcripts count; empty: all of the given tables")
    language: str = Field("", description="normalise the text as this language first; empty: the text is normalised")
    order: int = Field(3, ge=1, le=10, description="longest n-gram")
    prune: list[int] = Field([0], description="drop k-grams seen at most so often, for k = 1, 2, …; the last one lasts")
    vocabulary: int = Field(0, ge=0, description="keep so many most frequent words, others are <unk>; 0: all")
    shards: int = Field(1, ge=1, description="count in so many history shards one after the other; same result")
    max_words: int = Field(20_000_000, ge=1, description="refuse longer text before it fills the memory")

    def identity(self) -> dict[str, Any]:
        """With a digest of the files, so that changed text is counted again."""
        from megahour.units.texts import files_digest

        return {**super().identity(), "source_sha256": files_digest(self.source)}


class LanguageModel(Stage[LanguageModelParams]):
    """Counts, smooths and writes `.arpa` and `.vocab.txt` (one word a line, without the specials)."""

    name = "language-model"
    params = LanguageModelParams
    inputs = (Input("text", optional=True), Input("selection", optional=True), Input("features", optional=True))

    def plan(self, p: LanguageModelParams, inputs: Inputs) -> list[Task]:
        if not p.source and not inputs:
            raise ConfigError(
                "no text", where="language-model", remedy="give the input `text` or the parameter `source`"
            )
        return [Task({})]

    def run(self, p: LanguageModelParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.arpa import write_arpa
        from megahour.lm.count import encode
        from megahour.lm.kneser_ney import estimate
        from megahour.lm.vocabulary import UNK, Vocabulary, count_words

        counts = count_words(_limited(_lines(p, inputs), p))
        vocabulary = Vocabulary.from_counts(counts, p.vocabulary)
        corpus = encode(_lines(p, inputs), vocabulary)
        if not corpus.words:
            raise StageError("the text has no words", remedy="check `source`, `sets` and the input `text`")
        ctx.progress(1, 2, "steps", words=corpus.words)
        estimated = estimate(corpus, vocabulary, p.order, p.prune, p.shards)
        with out.open(".arpa") as file:
            write_arpa(estimated.model, file)
        out.text("".join(f"{word}\n" for word in vocabulary.words[3:]), ".vocab.txt")
        sentences = int((corpus.depth == 0).sum())
        out.came_in(sentences)
        out.kept(sentences)
        out.stats.update(
            words=corpus.words - sentences,
            unknown_words=int((corpus.tokens == UNK).sum()),
            types=len(counts),
            ngrams=estimated.model.sizes,
            discounts=[list(values) for values in estimated.discounts],
            fallbacks={str(k): why for k, why in estimated.fallbacks.items()},
        )

    def finish(self, p: LanguageModelParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return {"order": p.order, **receipts[0].stats}


def _lines(p: LanguageModelParams, inputs: Inputs) -> Iterator[str]:
    """All sentences: inputs first, then the files."""
    from megahour.units.texts import file_lines, input_lines

    for part in (input_lines(inputs, p.sets), file_lines(p.source)):
        yield from (_normalised(part, p.language) if p.language else part)


def _normalised(lines: Iterator[str], language: str) -> Iterator[str]:
    from megahour.corpus.text import normalise

    return (normalise(line, language).text for line in lines)


def _limited(lines: Iterator[str], p: LanguageModelParams) -> Iterator[str]:
    words, each = 0, BYTES_PER_WORD_AND_ORDER * p.order
    for line in lines:
        words += line.count(" ") + 1
        if words > p.max_words:
            raise StageError(
                f"more than {p.max_words} words; order {p.order} needs about {each} bytes for each",
                remedy=f"give less text, or raise max_words where more than {p.max_words * each / 1e9:.1f} GB are free",
            )
        yield line
