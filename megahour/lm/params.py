"""Options of language models, in groups that stages and commands inherit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from megahour.core.config import Options, Params
from megahour.core.errors import ConfigError

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_ORDER = 7


def parse_bytes(text: str) -> int:
    """A size in bytes, with decimal (4GB) or binary (4G) units. Raises ConfigError.

    >>> parse_bytes("4GB"), parse_bytes("4G")
    (4000000000, 4294967296)
    """
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
    """SHA-256 of the contents of files, which are part of a stage's identity; their names are not."""
    from megahour.lm.text.sources import sources_digest

    return sources_digest(list(sources))


class _Options(Options):
    model_config = ConfigDict(validate_default=True)


class TextOptions(_Options):
    """The text to count."""

    source: list[str] = Field([])
    """Text files, URLs or globs with one sentence per line, also .gz .xz .zst; or a column of a table,
    `FILE.parquet:COLUMN`."""
    skip_symbols: bool = False
    """Skip `<s>`, `</s>` and `<unk>` in the text instead of refusing it."""


class VocabularyOptions(_Options):
    """The words that the model knows. All others become `<unk>` before counting."""

    vocabulary: int = Field(0, ge=0)
    """Keep only this many of the most frequent words, to bound memory and model size. 0 keeps all."""
    vocabulary_file: str = ""
    """Keep exactly the words of this list, such as the recogniser's lexicon. It excludes `vocabulary` and
    `min_count`."""
    min_count: int = Field(1, ge=1)
    """Keep words that occur at least this often. Raise it for text with many misspellings."""

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if self.vocabulary_file and (self.vocabulary or self.min_count > 1):
            raise ValueError("vocabulary_file lists the words to keep; leave vocabulary and min_count out")
        return self


class CutoffOptions(_Options):
    """Count cut-offs, which `lmplz` calls pruning. Entropy pruning is the stage `lm-prune`."""

    prune: list[int] = Field([0])
    """Count cut-offs: drop k-grams that occur at most this often, for k = 1, 2, …; the last number applies to all
    longer ones. 0,0,1 shrinks a large model several times and costs little accuracy."""

    @model_validator(mode="after")
    def _cutoffs_rise(self) -> Self:
        if self.prune[:1] not in ([], [0]) or self.prune != sorted(self.prune):
            raise ValueError(f"prune {self.prune} must begin with 0 and not decrease; limit words by the vocabulary")
        return self


