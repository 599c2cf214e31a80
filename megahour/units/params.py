"""Parameters of the stages in `units`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params


class SenonesParams(Params):
    """Build senones and frame alignments from a flat start."""

    sets: list[str] = Field(["labelled"], min_length=1)
    """Sets with transcripts to align."""
    senones: int = Field(300, ge=2, le=32_767)
    """Number of senones (leaves of the decision trees), including silence."""
    min_frames: float = Field(60.0, ge=1)
    """Smallest number of 10 ms frames on each side of a split."""
    iterations: int = Field(4, ge=1)
    """Viterbi passes with one Gaussian per phone."""
    mixtures: int = Field(4, ge=1, le=64)
    """Gaussians per phone at the end. They double every two passes."""
    phone_hours: float = Field(20.0, ge=0)
    """Hours of the labelled sets, sampled by utterance, from which the phones' Gaussians are estimated. More hours
    lengthen each pass and change little. 0 uses all."""
    tree_hours: float = Field(500.0, ge=0)
    """Hours, sampled likewise, from which trees, transform and the senones' Gaussians are estimated. 0 uses all. All
    utterances are aligned in any case."""
    senone_mixtures: int = Field(0, ge=0, le=64)
    """Gaussians per senone at the end, which then make the alignment. They double every two passes, so each doubling
    costs two passes. 0 aligns with the phones' Gaussians."""
    transform: Literal["none", "lda", "lda-mllt"] = "none"
    """Features for trees and senones. none: cepstra with deltas. lda: discriminant projection of spliced cepstra.
    lda-mllt: the same with a rotation for diagonal Gaussians; needs `senone_mixtures`."""
    lda_dims: int = Field(40, ge=1, le=200)
    """Dimensions after LDA."""
    splice: int = Field(3, ge=0, le=10)
    """Frames on each side that LDA sees. 0: cepstra with deltas instead of splicing."""
    cross_word: bool = Field(False, json_schema_extra=LATER)
    """Trees see the phones of neighbouring words, where no pause lies between, and graphs have every phone that may
    precede and follow a word: several times the arcs."""
    noises: dict[str, str] = Field({}, json_schema_extra=LATER)
    """Phones of tags in transcripts, such as {"[noise]": NSN, "++breath++": NSN}. Each has one senone, stands where its
    tag does, and may come between any words, like silence, here and in graphs. Tags come from `import-features` with
    `fillers`, or from the input selection."""
    unknown: str = ""
    """Phone for words that the lexicon lacks, such as SPN, so that their utterances stay. Empty: drop utterances with
    such words."""


class LexiconParams(Params):
    """Make pronunciations by rule, spelling or dictionary."""

    source: Literal["espeak", "graphemes", "dictionary"] = "espeak"
    """Where pronunciations come from: espeak-ng's rules, the letters of each word, or a dictionary."""
    dictionary: str = Field("", description="With source dictionary: file or URL with lines `WORD(2)  AH N D`.")
    language: str = "en-us"
    """With source espeak: espeak-ng's name of the language."""
    languages: dict[str, str] = Field({}, json_schema_extra=LATER)
    """With source espeak and a selection: espeak-ng's names for utterances in other languages (BCP 47), such as
    {it: it}. A word of several languages gets a pronunciation of each."""
    sets: list[str] = Field([])
    """Sets whose transcripts supply the words. Empty: all sets of the given tables."""
    guess: bool = Field(False, json_schema_extra=LATER)
    """Predict the pronunciation of words that the dictionary lacks with a joint n-gram model trained on it. Good with
    tens of thousands of entries; with a few thousand, half of the predictions are wrong."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the dictionary, so that a changed one is read again."""
        from megahour.units.texts import files_digest

        files = [self.dictionary] if self.dictionary else []
        return {**super().identity(), "dictionary_sha256": files_digest(files)}

    def reach(self) -> None:
        """The dictionary, which is small."""
        self.identity()


class PronunciationsParams(Params):
    """Weight a lexicon's pronunciations by how often they occur.

    The probabilities come from an alignment, for `graph`.
    """

    prior: float = Field(1.0, gt=0)
    """Count added to each pronunciation. Larger values smooth more and trust the alignment less."""


class TokensParams(Params):
    """Learn word pieces from text, or take tokens from a file.

    Pieces are learnt with sentencepiece.
    """

    file: str = Field("", json_schema_extra=LATER)
    """File or URL of existing tokens, used unchanged: a sentencepiece .model, a Hugging Face tokenizer.json or
    vocab.json, or one token per line, as TorchAudio's labels, also with numbers (tokens.txt)."""
    method: Literal["unigram", "bpe", "word"] = "unigram"
    """unigram: language model of pieces (Kudo, 2018). bpe: byte-pair merges, as in other toolkits. word: the most
    frequent words, each one token; for speech of a few words that all occur often, such as digits or commands."""
    size: int = Field(500, ge=8, le=65_535)
    """Number of tokens, including the blank. 500 suits 100 to 1,000 hours; use fewer for less. Little text may give
    fewer."""
    sets: list[str] = Field(["labelled"])
    """Sets whose texts the tokens are learnt from. Empty: all."""
    most_lines: int = Field(1_000_000, ge=1)
    """Largest number of text lines read, from the start. It bounds memory."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the file, so that a changed one is read again."""
        from megahour.units.texts import files_digest

        digest = {"file_sha256": files_digest([self.file])} if self.file else {}
        return {**super().identity(), **digest}

    def reach(self) -> None:
        """The file, which is small."""
        self.identity()
