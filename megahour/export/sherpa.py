"""The model forms that sherpa-onnx can run, and the metadata that each needs.

According to its sources (version 2.0.1), each form fixes the front end of the Python client, so sherpa-onnx can run a
model only if the model's front end is the same. All forms use 25 ms windows from 20 Hz up, without mean subtraction.

    zipformer2_ctc    offline     mirrored ends, samples in -1 … 1, up to 400 Hz below Nyquist
    fire_red_asr_ctc  offline     whole windows only, int16 samples, up to Nyquist: our defaults
    wenet_ctc         streaming   mirrored ends, int16 samples, up to 400 Hz below Nyquist
    transducer        offline     as zipformer2_ctc
    conformer         streaming   as zipformer2_ctc: a transducer

WeNet's offline form is unsuitable since it adds noise to the samples (dither), NeMo's because it subtracts the
utterance mean. Only NeMo's transducers have a predictor with a state (an LSTM), but they use other mels (librosa's from
0 Hz up, whatever the metadata say), put the blank last, and may emit several tokens per frame, where ours emit one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megahour.export.graphs import StreamingCtc, StreamingEncoder, StreamingGraph
from megahour.models.conformer import KERNEL
from megahour.transcribe.bundle import FrontEndSettings
from megahour.units.tokens import MARK

MIRRORED = {"low_hz": 20.0, "high_hz": -400.0, "edges": "mirrored", "scale": "unit"}
INSIDE = {"low_hz": 20.0, "high_hz": 0.0, "edges": "inside", "scale": "int16"}
PLAYED = {"ctc": ("zipformer2_ctc", "wenet_ctc"), "transducer": ("transducer", "conformer")}
"""Offline and streaming form of a model with the front end `MIRRORED`, by criterion."""
REMEDY = "train on features with edges: mirrored, scale: unit, high_hz: -400"


def forms(front: FrontEndSettings, criterion: str, *, streams: bool, predictor: str = "") -> dict[str, Any]:
    """{"offline": form, "streaming": form} that sherpa-onnx can run; "" with a `reason` if it cannot."""
    if predictor == "lstm":
        reason = "its predictor is an LSTM: train with criterion_options: {predictor: stateless}"
        return {"offline": "", "streaming": "", "reason": reason}
    heard = front.model_dump(exclude={"rate_hz", "mels"})
    if heard == MIRRORED:
        offline, streaming = PLAYED[criterion]
    else:
        offline, streaming = "fire_red_asr_ctc" if heard == INSIDE and criterion == "ctc" else "", ""
    streaming = streaming if streams else ""
    reasons = [] if offline else [f"it computes other features: {REMEDY}"]
    if not streaming:
        reasons.append(
            f"no streaming: {REMEDY}" if streams else "no streaming: that needs a conformer and a causal mean"
        )
    return {"offline": offline, "streaming": streaming, "reason": "; ".join(reasons)}


def offline_metadata(form: str, mels: int, tokens: int, frames: int) -> dict[str, Any]:
    """Metadata of an offline CTC graph. frames: number of 10 ms frames per output row."""
    if form == "fire_red_asr_ctc":
        means = {"cmvn_mean": ",".join(["0"] * mels), "cmvn_inv_stddev": ",".join(["1"] * mels)}
        return {"model_type": "fire-red-asr-2-ctc", "subsampling_factor": frames, **means}
    return {"model_type": "zipformer2_ctc", "version": 1, "vocab_size": tokens, "subsampling_factor": frames}


def streaming_metadata(graph: StreamingGraph, tokens: int, chunk: int, left: int) -> dict[str, Any]:
    """Metadata of a streaming graph: its cache sizes. chunk: in output frames; left: number of previous chunks."""
    if isinstance(graph, StreamingEncoder):
        return {
            "model_type": "conformer",
            "num_encoder_layers": graph.blocks,
            "T": chunk * graph.frames,
            "decode_chunk_len": chunk * graph.frames,
            "left_context": chunk * left,
            "encoder_dim": 2 * graph.units,
            "pad_length": 0,
            "cnn_module_kernel": graph.rows + 1,
        }
    assert isinstance(graph, StreamingCtc)
    return {
        "model_type": "wenet_ctc",
        "head": 1,
        "num_blocks": graph.blocks,
        "output_size": graph.units,
        "cnn_module_kernel": KERNEL + graph.columns,
        "right_context": graph.frames - 1,  # so that a chunk takes no frames of the next one
        "subsampling_factor": graph.frames,
        "vocab_size": tokens,
    }


def tokens_text(tokens: Sequence[str]) -> str:
    """The text of `tokens.txt`: the blank is written <blk>, the space as sentencepiece's mark."""
    written = ["<blk>", *(MARK if token == " " else token for token in tokens[1:])]
    return "".join(f"{token} {number}\n" for number, token in enumerate(written))
