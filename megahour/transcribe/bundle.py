"""Reads exported bundles: manifest, graphs and tokens. Sizes are bounded, checksums compared, and nothing unpickled.

bundle.json     the manifest (`BundleManifest`), with sizes and SHA-256 of all other files
tokens.txt      for other runtimes: a token and its number per line
model.onnx …    graphs by form (offline, streaming; for a transducer also decoder, joiner) and precision
golden/         clips, and the model's log posteriors for them (for a transducer the encoder's output)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from megahour.core.errors import ConfigError, StoreError
from megahour.features.params import frame_seconds
from megahour.foreign.model import ForeignModel
from megahour.transcribe.bundle_files import (
    AGAIN,
    CONTROL,
    MAX_HEARD,
    MAX_TEXT,
    VOICE,
    BundleFolder,
    BundlePart,
    ListedFiles,
    manifest_at,
    opened,
)
from megahour.units.tokens import BLANK

if TYPE_CHECKING:
    from megahour.transcribe.exported_transducer import ExportedTransducer

PRECISIONS = ("fp32", "fp16", "int8")
FORMS = {"ctc": ("offline",), "transducer": ("offline", "decoder", "joiner")}
"""Graphs that a bundle must have."""


class FrontEndSettings(BundlePart):
    """How to compute the log-mel frames of 10 ms that the graphs take; the graphs do everything else."""

    rate_hz: int = Field(ge=4000, le=192_000)
    mels: int = Field(ge=1, le=256)
    low_hz: float = Field(ge=0, le=96_000)
    high_hz: float = Field(ge=-96_000, le=96_000)
    edges: Literal["inside", "mirrored"]
    scale: Literal["int16", "unit"]

    @model_validator(mode="after")
    def _check(self) -> FrontEndSettings:
        half = self.rate_hz / 2
        top = self.high_hz if self.high_hz > 0 else half + self.high_hz
        if not self.low_hz < top <= half:
            raise ValueError(f"mel filters from {self.low_hz:g} to {top:g} Hz do not fit below {half:g} Hz")
        return self


class StreamSettings(BundlePart):
    """Output frames per chunk, earlier chunks that attention sees, and the latency in seconds."""

    kind: Literal["conformer", "lstm"] = "conformer"
    chunk: int = Field(ge=1, le=10_000)
    left: int = Field(ge=0, le=10_000)
    latency_s: float


class GoldenClip(BundlePart):
    """A test clip: its file, its transcript if known, recognised text by form and precision, and the model's output."""

    file: str
    said: str = ""
    texts: dict[str, dict[str, str]]
    log_probs: str


class BundleManifest(ListedFiles):
    """The contents of `bundle.json`."""

    made_by: dict[str, str]
    name: str
    criterion: Literal["ctc", "transducer"]
    tokens: list[str] = Field(min_length=2, max_length=65_535)
    marks: bool
    front_end: FrontEndSettings
    frames: int = Field(ge=1, le=256)  # of 10 ms, per row of log posteriors
    width: int = Field(0, ge=0, le=65_536)  # of a transducer's encoder output
    context: int = Field(0, ge=0, le=1024)  # tokens that a stateless predictor sees
    predictor: Literal["stateless", "lstm"] = "stateless"  # lstm: its state is two rows of `width`
    look_ahead_s: float | None = Field(ge=0, le=60)  # of the offline graph; None: the whole utterance
    graphs: dict[str, dict[str, str]]  # form → precision → file
    streaming: StreamSettings | None = None
    sherpa_onnx: dict[str, Any] = Field(default_factory=dict)
    quantisation: dict[str, Any] = Field(default_factory=dict)
    golden: list[GoldenClip] = Field(default_factory=list)
    provenance: dict[str, Any] = Field(default_factory=dict)
    licences: list[dict[str, Any]] = Field(default_factory=list)
    program: str = ""

    @model_validator(mode="after")
    def _check(self) -> BundleManifest:
        names = (*self.graphs, *(precision for each in self.graphs.values() for precision in each))
        heard = (text for clip in self.golden for each in clip.texts.values() for text in each.values())
        for most, texts in ((MAX_TEXT, (self.name, *self.tokens, *names)), (MAX_HEARD, heard)):
            for text in texts:
                if len(text) > most or CONTROL.search(text):  # they are printed to terminals unescaped
                    raise ValueError(f"{text[:20]!r} has control characters, or more than {most} characters")
        if len(set(self.tokens)) < len(self.tokens):
            raise ValueError("a token is there twice")
        if self.tokens[0] != BLANK:
            raise ValueError(f"token 0 is {self.tokens[0][:20]!r}, not the blank")
        for name in (*(file for each in self.graphs.values() for file in each.values()), *self._named()):
            if name not in self.files:
                raise ValueError(f"{name[:100]!r} is not among its files")
        needed = FORMS[self.criterion]
        if missing := [form for form in needed if "fp32" not in self.graphs.get(form, {})]:
            raise ValueError(f"no {missing[0]} graph in fp32")
        if self.criterion == "transducer" and not (self.width and (self.context or self.predictor == "lstm")):
            raise ValueError("a transducer without width or context")
        return self

    def _named(self) -> list[str]:
        return [name for clip in self.golden for name in (clip.file, clip.log_probs)] + [self.program] * bool(
            self.program
        )

    @property
    def shift_s(self) -> float:
        """Seconds from one row of log posteriors to the next."""
        return self.frames * frame_seconds(self.front_end.rate_hz)

    def model_config_of(self) -> dict[str, Any]:
        """The offline graph's configuration, in the form that `foreign.model` and the front end take."""
        audio = self.front_end.model_dump()
        audio |= {"input": "log-mel", "frame_shift_samples": round(self.shift_s * self.front_end.rate_hz)}
        output = "encoder_out" if self.criterion == "transducer" else "log_probs"
        run = {"input_name": "x", "length_name": "x_lens", "output_name": output, "layout": "frames-first"}
        return {
            **{"format": 1, "kind": "onnx", "criterion": self.criterion, "tokens": self.tokens, "marks": self.marks},
            **{"outputs": len(self.tokens), "order": list(range(self.columns)), "run": {**run, "log_probs": True}},
            **({"heads": {"transducer": 1.0}} if self.criterion == "transducer" else {}),
            "audio": {**audio, "normalise": False},
        }

    @property
    def ahead(self) -> int:
        """Rows by which the outputs of a streaming LSTM come late; a conformer sees no more than its chunk."""
        if self.streaming is None or self.streaming.kind == "conformer":
            return 0
        return round(100 * (self.look_ahead_s or 0.0) / self.frames)

    @property
    def streams_int16(self) -> bool:
        """Whether the streaming graph takes log energies of int16 samples, as WeNet's form does."""
        return self.criterion == "ctc" and self.streaming is not None and self.streaming.kind == "conformer"

    @property
    def columns(self) -> int:
        """Values per row of the offline graph's output."""
        return self.width or len(self.tokens)


