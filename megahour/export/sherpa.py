"""The forms in which sherpa-onnx plays a model, and the metadata that each needs.

Read from its sources (version 2.0.1): each form fixes the front end of its Python client, so a model is playable where
its own front end is that one. All forms hear 25 ms windows from 20 Hz on, and no mean is taken off.

    zipformer2_ctc    offline     mirrored ends, samples in -1 … 1, up to 400 Hz below Nyquist
    fire_red_asr_ctc  offline     whole windows only, int16 samples, up to Nyquist: our defaults
    wenet_ctc         streaming   mirrored ends, int16 samples, up to 400 Hz below Nyquist
    transducer        offline     as zipformer2_ctc
    conformer         streaming   as zipformer2_ctc: a transducer

WeNet's offline form adds noise to the samples (dither), NeMo's takes a mean over the utterance. Only NeMo's transducers
have a predictor with a state (an LSTM): they hear other mels (librosa's, from 0 Hz on, whatever the metadata say), have
the blank last, and may write several tokens at a frame, where ours write one.
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
"""Offline and streaming form of a model that hears `MIRRORED`."""
REMEDY = "train on features with edges: mirrored, scale: unit, high_hz: -400"


def forms(front: FrontEndSettings, criterion: str, *, streams: bool, predictor: str = "") -> dict[str, Any]:
    """{"offline": form, "streaming": form} of what sherpa-onnx plays, "" with a `reason` where it does not."""
    if predictor == "lstm":
        reason = "its predictor is an LSTM: train with criterion_options: {predictor: stateless}"
        return {"offline": "", "streaming": "", "reason": reason}
    heard = front.model_dump(exclude={"rate_hz", "mels"})
    if heard == MIRRORED:
        offline, streaming = PLAYED[criterion]
    else:
        offline, streaming = "fire_red_asr_ctc" if heard == INSIDE and criterion == "ctc" else "", ""
    streaming = streaming if streams else ""
    reasons = [] if offline else [f"it makes other features: {REMEDY}"]
    if not streaming:
        reasons.append(f"no streams: {REMEDY}" if streams else "no streams: only a conformer has them")
    return {"offline": offline, "streaming": streaming, "reason": "; ".join(reasons)}


def offline_metadata(form: str, mels: int, tokens: int, frames: int) -> dict[str, Any]:
    """Of an offline graph of CTC; `frames` of 10 ms for a row."""
    if form == "fire_red_asr_ctc":
        means = {"cmvn_mean": ",".join(["0"] * mels), "cmvn_inv_stddev": ",".join(["1"] * mels)}
        return {"model_type": "fire-red-asr-2-ctc", "subsampling_factor": frames, **means}
    return {"model_type": "zipformer2_ctc", "version": 1, "vocab_size": tokens, "subsampling_factor": frames}


def streaming_metadata(graph: StreamingGraph, tokens: int, chunk: int, left: int) -> dict[str, Any]:
    """Of a streaming graph with chunks of output frames: the sizes of its caches."""
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
        "right_context": graph.frames - 1,  # a chunk without frames of the next one
        "subsampling_factor": graph.frames,
        "vocab_size": tokens,
    }


def tokens_text(tokens: Sequence[str]) -> str:
    """`tokens.txt`: the blank as <blk>, the space between words as sentencepiece writes it."""
    written = ["<blk>", *(MARK if token == " " else token for token in tokens[1:])]
    return "".join(f"{token} {number}\n" for number, token in enumerate(written))
