"""Read an exported voice and its manifest, as `megahour.export.voice` writes them.

bundle.json      the manifest: fields of `VoiceManifest`, with the size and SHA-256 of every other file
model.onnx …     the graph, one file per precision: tokens to samples
tokens.txt       for other runtimes: one token and its number per line
lexicon.txt      words and their phones
matcha/          optional: two graphs with their own lexicon and tokens: acoustic.onnx … from tokens to mels,
                 vocoder.onnx from mels to samples
golden/          reference sentences as numpy samples and as WAV
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.errors import ConfigError
from megahour.transcribe.bundle_files import (
    CONTROL,
    MAX_TEXT,
    VOICE,
    BundleFolder,
    BundlePart,
    ListedFiles,
    manifest_at,
    opened,
)

Precision = Literal["fp32", "fp16", "int8"]
Form = Literal["vits", "matcha"]
"""sherpa-onnx's names: one graph from tokens to samples (vits), or two joined at the mels (matcha)."""
LEXICON, TOKENS, VOCODER = "lexicon.txt", "tokens.txt", "matcha/vocoder.onnx"
FILES: dict[Form, tuple[str, str]] = {"vits": (LEXICON, TOKENS), "matcha": (f"matcha/{LEXICON}", f"matcha/{TOKENS}")}
"""The lexicon file and the token file of each form."""


class GoldenSpeech(BundlePart):
    """A reference sentence: its voice, the frames of each symbol, and the model's samples at `noise_scale` 0."""

    text: str
    voice: str
    symbols: list[str]
    frames: list[int]
    samples: str
    sound: str


class VoiceManifest(ListedFiles):
    """The `bundle.json` of a voice. rules: espeak-ng language for words that the lexicon lacks; "" means none."""

    made_by: dict[str, str]
    name: str
    criterion: Literal["voice"]
    notice: str
    rate_hz: int = Field(ge=4000, le=192_000)
    symbols: list[str] = Field(min_length=3, max_length=65_535)
    voices: list[str] = Field(min_length=1, max_length=65_535)
    language: str
    rules: str
    scripts: list[str]
    graphs: dict[Precision, str]
    acoustic: dict[Precision, str] = Field(default_factory=dict)
    sherpa_onnx: dict[str, Any] = Field(default_factory=dict)
    quantisation: dict[str, Any] = Field(default_factory=dict)
    golden: list[GoldenSpeech] = Field(default_factory=list)
    provenance: dict[str, Any] = Field(default_factory=dict)
    licences: list[dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> VoiceManifest:
        for text in (self.name, self.notice, self.language, self.rules, *self.symbols, *self.voices):
            if len(text) > MAX_TEXT or CONTROL.search(text):  # they come to a terminal as they are
                raise ValueError(f"{text[:20]!r} has control characters, or more than {MAX_TEXT} characters")
        golden = [name for each in self.golden for name in (each.samples, each.sound)]
        pair = [*self.acoustic.values(), VOCODER, *FILES["matcha"]] if self.acoustic else []
        for name in (LEXICON, TOKENS, *self.graphs.values(), *pair, *golden):
            if name not in self.files:
                raise ValueError(f"{name[:100]!r} is not among its files")
        if "fp32" not in self.graphs:
            raise ValueError("it has no fp32 graph")
        return self


@dataclass(frozen=True)
class VoiceBundle(BundleFolder[VoiceManifest]):
    """The bundle of an exported voice."""

    @staticmethod
    def open(url: str) -> VoiceBundle:
        """Open the bundle at `url`. Raises StoreError: the manifest is invalid (`opened`). ConfigError: not a voice."""
        if manifest_at(url)[0].get("criterion") != VOICE:
            what = "the bundle of a recogniser, not of a voice"
            raise ConfigError(what, where=url, remedy="use megahour transcribe --model, or give a voice's bundle")
        return VoiceBundle(url, *opened(url, VoiceManifest))

    def graphs_of(self, form: Form) -> dict[Precision, list[str]]:
        """Graph files by precision, in the order in which they run; {} if the bundle lacks the form."""
        if form == "vits":
            return {precision: [name] for precision, name in self.manifest.graphs.items()}
        return {precision: [name, VOCODER] for precision, name in self.manifest.acoustic.items()}


def is_voice(url: str) -> bool:
    """Whether the bundle at `url` is a voice."""
    return manifest_at(url)[0].get("criterion") == VOICE