@dataclass(frozen=True)
class Bundle(BundleFolder[BundleManifest]):
    """A recogniser's bundle."""

    @staticmethod
    def open(url: str) -> Bundle:
        """Raises StoreError: a manifest or file is invalid (`opened`). ConfigError: the bundle is a voice."""
        if manifest_at(url)[0].get("criterion") == VOICE:
            what = "the bundle of a voice, not of a recogniser"
            raise ConfigError(what, where=url, remedy="use megahour say --voice, or give a recogniser's bundle")
        return Bundle(url, *opened(url, BundleManifest))

    def graph(self, form: str, precision: str) -> bytes:
        """The bytes of a graph. Raises ConfigError if the bundle has none of this form and precision."""
        names = self.manifest.graphs.get(form, {})
        if precision not in names:
            have = ", ".join(f"{one} {other}" for one, each in self.manifest.graphs.items() for other in each)
            raise ConfigError(f"the bundle has no {form} graph in {precision}", where=self.url, remedy=f"it has {have}")
        return self.read(names[precision])

    def model(self, precision: str, *, threads: int = 1, device: str = "cpu") -> ForeignModel:
        """The offline model, after a trial run on silence of a few lengths.

        Raises StoreError: onnxruntime cannot read or run the graph, or its output does not fit the bundle.
        """
        config, where = self.manifest.model_config_of(), f"{self.url}: offline, {precision}"
        graph = self.graph("offline", precision)
        model = ForeignModel(config, graph, threads=threads, device=device, where=where, bounded=True)
        for frames in (50, 2 * self.manifest.frames, 130):  # two lengths at least
            self._try(model, frames, where)
        return model

    def _try(self, model: ForeignModel, frames: int, where: str) -> None:
        found = model.run(np.full((frames, self.manifest.front_end.mels), -5.0, np.float32))
        rows, columns = frames // self.manifest.frames, self.manifest.columns
        if found.shape != (rows, columns):
            what = f"the graph outputs {found.shape[0]} rows of {found.shape[1]} values for {frames} frames"
            wanted = f"width {self.manifest.width}" if self.manifest.width else f"{len(self.manifest.tokens)} tokens"
            raise StoreError(f"{what}, but the bundle needs {rows} rows for {wanted}", where=where, remedy=AGAIN)
        if not (found < np.inf).all():
            raise StoreError("the graph gives values that are not finite", where=where, remedy=AGAIN)

    def transducer(self, precision: str, *, threads: int = 1) -> ExportedTransducer | None:
        """Predictor and joiner; None for a CTC model. Raises StoreError if onnxruntime cannot read or run them."""
        if self.manifest.criterion == "ctc":
            return None
        from megahour.transcribe.exported_transducer import ExportedTransducer

        decoder, joiner = (self.graph(form, precision) for form in ("decoder", "joiner"))
        context = 0 if self.manifest.predictor == "lstm" else self.manifest.context
        sizes = {"context": context, "width": self.manifest.width, "tokens": len(self.manifest.tokens)}
        return ExportedTransducer(decoder, joiner, **sizes, threads=threads, where=f"{self.url}: {precision}")
