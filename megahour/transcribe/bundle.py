"""An exported bundle, read back: manifest, graph and tokens; sizes are bounded, checksums compared, nothing unpickled.

bundle.json     what the other files are, their sizes and SHA-256, and all that `BundleManifest` says
tokens.txt      for other runtimes: a token and its number a line
model.onnx …    graphs, by form (offline, streaming; of a transducer also decoder, joiner) and precision
golden/         clips, and the log posteriors (of a transducer: the encoder's output) that the model gives for them
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from megahour.core.config import parse
from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.models.foreign import ForeignModel

if TYPE_CHECKING:
    from megahour.transcribe.exported_transducer import ExportedTransducer

MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES, MAX_FILE_BYTES = 16 << 20, 2 << 30
PRECISIONS = ("fp32", "fp16", "int8")
FORMS = {"ctc": ("offline",), "transducer": ("offline", "decoder", "joiner")}
"""Graphs that a bundle must have."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MAX_TEXT = 1000  # characters of a token, or of the name
_AGAIN = "the bundle is damaged or was changed: copy it, or export it again"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class BundleFile(_Part):
    """Size and SHA-256 of a file."""

    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class FrontEndSettings(_Part):
    """How a runtime makes the log-mel frames of 10 ms that the graphs take; all else is in the graphs."""

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
            raise ValueError(f"mels from {self.low_hz:g} to {top:g} Hz do not fit under {half:g} Hz")
        return self


class StreamSettings(_Part):
    """Output frames of a chunk, chunks to the left that attention sees, and the seconds that words wait for a chunk."""

    chunk: int = Field(ge=1, le=10_000)
    left: int = Field(ge=0, le=10_000)
    latency_s: float


class GoldenClip(_Part):
    """A clip's file, what is said in it if known, texts by form and precision, and the model's output."""

    file: str
    said: str = ""
    texts: dict[str, dict[str, str]]
    log_probs: str


