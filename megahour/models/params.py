"""What a user may set of `models`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params


class ImportAlignerParams(Params):
    """A CTC model from elsewhere, an ONNX or TorchScript file with its token list, as an aligner."""

    model: str = Field("", description="path or URL of the file: .onnx, or TorchScript (.pt, .ts, .torchscript)")
    tokens: str = Field("", description="its token list: a token a line, or JSON (a list, or token to number)")
    format: Literal["auto", "onnx", "torchscript"] = Field("auto", description="auto: by the file's name")
    blank: str = Field("", description="the blank token; empty: <blank>, <blk>, <pad>, [PAD] or <eps>, in this order")
    separator: str = Field("", description="the token between words; empty: | or a space, where there is one")
    case: Literal["auto", "lower", "upper"] = Field(
        "auto", description="upper: letters are compared with the text in lower case; lower: as they are; auto: look"
    )
    input: Literal["waveform", "log-mel"] = Field("waveform", description="what the model hears")
    rate_hz: int = Field(16_000, ge=4000, le=192_000, description="sampling rate of the audio it hears")
    frame_shift_samples: int = Field(320, ge=1, description="samples, at rate_hz, from one output frame to the next")
    scale: Literal["unit", "int16"] = Field("unit", description="samples in -1 … 1, or in -32768 … 32767")
    normalise: bool = Field(False, description="mean 0 and variance 1 of each window: of its samples, or of each mel")
    mels: int = Field(80, ge=8, le=256, description="mel filters (log-mel input: 25 ms windows every 10 ms)")
    low_hz: float = Field(20.0, ge=0, description="lower edge of the lowest mel filter")
    high_hz: float = Field(0.0, description="upper edge of the highest filter; 0 or less: counted from Nyquist")
    layout: Literal["frames-first", "mels-first"] = Field("frames-first", description="axes of log-mel input")
    input_name: str = Field("", description="ONNX input of audio or features; empty: the first")
    length_name: str = Field("", description="ONNX input of the length; TorchScript: not empty, a second argument")
    output_name: str = Field("", description="ONNX output of the posteriors; empty: the first")
    output: Literal["logits", "log-probs"] = Field("logits", description="what the output is, before or after softmax")

    @model_validator(mode="after")
    def _check(self) -> ImportAlignerParams:
        if self.input == "log-mel" and self.frame_shift_samples * 100 % self.rate_hz:
            raise ValueError(
                f"frame_shift_samples = {self.frame_shift_samples} at {self.rate_hz} Hz is no multiple of the 10 ms "
                "between log-mel frames"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """A file that is written again is another job, as for `ingest`."""
        from megahour.core.filesystems import version_of

        return {**super().identity(), "versions": [version_of(path) for path in (self.model, self.tokens) if path]}