class ModelOptions(CutoffOptions, VocabularyOptions, TextOptions):
    """Everything that shapes the numbers of an n-gram model."""

    order: int = Field(3, ge=1, le=MAX_ORDER)
    """Longest n-gram, in words. 4 or 5 pay off from about 100 million words."""
    smoothing: Literal["kneser-ney", "good-turing", "witten-bell", "witten-bell-backoff", "stupid"] = "kneser-ney"
    """kneser-ney: interpolated modified Kneser-Ney, the best choice. good-turing: Katz back-off. witten-bell:
    interpolated, for small or repetitive text whose counts give Kneser-Ney no discounts. witten-bell-backoff: the same
    as a back-off model. stupid: relative frequencies, whose scores do not sum to one."""
    limit_vocabulary: str = ""
    """Count all words, then drop n-grams with words outside this list (lmplz --limit_vocab_file)."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if len(self.prune) > self.order:
            raise ValueError(f"prune {self.prune} is for orders 1 to {len(self.prune)}, but order is {self.order}")
        if self.smoothing != "kneser-ney" and self.limit_vocabulary:
            raise ValueError(f"{self.smoothing} takes vocabulary_file, not limit_vocabulary")
        return self


class LanguageModelParams(ModelOptions, Params):
    """Estimate an n-gram language model from text.

    The default smoothing is interpolated modified Kneser-Ney.
    """

    sets: list[str] = Field([])
    """Sets whose transcripts are counted. Empty: all sets of the given tables."""
    language: str = ""
    """Normalise the text by the rules of this language first. Empty: it is normalised already."""
    max_words: int = Field(50_000_000, ge=1)
    """Refuse longer text, because it is held in memory: 65 bytes per word at order 5."""

    def identity(self) -> dict[str, Any]:
        """With digests of the files, so that changed text is counted again."""
        lists = [path for path in (self.vocabulary_file, self.limit_vocabulary) if path]
        return {
            **super().identity(), "source_sha256": digest_of(self.source), "vocabulary_sha256": digest_of(lists)
        }  # fmt: skip

    def reach(self) -> None:
        """The text and the word lists."""
        from megahour.lm.text.sources import source_files

        source_files([*self.source, *filter(None, (self.vocabulary_file, self.limit_vocabulary))])


class TrainOptions(ModelOptions):
    """Options of `megahour lm train`."""

    out: str
    """Output file: .arpa, .arpa.gz .xz .zst, or .mlm (memory-mapped)."""
    memory: str = ""
    """Memory limit, such as 4GB; data beyond it go to disk. Empty: the whole text is held in memory."""
    scratch: str = ""
    """Directory for data beyond --memory, best on a fast disk. Empty: beside --out."""
    threads: int = Field(2, ge=1, le=256)
    """Number of threads. The bytes of the model do not depend on it."""
    tokenizer: str = ""
    """Spell the text in the tokens of FILE first, to go with a recogniser of tokens: a sentencepiece .model, a
    tokenizer.json, a vocab.json or a list of characters."""
    counts: bool = False
    """The sources are n-gram counts, not text: files of SRILM's ngram-count -write or folders in Google's format.
    Counts of several sources are added."""
    token_form: Literal["pieces", "ids", "nemo"] = "pieces"
    """How tokens are written. pieces: as icefall and `decode` expect. ids: their numbers. nemo: the character of number
    + 100, for NeMo's decoding with KenLM."""

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
        """Raises ValueError: an option needs the text."""
        for name in ("memory", "tokenizer", "limit_vocabulary", "skip_symbols"):
            if getattr(self, name):
                raise ValueError(f"--{name.replace('_', '-')} needs text; leave it out with --counts")
        if self.smoothing == "stupid" or self.out.endswith(".mlm"):
            what = "--smoothing stupid" if self.smoothing == "stupid" else "an .mlm file"
            raise ValueError(f"{what} needs text; with --counts choose another smoothing, and .arpa")


class CountOptions(VocabularyOptions, TextOptions):
    """Options of `megahour lm count`."""

    out: str
    """Output file, also .gz .xz .zst; with --form google a folder."""
    order: int = Field(3, ge=1, le=MAX_ORDER)
    """Longest n-gram, in words. All shorter ones are counted too."""
    form: Literal["srilm", "google"] = "srilm"
    """srilm: lines with words, a tab and a count, as ngram-count -write. google: a folder with 1gms, 2gms …, for
    ngram-count -read-google."""
    counts: bool = False
    """The sources are counts already: add them up or change their format."""


class WordsParams(TextOptions, Params):
    """Count the words of a text by hash: the first step of a language model on a cluster."""

    piece_mb: int = Field(64, ge=1)
    """Megabytes of a plain text file per task."""
    parts: int = Field(4, ge=1)
    """Partitions of the words."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the files, so that changed text is counted again."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class VocabularyParams(VocabularyOptions, Params):
    """Number the vocabulary of `lm-words` and plan the shards of its language model."""

    order: int = Field(3, ge=2, le=MAX_ORDER)
    """Longest n-gram, in words."""
    shard_rows: int = Field(1 << 20, ge=1)
    """Text positions per shard, about 400 bytes each at order 5. It rises by itself when a text would need more than
    16,384 shards."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the list, if there is one."""
        listed = {"vocabulary_sha256": digest_of([self.vocabulary_file])} if self.vocabulary_file else {}
        return {**super().identity(), **listed}


