"""Write the files of a voice's bundle that sherpa-onnx reads: graphs with metadata, lexicon, tokens.

According to its sources, sherpa-onnx 2.0.1 has two lexicon front ends. The one for VITS takes phone names as they are.
The one for Matcha splits a phone's name into letters unless it ends in a digit or a Latin letter, and then has no
tokens for diacritics; so in the Matcha form each phone's name ends in its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megahour.export import quantise
from megahour.export.onnx_file import set_metadata, write_onnx
from megahour.export.origin import ModelOrigin
from megahour.export.voice_graph import (
    ENDS,
    PAUSE_NUMBER,
    PAUSES,
    SPACE,
    AcousticGraph,
    VocoderGraph,
    VoiceGraph,
)
from megahour.tts.sound_file import NOTICE
from megahour.tts.speaking import Speaker
from megahour.tts.voice_bundle import FILES, VOCODER, Form, Precision
from megahour.units.lexicon import write_lexicon

_TOLD: dict[Form, dict[str, Any]] = {
    "vits": {"model_type": "vits", "add_blank": 0, "punctuation": " ".join(PAUSES + ENDS), "voice": ""},
    # Up to version 1, "jieba" selects the lexicon front end.
    "matcha": {"model_type": "matcha-tts", "version": 1, "jieba": 1, "use_eos_bos": 0, "pad_id": SPACE},
}


def write_words(folder: Path, form: Form, phones: Mapping[str, Sequence[str]], symbols: Sequence[str]) -> None:
    """Write the lexicon and tokens of one form. phones: by word; symbols: the voice's, indexed by number."""
    names = {symbol: symbol if form == "vits" else f"{symbol}{number}" for number, symbol in enumerate(symbols)}
    lexicon, tokens = (folder / name for name in FILES[form])
    lexicon.parent.mkdir(exist_ok=True)
    lexicon.write_text(write_lexicon({word: [[names[each] for each in own]] for word, own in phones.items()}), "utf-8")
    lines = [f"  {SPACE}"]
    lines += [f"{names[symbol]} {number}" for number, symbol in enumerate(symbols) if number > PAUSE_NUMBER]
    lines += [f"{mark} {PAUSE_NUMBER}" for mark in PAUSES] + [f"{mark} {len(symbols)}" for mark in ENDS]
    tokens.write_text("\n".join(lines) + "\n", "utf-8")


def write_graphs(
    folder: Path, form: Form, speaker: Speaker, language: str, precisions: Sequence[Precision]
) -> dict[Precision, str]:
    """Write the graphs of a form; returns its files by precision. Matcha's vocoder is written in fp32 only."""
    graph = VoiceGraph(speaker, language) if form == "vits" else AcousticGraph(speaker, language)
    name = "model" if form == "vits" else "matcha/acoustic"
    path = folder / f"{name}.onnx"
    write_onnx(graph, graph.example(), graph.free, path)
    files: dict[Precision, str] = {"fp32": f"{name}.onnx"}
    for precision in precisions:
        if precision not in files:
            files[precision] = f"{name}.{precision}.onnx"
            smaller = quantise.to_fp16 if precision == "fp16" else quantise.to_int8
            smaller(path, folder / files[precision])
    if form == "matcha":
        vocoder = VocoderGraph(speaker)
        write_onnx(vocoder, vocoder.example(), vocoder.free, folder / VOCODER)
        set_metadata(folder / VOCODER, {"model_type": "hifigan", "sample_rate": speaker.rate_hz, "comment": NOTICE})
    return files


def sherpa_metadata(speaker: Speaker, origin: ModelOrigin, language: str, form: Form) -> dict[str, Any]:
    """Metadata of a voice graph: first what sherpa-onnx reads, then what people should know.

    `comment` is fixed: sherpa-onnx searches it for toolkit names, and an attribution with one would mislead it.
    """
    licences = licences_of(speaker, origin)
    return {
        **_TOLD[form],
        "has_espeak": 0,
        "comment": NOTICE,
        "language": language,
        "sample_rate": speaker.rate_hz,
        "n_speakers": len(speaker.voices),
        "synthetic": f"what this model says is {NOTICE}: say so to those who hear it",
        "speakers": ", ".join(speaker.voices),
        "license": " AND ".join(dict.fromkeys(each["licence"] for each in licences)),
        "attribution": "; ".join(dict.fromkeys(each["attribution"] for each in licences if each["attribution"])),
    }


def licences_of(speaker: Speaker, origin: ModelOrigin) -> list[dict[str, Any]]:
    """Licences and attributions of the voice's training data; without a run, only the licences."""
    named = {each["licence"] for each in origin.licences}
    own = [{"licence": each, "attribution": ""} for each in speaker.config.get("licences", []) if each not in named]
    return [*origin.licences, *own]
