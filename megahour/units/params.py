"""What a user may set of `units`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params


class SenonesParams(Params):
    """Senones, their tree and frame alignments of the labelled sets, from a flat start."""

    sets: list[str] = Field(["labelled"], description="sets with transcripts that are aligned")
    senones: int = Field(300, ge=2, le=32_767, description="leaves of the trees, silence among them")
    min_frames: float = Field(60.0, ge=1, description="10 ms frames that each side of a split must have")
    iterations: int = Field(4, ge=1, description="Viterbi passes with one Gaussian per phone")
    mixtures: int = Field(4, ge=1, le=64, description="Gaussians per phone at the end; doubled every two passes")
    phone_hours: float = Field(
        20.0,
        ge=0,
        description="hours of the labelled sets that the phones' Gaussians learn from, drawn by utterance; 0: all. "
        "More cost time in each of their passes and change little",
    )
    tree_hours: float = Field(
        500.0, ge=0, description="the same for the trees, the transform and the senones' Gaussians; all is aligned"
    )
    senone_mixtures: int = Field(
        0,
        ge=0,
        le=64,
        description="Gaussians per senone at the end, doubled every two passes, which then align; 0: the phones' "
        "Gaussians align. Each doubling costs two passes",
    )
    transform: Literal["none", "lda", "lda-mllt"] = Field(
        "none",
        description="what trees and senones see: cepstra with differences; discriminant directions of spliced "
        "cepstra (lda); the same, turned to fit diagonal Gaussians (lda-mllt, with senone_mixtures)",
    )
    lda_dims: int = Field(40, ge=1, le=200, description="dimensions after lda")
    splice: int = Field(3, ge=0, le=10, description="frames on each side that lda sees; 0: cepstra with differences")
    unknown: str = Field(
        "",
        description="phone of words that the lexicon lacks, such as SPN, so that they do not cost the utterance; "
        "empty: utterances with such words are left out",
    )


class LexiconParams(Params):
    """Pronunciations of all words, by rule, by spelling or from a dictionary."""

    source: Literal["espeak", "graphemes", "dictionary"] = Field("espeak", description="where pronunciations come from")
    dictionary: str = Field("", description="file or URL of a dictionary, lines `WORD(2)  AH N D`; for its source")
    language: str = Field("en-us", description="espeak-ng's name of the language; for its source")
    sets: list[str] = Field([], description="sets whose transcripts give words; empty: all of the given tables")
    guess: bool = Field(
        False,
        description="words that the dictionary lacks get the pronunciation that a joint n-gram model of the dictionary "
        "finds likeliest; good with tens of thousands of words, and wrong for every other word with a few thousand",
        json_schema_extra=LATER,
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the dictionary, so that a changed one is read again."""
        from megahour.units.texts import files_digest

        files = [self.dictionary] if self.dictionary else []
        return {**super().identity(), "dictionary_sha256": files_digest(files)}


class PronunciationsParams(Params):
    """A lexicon with the probabilities that its pronunciations had in an alignment, for `graph`."""

    prior: float = Field(
        1.0, gt=0, description="uses of each pronunciation that are assumed before any is counted; more trust them less"
    )


class TokensParams(Params):
    """Tokens that a model spells with: pieces of words, learnt from text (sentencepiece), or those of a file."""

    file: str = Field(
        "",
        description="file or URL of tokens that others have made, which is used as it is: a .model of sentencepiece, "
        "a tokenizer.json or vocab.json of Hugging Face, or a token a line, as TorchAudio's labels",
        json_schema_extra=LATER,
    )
    method: Literal["unigram", "bpe"] = Field(
        "unigram", description="unigram: Kudo's language model of pieces; bpe: pairs that are merged, as other toolkits"
    )
    size: int = Field(
        500,
        ge=8,
        le=65_535,
        description="pieces, with the blank; 500 suits 100 to 1,000 hours, fewer less. Little text gives fewer",
    )
    sets: list[str] = Field(["labelled"], description="sets whose texts they are learnt from; empty: all")
    most_lines: int = Field(
        1_000_000, ge=1, description="most lines of text that are looked at, the first ones: what bounds memory"
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the file, so that a changed one is read again."""
        from megahour.units.texts import files_digest

        digest = {"file_sha256": files_digest([self.file])} if self.file else {}
        return {**super().identity(), **digest}