class BoundedParams(CutoffOptions, VocabularyParams, TextOptions):
    """Estimate a language model of a text larger than memory, in one task on one machine."""

    def identity(self) -> dict[str, Any]:
        """With digests of the files, so that changed text is counted again."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class ShardsParams(Params):
    """Shard the positions of a text by the last word of their history: round 1 of progressive sharding."""


class ReshardParams(Params):
    """Split histories that are too large for a shard by one more word: later rounds of progressive sharding."""

    rows_per_task: int = Field(1 << 22, ge=1)
    """Text positions moved by one task."""


class TallyParams(CutoffOptions, Params):
    """Count the n-grams of all shards of a language model, and the sums that shards need from each other."""

    ranges: int = Field(4, ge=1)
    """Partitions of the sums over words."""
    groups: int = Field(64, ge=1)
    """Partitions of the sums over contexts."""


class EstimateParams(Params):
    """Estimate probabilities and back-offs of all shards of a language model, as lines of an ARPA file."""


class ArpaParams(Params):
    """Join the lines of `lm-estimate` into one ARPA file with its word list."""


class SeveralModels(Params):
    """Models that a stage reads besides the artifacts `lm1`, `lm2`, …"""

    files: list[str] = Field([])
    """Further models as files, after lm1, lm2, …: .arpa, .arpa.gz …, or .mlm."""

    def identity(self) -> dict[str, Any]:
        """With digests of the files."""
        return {**super().identity(), "files_sha256": [digest_of([path]) for path in self.files]}


class InterpolateParams(SeveralModels):
    """Interpolate language models, with given or tuned weights."""

    weights: list[float] = Field([])
    """One weight ≥ 0 per model, summing to 1, in the order lm1, lm2, …, files. Empty: tune them by EM."""
    heldout: list[str] = Field([])
    """Text to tune the weights on, such as transcripts of the target domain. Alternatively give the input `text`."""
    unknown: Literal["zero", "share"] = "zero"
    """A model's probability of words that only other models know: zero, or an equal share of its `<unk>`."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the held-out text."""
        return {**super().identity(), "heldout_sha256": digest_of(self.heldout)}


class PruneSize(_Options):
    """Size of a pruned model."""

    threshold: float = Field(0.0, ge=0.0)
    """Drop n-grams that change the perplexity by a smaller share than this, such as 1e-8. Raise it for a smaller
    model."""
    ngrams: int = Field(0, ge=0)
    """Alternatively keep at most this many n-grams, for a model of a given size."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.threshold > 0) == (self.ngrams > 0):
            raise ValueError("give one of threshold (such as 1e-8) and ngrams, above 0")
        return self


class PruneParams(PruneSize, Params):
    """Prune a language model by entropy (Stolcke 1998).

    It drops the n-grams that change the model least.
    """

    shortest: int = Field(2, ge=2)
    """Keep all n-grams shorter than this."""
    history_text: list[str] = Field([])
    """Text in which contexts are counted, best the training text; Kneser-Ney models lose less with it. Alternatively
    give the input `text`, or another model as the input `history`."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "history_sha256": digest_of(self.history_text)}


class PerplexityParams(SeveralModels):
    """Compute the perplexity of language models on a text."""

    source: list[str] = Field([])
    """Text files, URLs or globs with one sentence per line. Alternatively give the input `text`."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class ConvertParams(Params):
    """Convert a language model to another file format.

    Formats are ARPA, compressed or not, memory-mapped, and KenLM's binary ones.
    """

    form: Literal["mlm", "arpa", "arpa.gz", "arpa.xz", "arpa.zst", "kenlm-probing", "kenlm-trie"] = "mlm"
    """mlm: opens in a millisecond at any size, and processes share its memory. arpa: for other tools. kenlm-probing,
    kenlm-trie: for programs that read KenLM's binary files; the trie is smaller and slower."""
