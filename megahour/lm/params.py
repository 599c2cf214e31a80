"""Options of language models. Each is declared once; stages and commands inherit the groups that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_ORDER = 7


def parse_bytes(text: str) -> int:
    """``4GB`` → 4,000,000,000, ``4G`` → 4,294,967,296. Raises ConfigError."""
    number = text.strip().upper()
    factor = 1
    for unit, value in UNITS.items():
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), value
            break
    try:
        size = int(float(number) * factor)
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ConfigError(f"{text!r} is not a size", remedy="write it as 500MB, 4GB or 4G")
    return size


def digest_of(sources: Sequence[str]) -> str:
    """SHA-256 of the contents of files: they are part of a stage's identity, their names are not."""
    from megahour.lm.text.sources import sources_digest

    return sources_digest(list(sources))


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TextOptions(_Options):
    """Which text is counted."""

    source: list[str] = Field(
        [], description="text files, URLs or globs, a sentence a line, .gz .xz .zst too; `FILE.parquet:COLUMN`"
    )
    skip_symbols: bool = Field(
        False, description="skip <s>, </s> and <unk> where the text contains them, instead of refusing the text"
    )


class VocabularyOptions(_Options):
    """Which words the model knows; all others become `<unk>` before counting."""

    vocabulary: int = Field(
        0, ge=0, description="keep only this many of the most frequent words, to bound memory and model size; 0: all"
    )
    vocabulary_file: str = Field(
        "", description="keep exactly the words of this list, such as the recogniser's lexicon; excludes the other two"
    )
    min_count: int = Field(
        1, ge=1, description="keep words that occur at least this often; raise it for text with many misspellings"
    )

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if self.vocabulary_file and (self.vocabulary or self.min_count > 1):
            raise ValueError("vocabulary_file lists the words to keep; leave vocabulary and min_count out")
        return self


class CutoffOptions(_Options):
    """Count cut-offs, which `lmplz` and this option call pruning; entropy pruning is the stage `lm-prune`."""

    prune: list[int] = Field(
        [0],
        description="count cut-offs: drop k-grams that occur at most this often, for k = 1, 2, …; the last number "
        "holds for longer ones. 0,0,1 shrinks a large model several times at little cost",
    )

    @model_validator(mode="after")
    def _cutoffs_rise(self) -> Self:
        if self.prune[:1] not in ([], [0]) or self.prune != sorted(self.prune):
            raise ValueError(f"prune {self.prune} must begin with 0 and not decrease; limit words by the vocabulary")
        return self


class ModelOptions(CutoffOptions, VocabularyOptions, TextOptions):
    """Everything that shapes the numbers of an n-gram model."""

    order: int = Field(
        3, ge=1, le=MAX_ORDER, description="longest n-gram, in words; 4 or 5 pay off from some 100 million words on"
    )
    smoothing: Literal["kneser-ney", "good-turing", "witten-bell", "witten-bell-backoff", "stupid"] = Field(
        "kneser-ney",
        description="kneser-ney: interpolated, modified, the best choice; good-turing: Katz's back-off; witten-bell: "
        "interpolated, for small or repetitive text, where Kneser-Ney finds no discounts; witten-bell-backoff: the "
        "same that backs off; stupid: relative frequencies, scores that do not sum to one",
    )
    limit_vocabulary: str = Field(
        "", description="count all words, then drop n-grams with words that this list lacks (lmplz --limit_vocab_file)"
    )

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if len(self.prune) > self.order:
            raise ValueError(f"prune {self.prune} is for orders 1 to {len(self.prune)}, order is {self.order}")
        if self.smoothing != "kneser-ney" and self.limit_vocabulary:
            raise ValueError(f"{self.smoothing} takes vocabulary_file, not limit_vocabulary")
        return self


