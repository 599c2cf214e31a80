"""Stage `language-model`: text to an ARPA n-gram model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError, StageError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.lm.estimate.partitions import Corpus
    from megahour.lm.estimate.reading import Reading
    from megahour.lm.estimate.sweep import Words
    from megahour.lm.text.sources import Block


class LanguageModelParams(Params):
    """Interpolated modified Kneser-Ney n-grams from text."""

    source: list[str] = Field(
        [], description="text files, URLs or globs, a sentence a line, .gz .xz .zst too; `FILE.parquet:COLUMN`"
    )
    sets: list[str] = Field([], description="sets whose transcripts count; empty: all of the given tables")
    language: str = Field("", description="normalise the text as this language first; empty: the text is normalised")
    order: int = Field(3, ge=1, le=7, description="longest n-gram")
    prune: list[int] = Field([0], description="drop k-grams seen at most so often, for k = 1, 2, …; the last one lasts")
    smoothing: Literal["kneser-ney", "good-turing", "stupid"] = Field(
        "kneser-ney", description="good-turing: Katz's back-off; stupid: stupid back-off, scores only"
    )
    vocabulary: int = Field(0, ge=0, description="keep so many most frequent words, others are <unk>; 0: all")
    vocabulary_file: str = Field("", description="keep the words of this list only, others are <unk>")
    limit_vocabulary: str = Field(
        "", description="drop n-grams with words that this list lacks, after counting, as lmplz --limit_vocab_file"
    )
    min_count: int = Field(1, ge=1, description="keep words seen at least so often, others are <unk>")
    skip_symbols: bool = Field(False, description="leave <s>, </s> and <unk> out of the text, which are errors else")
    max_words: int = Field(
        50_000_000, ge=1, description="refuse longer text; at order 5 a word takes 65 bytes of memory"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.prune[:1] not in ([], [0]) or self.prune != sorted(self.prune):
            raise ValueError(f"prune {self.prune} must begin with 0 and not decrease; limit words by the vocabulary")
        if len(self.prune) > self.order:
            raise ValueError(f"prune {self.prune} is for orders 1 to {len(self.prune)}, order is {self.order}")
        if self.smoothing != "kneser-ney" and self.limit_vocabulary:
            raise ValueError(f"{self.smoothing} takes vocabulary_file, not limit_vocabulary")
        if self.vocabulary_file and (self.vocabulary or self.min_count > 1):
            raise ValueError("vocabulary_file lists the words to keep; leave vocabulary and min_count out")
        return self

    def identity(self) -> dict[str, Any]:
        """With digests of the files, so that changed text is counted again."""
        from megahour.lm.text.sources import sources_digest

        lists = [path for path in (self.vocabulary_file, self.limit_vocabulary) if path]
        digests = {"source_sha256": sources_digest(self.source), "vocabulary_sha256": sources_digest(lists)}
        return {**super().identity(), **digests}


class LanguageModel(Stage[LanguageModelParams]):
    """Counts, smooths and writes `.arpa` and `.vocab.txt` (one word a line, without the specials)."""

    name = "language-model"
    version = 2
    params = LanguageModelParams
    inputs = (Input("text", optional=True), Input("selection", optional=True), Input("features", optional=True))

    def plan(self, p: LanguageModelParams, inputs: Inputs) -> list[Task]:
        if not p.source and not inputs:
            raise ConfigError(
                "no text", where="language-model", remedy="give the input `text` or the parameter `source`"
            )
        return [Task({})]

    def run(self, p: LanguageModelParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.estimate.estimate import estimate
        from megahour.lm.estimate.katz_model import estimate_katz
        from megahour.lm.text.tokenise import RESERVED

        reading = _read(p, inputs)
        if not reading.words:
            raise StageError("the text has no words", remedy="check `source`, `sets` and the input `text`")
        corpus = reading.corpus
        options: dict[str, Any] = {
            "prune": p.prune,
            "progress": lambda phase, done, total: ctx.progress(done, total, "partitions", phase=phase),
        }
        if p.smoothing == "good-turing":
            model = estimate_katz(corpus, p.order, out.path(".arpa"), **options)
        else:
            allowed = _allowed(p, corpus)
            model = estimate(corpus, p.order, out.path(".arpa"), allowed=allowed, smoothing=p.smoothing, **options)
        words = (corpus.spell(number).decode() for number in range(len(RESERVED), corpus.size))
        out.text("".join(f"{word}\n" for word in words), ".vocab.txt")
        out.came_in(reading.sentences)
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

    def finish(self, p: LanguageModelParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return {"order": p.order, **receipts[0].stats}


def _read(p: LanguageModelParams, inputs: Inputs) -> Reading:
    """The corpus of all inputs, then of the files."""
    from megahour.lm.estimate.reading import read_corpus, vocabulary_of
    from megahour.lm.text.sources import blocks, text_bytes

    return read_corpus(
        _blocks(p, inputs),
        vocabulary=vocabulary_of(blocks([p.vocabulary_file])) if p.vocabulary_file else None,
        most_frequent=p.vocabulary,
        min_count=p.min_count,
        skip_symbols=p.skip_symbols,
        utf8=True,
        max_tokens=p.max_words,
        room=text_bytes(p.source) // 2,
    )


def _allowed(p: LanguageModelParams, corpus: Corpus) -> Words:
    from megahour.lm.estimate.reading import allowed_words, vocabulary_of
    from megahour.lm.text.sources import blocks

    return allowed_words(corpus, vocabulary_of(blocks([p.limit_vocabulary]))) if p.limit_vocabulary else None


def _blocks(p: LanguageModelParams, inputs: Inputs) -> Iterator[Block]:
    from megahour.lm.estimate.reading import lines_of
    from megahour.lm.text.sources import blocks, line_blocks
    from megahour.units.texts import input_lines

    given = input_lines(inputs, p.sets)
    if not p.language:
        yield from line_blocks(given, "transcripts and the input `text`")
        yield from blocks(p.source)
        return
    yield from line_blocks(_normalised(given, p.language), "transcripts and the input `text`, normalised")
    yield from line_blocks(_normalised(lines_of(blocks(p.source)), p.language), "the text, normalised")


def _normalised(lines: Iterable[str], language: str) -> Iterator[str]:
    """Lines of which nothing is left are left out."""
    from megahour.corpus.text import normalise

    return (text for line in lines if (text := normalise(line, language).text))
