"""An exported voice, read back: its manifest, as `megahour.export.voice` writes it.

bundle.json      what the other files are, their sizes and SHA-256, and all that `VoiceManifest` says
model.onnx …     the graph by precision: tokens to samples
tokens.txt       for other runtimes: a token and its number a line
lexicon.txt      words and their phones
matcha/          if asked, the same in two graphs: acoustic.onnx … from tokens to mels and vocoder.onnx from there to
                 samples, with a lexicon and tokens of their own
golden/          sentences as samples (numpy) and as WAV
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
"""sherpa-onnx's names: one graph from tokens to samples, or two that meet at mels."""
LEXICON, TOKENS, VOCODER = "lexicon.txt", "tokens.txt", "matcha/vocoder.onnx"
FILES: dict[Form, tuple[str, str]] = {"vits": (LEXICON, TOKENS), "matcha": (f"matcha/{LEXICON}", f"matcha/{TOKENS}")}
"""Words and tokens of each form."""


class GoldenSpeech(BundlePart):
    """A sentence, who says it, the frames of its symbols, and the model's own samples at `noise_scale` 0."""

    text: str
    voice: str
    symbols: list[str]
    frames: list[int]
    samples: str
    sound: str


class VoiceManifest(ListedFiles):
    """What `bundle.json` says of a voice. rules: of espeak-ng, for words that the lexicon lacks; "": there are none."""

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
                raise ValueError(f"{text[:20]!r} has control characters, or more than {MAX_TEXT}")
        golden = [name for each in self.golden for name in (each.samples, each.sound)]
        pair = [*self.acoustic.values(), VOCODER, *FILES["matcha"]] if self.acoustic else []
        for name in (LEXICON, TOKENS, *self.graphs.values(), *pair, *golden):
            if name not in self.files:
                raise ValueError(f"{name[:100]!r} is not among its files")
        if "fp32" not in self.graphs:
            raise ValueError("no graph in fp32")
        return self


@dataclass(frozen=True)
class VoiceBundle(BundleFolder[VoiceManifest]):
    """A voice's bundle."""

    @staticmethod
    def open(url: str) -> VoiceBundle:
        """Raises StoreError: the manifest does not say what it must (`opened`). ConfigError: no bundle of a voice."""
        if manifest_at(url)[0].get("criterion") != VOICE:
            what = "a recogniser, which hears and does not speak"
            raise ConfigError(what, where=url, remedy="megahour transcribe --model; or give a voice's bundle")
        return VoiceBundle(url, *opened(url, VoiceManifest))

    def graphs_of(self, form: Form) -> dict[Precision, list[str]]:
        """Files by precision, in the order in which they are run; {} where the bundle lacks the form."""
        if form == "vits":
            return {precision: [name] for precision, name in self.manifest.graphs.items()}
        return {precision: [name, VOCODER] for precision, name in self.manifest.acoustic.items()}


def is_voice(url: str) -> bool:
    """Whether the bundle at `url` is one of a voice."""
    return manifest_at(url)[0].get("criterion") == VOICE
