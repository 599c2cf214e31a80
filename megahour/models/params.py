"""What a user may set of `models`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params

BatchFrames = Annotated[
    int, Field(ge=1, description="stacked frames of an inference batch; halve it when memory runs out")
]
Precision = Annotated[
    Literal["fp32", "bf16", "fp16"],
    Field(
        description="of the model's products and convolutions; bf16 for GPUs that have it",
        json_schema_extra=LATER,
    ),
]


class ImportAlignerParams(Params):
    """A CTC model from elsewhere as an aligner: ONNX or TorchScript with its tokens, or a Hugging Face checkpoint."""

    model: str = Field(
        "",
        description="path or URL of the file: .onnx, or TorchScript (.pt, .ts, .torchscript); or of the folder of a "
        "Hugging Face checkpoint (config.json, model.safetensors, vocab.json) or a .nemo file of a FastConformer with "
        "CTC, which say themselves what follows below",
    )
    tokens: str = Field("", description="its token list: a token a line, or JSON (a list, or token to number)")
    format: Literal["auto", "onnx", "torchscript", "huggingface", "nemo"] = Field(
        "auto", description="auto: by the file's name; huggingface: a folder with a config.json"
    )
    language: str = Field(
        "",
        json_schema_extra=LATER,
        description="of a checkpoint with adapters for many languages (MMS): the adapter's name, such as deu",
    )
    blank: str = Field("", description="the blank token; empty: <blank>, <blk>, <pad>, [PAD] or <eps>, in this order")
    separator: str = Field("", description="the token between words; empty: | or a space, where there is one")
    case: Literal["auto", "lower", "upper"] = Field(
        "auto", description="upper: letters are compared with the text in lower case; lower: as they are; auto: look"
    )
    input: Literal["waveform", "log-mel"] = Field(
        "waveform", description="what the model hears; an ONNX graph with three axes is taken as log-mel"
    )
    rate_hz: int = Field(16_000, ge=4000, le=192_000, description="sampling rate of the audio it hears")
    frame_shift_samples: int = Field(
        320,
        ge=1,
        description="samples, at rate_hz, from one output frame to the next; measured with noise if left out",
    )
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
        """A file that is written again is another job, as for `ingest`; of a folder any of its own files."""
        from megahour.core.filesystems import file_system, version_of

        files = []
        for path in filter(None, (self.model, self.tokens)):
            fs, inner = file_system(path)
            inside = sorted(fs.ls(inner, detail=False)) if fs.isdir(inner) else []
            files += [fs.unstrip_protocol(file) for file in inside if fs.isfile(file)] if inside else [path]
        return {**super().identity(), "versions": [version_of(path) for path in files]}
