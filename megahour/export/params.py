"""What a user may set of `export-model`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExportModelParams(BaseModel):
    """A model as a bundle that `transcribe` or `say`, onnxruntime and sherpa-onnx play."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    precisions: list[Literal["fp32", "fp16", "int8"]] = Field(
        ["fp32"], description="graphs besides fp32, which is always there: fp16 has half the size, int8 a third or less"
    )
    int8: Literal["dynamic", "static", "mixed"] = Field(
        "dynamic",
        description="activations are measured as they come (dynamic), or beforehand on calibration clips (static: "
        "faster on some devices); mixed: dynamic, but layers that change the texts of these clips stay fp32",
    )
    tell: str = Field(
        "",
        description="language, or other tag, that the bundle's model is told, of one trained with `tag_told`; "
        "of a voice the language that it speaks, by default the first of its own",
    )
    chunk: int = Field(
        16, ge=1, le=250, description="output frames (40 ms, times `stack`) of a stream's chunk: shorter ones hear less"
    )
    left: int = Field(4, ge=0, le=64, description="chunks before its own that a stream's attention sees")
    golden_clips: int = Field(
        8, ge=1, le=1000, description="clips of the run's held-out sets that go into the bundle, where none are given"
    )
    calibration_clips: int = Field(
        64, ge=1, le=10_000, description="clips of the run's training sets for int8 static and mixed"
    )
    tolerance: float = Field(
        1e-3, gt=0, description="largest difference of log posteriors between the fp32 graphs and the model, in nats"
    )
    most_mcd_db: float = Field(
        1.5,
        gt=0,
        description="most mel-cepstral distortion of a voice in fp16 or int8 from fp32, as a mean over its golden "
        "sentences, in dB: a smaller graph that is further away is refused",
    )
    matcha: bool = Field(
        False,
        description="a voice also as two graphs that meet at mels, acoustic.onnx and vocoder.onnx, which sherpa-onnx "
        "plays in Matcha's form: each can then be replaced by another",
    )
    program: bool = Field(False, description="also a torch.export program (model.pt2) of the offline graph")