class LanguageModelParams(ModelOptions, Params):
    """Interpolated modified Kneser-Ney n-grams from text."""

    sets: list[str] = Field([], description="sets whose transcripts count; empty: all of the given tables")
    language: str = Field("", description="normalise the text as this language first; empty: it is normalised already")
    max_words: int = Field(
        50_000_000, ge=1, description="refuse longer text; at order 5 a word takes 65 bytes of memory"
    )

    def identity(self) -> dict[str, Any]:
        """With digests of the files, so that changed text is counted again."""
        lists = [path for path in (self.vocabulary_file, self.limit_vocabulary) if path]
        return {
            **super().identity(), "source_sha256": digest_of(self.source), "vocabulary_sha256": digest_of(lists)
        }  # fmt: skip


class TrainOptions(ModelOptions):
    """What `megahour lm train` takes."""

    out: str = Field(description="file to write: .arpa, .arpa.gz .xz .zst, or .mlm (mapped)")
    memory: str = Field(
        "", description="bound memory to SIZE, such as 4GB: the rest goes to disk; empty: hold the text in memory"
    )
    scratch: str = Field(
        "", description="directory for what does not fit into --memory, best on a fast disk; empty: beside --out"
    )
    threads: int = Field(2, ge=1, le=256, description="threads; the bytes do not depend on it")
    tokenizer: str = Field(
        "",
        description="spell the text in the tokens of FILE first, for a model that goes with a recogniser of tokens: a "
        "sentencepiece .model, a tokenizer.json, a vocab.json or a list of characters",
    )
    counts: bool = Field(
        False,
        description="the sources are counts of n-grams, not text: files as SRILM's ngram-count -write makes them, or "
        "folders as Google's; of several files they are added up",
    )
    token_form: Literal["pieces", "ids", "nemo"] = Field(
        "pieces",
        description="what is written for a token: pieces, as icefall and `decode` take them; ids, their numbers; nemo, "
        "the character of number + 100, for NeMo's decoding with KenLM",
    )

    @model_validator(mode="after")
    def _memory_fits(self) -> Self:
        mapped = self.out.endswith(".mlm")
        if self.counts:
            self._counts_fit()
        if self.memory:
            parse_bytes(self.memory)
            if mapped:
                raise ValueError("--memory writes ARPA files only; train to .arpa, then: megahour lm convert")
            if self.smoothing != "kneser-ney":
                raise ValueError(f"--smoothing {self.smoothing} holds the text in memory; leave --memory out")
            if self.limit_vocabulary:
                raise ValueError("--limit-vocabulary does not go with --memory; leave one out, or --vocabulary-file")
        if mapped and self.smoothing != "kneser-ney":
            raise ValueError(
                f"--smoothing {self.smoothing} writes ARPA files only; train to .arpa, then: megahour lm convert"
            )
        return self

    def _counts_fit(self) -> None:
        """Raises ValueError: an option that wants the text."""
        for name in ("memory", "tokenizer", "limit_vocabulary", "skip_symbols"):
            if getattr(self, name):
                raise ValueError(f"--{name.replace('_', '-')} wants text; with --counts leave it out")
        if self.smoothing == "stupid" or self.out.endswith(".mlm"):
            what = "--smoothing stupid" if self.smoothing == "stupid" else "an .mlm file"
            raise ValueError(f"{what} is made from text; with --counts take another smoothing, and .arpa")


class CountOptions(VocabularyOptions, TextOptions):
    """What `megahour lm count` takes."""

    out: str = Field(description="file to write, .gz .xz .zst too; or with --form google a folder")
    order: int = Field(3, ge=1, le=MAX_ORDER, description="longest n-gram, in words; all shorter ones are counted too")
    form: Literal["srilm", "google"] = Field(
        "srilm",
        description="srilm: lines of words, a tab and a count, as ngram-count -write; google: a folder with 1gms, "
        "2gms …, as ngram-count -read-google takes it",
    )
    counts: bool = Field(False, description="the sources are counts already: add them up, or change their form")