class BundleManifest(_Part):
    """What `bundle.json` says."""

    format: Literal[1]
    made_by: dict[str, str]
    name: str
    criterion: Literal["ctc", "transducer"]
    tokens: list[str] = Field(min_length=2, max_length=65_535)
    marks: bool
    front_end: FrontEndSettings
    frames: int = Field(ge=1, le=256)  # of 10 ms for a row of log posteriors
    width: int = Field(0, ge=0, le=65_536)  # of the encoder's output, of a transducer
    context: int = Field(0, ge=0, le=1024)  # tokens that its decoder (predictor) sees, where it is stateless
    predictor: Literal["stateless", "lstm"] = "stateless"  # lstm: the decoder has a state of two rows of `width`
    look_ahead_s: float | None  # of the offline graph; None: the whole utterance
    graphs: dict[str, dict[str, str]]  # form → precision → file
    streaming: StreamSettings | None = None
    sherpa_onnx: dict[str, Any] = {}
    quantisation: dict[str, Any] = {}
    golden: list[GoldenClip] = []
    provenance: dict[str, Any] = {}
    licences: list[dict[str, Any]] = []
    program: str = ""
    files: dict[str, BundleFile] = Field(max_length=10_000)

    @model_validator(mode="after")
    def _check(self) -> BundleManifest:
        for text in (self.name, *self.tokens):
            if len(text) > MAX_TEXT or CONTROL.search(text):  # they come to a terminal as they are
                raise ValueError(f"{text[:20]!r} has control characters, or more than {MAX_TEXT}")
        if len(set(self.tokens)) < len(self.tokens):
            raise ValueError("a token is there twice")
        for name in self.files:
            if not NAME.fullmatch(name):
                raise ValueError(f"a file named {name[:100]!r}")
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
        return self.frames / 100

    def model_config_of(self) -> dict[str, Any]:
        """The offline graph as `models.foreign` and the front end take models from elsewhere."""
        audio = self.front_end.model_dump()
        audio |= {"input": "log-mel", "frame_shift_samples": self.frames * self.front_end.rate_hz // 100}
        output = "encoder_out" if self.criterion == "transducer" else "log_probs"
        run = {"input_name": "x", "length_name": "x_lens", "output_name": output, "layout": "frames-first"}
        return {
            **{"format": 1, "kind": "onnx", "criterion": self.criterion, "tokens": self.tokens, "marks": self.marks},
            **{"outputs": len(self.tokens), "order": list(range(self.columns)), "run": {**run, "log_probs": True}},
            **({"heads": {"transducer": 1.0}} if self.criterion == "transducer" else {}),
            "audio": {**audio, "normalise": False},
        }

    @property
    def columns(self) -> int:
        """Values of a row that the offline graph gives."""
        return self.width or len(self.tokens)


@dataclass(frozen=True)
class Bundle:
    """A bundle at a path or URL, whose manifest has been checked; files are checked as they are read."""

    url: str
    manifest: BundleManifest
    digest: str
    """SHA-256 of the manifest, which has those of all other files: who knows it knows that nothing was changed."""

    @staticmethod
    def at(url: str) -> bool:
        """Whether there is a bundle."""
        fs, path = file_system(url)
        return bool(fs.exists(f"{path}/{MANIFEST}"))

    @staticmethod
    def open(url: str) -> Bundle:
        """Raises StoreError: the manifest is too large, no JSON, or does not say what it must; or a file is missing, of
        another size, or outside."""
        where = f"{url}/{MANIFEST}"
        data = _read(url, MANIFEST, MAX_MANIFEST_BYTES)
        try:
            values = json.loads(data)
            if not isinstance(values, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise StoreError(f"the manifest is not JSON: {error}", where=where, remedy=_AGAIN) from None
        try:
            manifest = parse(BundleManifest, values, where=where, remedy=_AGAIN)
        except ConfigError as error:
            raise StoreError(error.message, where=where, remedy=error.remedy) from None
        for name, info in manifest.files.items():
            if (size := _size(url, name)) != info.bytes:
                raise StoreError(f"{size} bytes of {info.bytes}", where=f"{url}/{name}", remedy=_AGAIN)
        return Bundle(url, manifest, hashlib.sha256(data).hexdigest())

    def read(self, name: str) -> bytes:
        """A file that the manifest lists. Raises StoreError: missing, or of another size or content."""
        info, where = self.manifest.files[name], f"{self.url}/{name}"
        data = _read(self.url, name, info.bytes)
        if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
            what = f"{len(data)} bytes of {info.bytes}" if len(data) != info.bytes else "its SHA-256 is another one"
            raise StoreError(what, where=where, remedy=_AGAIN)
        return data

    def problems(self) -> list[str]:
        """What is wrong with its files; [] of a good one."""
        found = []
        for name in self.manifest.files:
            try:
                self.read(name)
            except StoreError as error:
                found.append(f"{error.where}: {error.message}")
        return found

    def graph(self, form: str, precision: str) -> bytes:
        """Raises ConfigError where the bundle has none of this form and precision."""
        names = self.manifest.graphs.get(form, {})
        if precision not in names:
            have = ", ".join(f"{one} {other}" for one, each in self.manifest.graphs.items() for other in each)
            raise ConfigError(f"the bundle has no {form} graph in {precision}", where=self.url, remedy=f"it has {have}")
        return self.read(names[precision])

    def model(self, precision: str, *, threads: int = 1, device: str = "cpu") -> ForeignModel:
        """The offline model, tried on half a second of quiet.

        Raises StoreError: onnxruntime cannot read or run the graph, or it gives other tokens than the bundle has.
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
            what = f"the graph gives {found.shape[0]} rows of {found.shape[1]} values for {frames} frames"
            wanted = f"width {self.manifest.width}" if self.manifest.width else f"{len(self.manifest.tokens)} tokens"
            raise StoreError(f"{what}; the bundle has {rows} rows and {wanted}", where=where, remedy=_AGAIN)
        if not (found < np.inf).all():
            raise StoreError("the graph gives values that are not finite", where=where, remedy=_AGAIN)

    def transducer(self, precision: str, *, threads: int = 1) -> ExportedTransducer | None:
        """Predictor and joiner; None of a CTC model. Raises StoreError: onnxruntime cannot read or run them."""
        if self.manifest.criterion == "ctc":
            return None
        from megahour.transcribe.exported_transducer import ExportedTransducer

        decoder, joiner = (self.graph(form, precision) for form in ("decoder", "joiner"))
        context = 0 if self.manifest.predictor == "lstm" else self.manifest.context
        sizes = {"context": context, "width": self.manifest.width, "tokens": len(self.manifest.tokens)}
        return ExportedTransducer(decoder, joiner, **sizes, threads=threads, where=f"{self.url}: {precision}")


def _size(url: str, name: str) -> int:
    """Of a file in the bundle. Raises StoreError: there is none, no plain file, or a link that leads elsewhere."""
    where = f"{url}/{name}"
    fs, path = file_system(where)
    try:
        info = fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError("a bundle without this file", where=where, remedy=_AGAIN) from None
    if info["type"] != "file":
        raise StoreError("no plain file", where=where, remedy=_AGAIN)
    if "file" in _protocols(fs):
        home = Path(file_system(url)[1]).resolve()
        if not Path(path).resolve().is_relative_to(home):
            what = "a link to what is outside the bundle"
            raise StoreError(what, where=where, remedy="copy the bundle with its links followed, as cp -rL does")
    if info["size"] is None:
        raise StoreError("a file whose size is not known", where=where, remedy="copy the bundle to a folder")
    return int(info["size"])


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _read(url: str, name: str, most: int) -> bytes:
    where = f"{url}/{name}"
    size = _size(url, name)
    if size > most:
        raise StoreError(f"{size} bytes, at most {most}", where=where, remedy=_AGAIN)
    fs, path = file_system(where)
    with fs.open(path, "rb") as file:
        return bytes(file.read(most + 1))  # it may grow under us
