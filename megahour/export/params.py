"""Parameters of `export-model` with their defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megahour.core.config import Options

CALIBRATED = ("static", "mixed")
"""Kinds of int8 that need calibration clips."""


class ExportModelParams(Options):
    """Export a model as a bundle for `transcribe` or `say`, onnxruntime and sherpa-onnx."""

    precisions: list[Literal["fp32", "fp16", "int8"]] = Field(["fp32"])
    """Precisions of the exported graphs, besides fp32, which is always included. fp16 halves the size, int8 takes
    less than a third."""
    int8: Literal["dynamic", "weights", "static", "mixed"] = "dynamic"
    """How int8 graphs compute; weights are stored in int8 by all. dynamic: large layers in int8, with activations
    scaled at run time, all others in fp32. weights: everything in fp32, the nearest to fp32 but no faster. static:
    all matrices in int8, with scales measured beforehand on calibration clips, which some devices need. mixed: as
    dynamic, but layers that change the texts of the calibration clips also keep fp32 weights."""
    tell: str = ""
    """Language or other tag for a model trained with `tag_told`, built into the bundle. Of a voice: the language that
    it speaks; by default its first one."""
    chunk: int = Field(16, ge=1, le=250)
    """Chunk length of a conformer's streams, in output frames (40 ms times `stack`). Shorter chunks answer sooner and
    see less context."""
    left: int = Field(4, ge=0, le=64)
    """Number of previous chunks that attention sees in streaming."""
    golden_clips: int = Field(8, ge=1, le=1000)
    """Clips of the run's held-out sets to include in the bundle, if none are given; or of each artifact given."""
    calibration_clips: int = Field(64, ge=1, le=10_000)
    """Clips of the run's training sets, or of each artifact given, for int8 static and mixed."""
    tolerance: float = Field(1e-3, gt=0)
    """Largest difference of log posteriors between the fp32 graphs and the model, in nats. The export fails above
    it."""
    most_mcd_db: float = Field(1.5, gt=0)
    """Largest mel-cepstral distortion of a voice in fp16 or int8 against fp32, averaged over its golden sentences, in
    dB. The export refuses a smaller graph above it."""
    matcha: bool = False
    """Also export a voice as two graphs, acoustic.onnx and vocoder.onnx, joined at the mels: sherpa-onnx's Matcha form,
    in which each graph can be replaced."""
    program: bool = False
    """Also export a torch.export program (model.pt2) of the offline graph."""