class WordsParams(TextOptions, Params):
    """Words of a text and their counts, by hash: the first step of a language model on a cluster."""

    piece_mb: int = Field(64, ge=1, description="megabytes of a plain file that one task reads")
    parts: int = Field(4, ge=1, description="partitions of the words")

    def identity(self) -> dict[str, Any]:
        """With a digest of the files, so that changed text is counted again."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class VocabularyParams(VocabularyOptions, Params):
    """The numbered vocabulary of `lm-words`, and how its language model is sharded."""

    order: int = Field(3, ge=2, le=MAX_ORDER, description="longest n-gram, in words")
    shard_rows: int = Field(
        1 << 20,
        ge=1,
        description="positions of a shard, about 400 bytes each at order 5; raised where a text has over 16,384 shards",
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the list, if there is one."""
        listed = {"vocabulary_sha256": digest_of([self.vocabulary_file])} if self.vocabulary_file else {}
        return {**super().identity(), **listed}


class ShardsParams(Params):
    """Positions of a text by the last word of their history: round 1 of progressive sharding."""


class ReshardParams(Params):
    """Histories too large for a shard, split by one more word: rounds 2 and later of progressive sharding."""

    rows_per_task: int = Field(1 << 22, ge=1, description="positions that one task moves")


class TallyParams(CutoffOptions, Params):
    """Counts of all shards of a language model, and what shards must know of each other."""

    ranges: int = Field(4, ge=1, description="partitions of the sums of words")
    groups: int = Field(64, ge=1, description="partitions of the sums of contexts")


class EstimateParams(Params):
    """Probabilities and back-offs of all shards of a language model, as lines of an ARPA file."""


class ArpaParams(Params):
    """One ARPA file and its word list out of the lines of `lm-estimate`."""


class SeveralModels(Params):
    """Models that a stage reads besides the artifacts `lm1`, `lm2`, …"""

    files: list[str] = Field([], description="further models as files, after lm1, lm2, …: .arpa, .arpa.gz …, or .mlm")

    def identity(self) -> dict[str, Any]:
        """With digests of the files."""
        return {**super().identity(), "files_sha256": [digest_of([path]) for path in self.files]}


class InterpolateParams(SeveralModels):
    """Several language models merged into one, with weights given or tuned on held-out text."""

    weights: list[float] = Field(
        [],
        description="one weight ≥ 0 per model, summing to 1, in the order lm1, lm2, …, files; empty: tune them by EM",
    )
    heldout: list[str] = Field(
        [],
        description="text to tune the weights on, such as transcripts of the target domain; or give the input `text`",
    )
    unknown: Literal["zero", "share"] = Field(
        "zero",
        description="a model's probability of words that only others know: zero, or an equal share of its <unk>'s",
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the held-out text."""
        return {**super().identity(), "heldout_sha256": digest_of(self.heldout)}


class PruneSize(_Options):
    """How much of a model stays."""

    threshold: float = Field(
        0.0, ge=0.0, description="drop n-grams that change the perplexity by less than this share, such as 1e-8"
    )
    ngrams: int = Field(0, ge=0, description="or: keep at most this many n-grams, to meet a size")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.threshold > 0) == (self.ngrams > 0):
            raise ValueError("give one of threshold (such as 1e-8) and ngrams, above 0")
        return self


class PruneParams(PruneSize, Params):
    """Entropy pruning: a language model without the n-grams that change it least (Stolcke 1998)."""

    shortest: int = Field(2, ge=2, description="n-grams shorter than this stay")
    history_text: list[str] = Field(
        [],
        description="count contexts in this text, best the training text: Kneser-Ney models lose less then; or give "
        "the input `text`, or another model as the input `history`",
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "history_sha256": digest_of(self.history_text)}


class PerplexityParams(SeveralModels):
    """Perplexities of language models on a text."""

    source: list[str] = Field([], description="text files, URLs or globs, a sentence a line; or give the input `text`")

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class ConvertParams(Params):
    """A language model in another form: compressed, or mapped into memory when it is used."""

    form: Literal["mlm", "arpa", "arpa.gz", "arpa.xz", "arpa.zst", "kenlm-probing", "kenlm-trie"] = Field(
        "mlm",
        description="mlm: opens in a millisecond whatever its size, shared between processes; arpa: for other tools; "
        "kenlm-probing, kenlm-trie: for programs that map KenLM's binary files, the trie smaller and slower",
    )
