"""Imports a CTC model (work of stage `import-aligner`): reads it and its tokens, tries it on noise and stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.filesystems import file_system
from megahour.foreign.model import SUFFIX, ForeignModel
from megahour.foreign.onnx_session import FRONT_END, GraphFacts, graph_facts
from megahour.foreign.params import ImportAlignerParams
from megahour.foreign.token_list import ordered, read_file, read_tokens

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter
    from megahour.foreign.huggingface import CtcCheckpoint

MAX_MODEL_BYTES = 2 << 30
NOISE_S = (1, 11)
BUNDLE, GRAPH, TOKENS = "bundle.json", "model.onnx", "tokens.txt"  # in a folder of `export-model`
FORMATS = {
    ".onnx": "onnx",
    ".nemo": "nemo",
    **dict.fromkeys((".pt", ".ts", ".pth", ".torchscript", ".jit"), "torchscript"),
}
"""Formats by the ends of files' names."""
ESPNET = (".zip", ".pth")  # ends that ESPnet's files may have


def import_aligner(p: ImportAlignerParams, out: ShardWriter) -> None:
    """Write the only shard of a *model* artifact: the model file and `.model.json`.

    Raises
    ------
    ConfigError: a parameter or file is missing, the tokens do not fit, or the model fails on noise.
    """
    if not p.model:
        raise ConfigError("model is empty", where="import-aligner", remedy="give the path of the model")
    p = _in_bundle(p)
    kind = _kind(p)
    own: dict[str, Any] = {}
    if kind in ("huggingface", "nemo", "espnet", "speechbrain"):
        if p.tokens:
            raise ConfigError(f"{p.model} has its own tokens", where="tokens", remedy="leave tokens out")
        checkpoint = _checkpoint(p, kind)
        kind = "huggingface" if kind == "nemo" else kind
        tokens, data = checkpoint.tokens, checkpoint.weights
        own = {"architecture": checkpoint.architecture, "extractor": checkpoint.extractor}
        fixed = {"rate_hz": checkpoint.rate_hz, "blank": tokens[checkpoint.blank]}
        if kind == "espnet":
            fixed["frame_shift_samples"] = checkpoint.extractor["frame_shift_samples"]
        p = _with_checkpoint(p, fixed)
        p = p.model_copy(update={"separator": p.separator or checkpoint.separator})
    elif p.tokens:
        tokens, data = read_tokens(p.tokens), read_file(p.model, MAX_MODEL_BYTES)
    else:
        raise ConfigError("tokens is empty", where="import-aligner", remedy="give the path of the tokens file")

    if kind == "onnx":
        p = _with_graph(p, graph_facts(data, where=p.model))
    _check_filters(p)
    own |= {"format": 1, "kind": kind, "criterion": "ctc", **ordered(p, tokens), **_run(p)}
    shift = try_on_noise(ForeignModel({**own, **_audio(p)}, data, where=p.model), p, len(tokens))
    p = p.model_copy(update={"frame_shift_samples": shift})
    with out.open(SUFFIX[kind]) as file:
        file.write(data)
    out.json({**own, **_audio(p)}, ".model.json")
    out.kept_all()
    out.stats.update({"outputs": len(tokens), "bytes": len(data)})


def try_on_noise(model: ForeignModel, p: ImportAlignerParams, tokens: int) -> int:
    """Run the model on one and on eleven seconds of noise.

    Returns the samples between output frames: `frame_shift_samples` if it is set, else the measured number.

    Raises
    ------
    ConfigError: the model fails, or its outputs do not match the tokens, are not finite or have another frame shift.
    """
    frames = []
    for seconds in NOISE_S:
        try:
            values = model.run(_noise(p, seconds))
        except MegahourError:
            raise
        except Exception as error:  # libraries raise many classes when the model is called wrongly
            remedy = "check input, layout, mels, input_name and length_name"
            raise ConfigError(
                f"the model fails on {seconds} s of noise: {error}", where=p.model, remedy=remedy
            ) from None
        if values.shape[1] != tokens:
            raise ConfigError(
                f"the model has {values.shape[1]} outputs, but the list has {tokens} tokens",
                where=p.tokens,
                remedy="give the token list that the model was trained with, including the blank",
            )
        if not np.isfinite(values).all():
            raise ConfigError(f"the model returns NaN or infinity for {seconds} s of noise", where=p.model)
        frames.append(len(values))
    more_s, added = NOISE_S[1] - NOISE_S[0], frames[1] - frames[0]
    shift = p.frame_shift_samples
    if abs(added - more_s * p.rate_hz / shift) > 2:
        shift = likely_shift(more_s * p.rate_hz, added, p.rate_hz)
    if shift != p.frame_shift_samples and p.differs("frame_shift_samples"):
        raise ConfigError(
            f"frame_shift_samples = {p.frame_shift_samples}, but {more_s} more seconds add {added} frames",
            where=p.model,
            remedy=f"the shift is probably {shift} samples, or the rate is not {p.rate_hz} Hz",
        )
    if p.input == "log-mel" and shift * 100 % p.rate_hz:
        what = f"{more_s} more seconds add {added} frames: not a whole number of 10 ms log-mel frames each"
        raise ConfigError(what, where=p.model, remedy="set rate_hz to the rate of the model's audio")
    _check_output(p, values)
    return shift


def _check_output(p: ImportAlignerParams, values: Any) -> None:
    """Raises ConfigError: the outputs (T, V) are probabilities, or are not the log posteriors that they should be."""
    if (values >= 0).all() and np.abs(values.sum(axis=1) - 1).max() < 0.01:
        what = "the outputs are probabilities, after a softmax; as logits they would be almost equal"
        raise ConfigError(what, where=p.model, remedy="export the model with logits or log probabilities")
    if p.output == "logits":
        return
    with np.errstate(over="ignore"):
        sums = np.exp(values.astype(np.float64)).sum(axis=1)
    if np.abs(sums - 1).max() > 0.01:
        what = f"the outputs are not log posteriors: they sum to {sums[0]:.3g}"
        raise ConfigError(what, where=p.model, remedy="output: logits")


def likely_shift(samples: int, frames: int, rate_hz: int) -> int:
    """Samples between output frames if `samples` give `frames`: the roundest number that fits to within a frame.

    >>> likely_shift(32_000, 67, 16_000)  # 32000 / 67 = 477.6
    480
    """
    for grid in (rate_hz // 100, rate_hz // 200, rate_hz // 400, rate_hz // 800):  # 10 ms and less
        shift = grid * max(1, round(samples / max(1, frames) / max(1, grid)))
        if shift and abs(samples / shift - frames) <= 1:
            return shift
    return round(samples / max(1, frames))


def _in_bundle(p: ImportAlignerParams) -> ImportAlignerParams:
    """The parameters with the graph and the tokens of a bundle, if `model` is the folder of one."""
    if p.format != "auto" or p.model.lower().endswith((*FORMATS, *ESPNET)):
        return p  # what lies beside a file is not ours to ask for: credentials may be for the file alone
    fs, inner = file_system(p.model)
    folder, inner = p.model.rstrip("/"), inner.rstrip("/")
    if not fs.exists(f"{inner}/{BUNDLE}"):
        return p
    if not fs.exists(f"{inner}/{GRAPH}"):
        what = f"the bundle has no {GRAPH}, the graph of a CTC model for whole utterances"
        raise ConfigError(what, where=p.model, remedy="export a model of criterion ctc")
    # A transducer's graph of this name gives frames of its encoder, which may be as many numbers as there are tokens.
    if (criterion := _criterion(fs.cat_file(f"{inner}/{BUNDLE}"))) not in ("", "ctc"):
        what = f"the bundle is of criterion {criterion}, whose {GRAPH} has no posteriors of tokens for single frames"
        raise ConfigError(what, where=p.model, remedy="export a model of criterion ctc")
    return p.model_copy(update={"model": f"{folder}/{GRAPH}", "tokens": p.tokens or f"{folder}/{TOKENS}"})


def _criterion(bundle: bytes) -> str:
    """The criterion in a bundle's `bundle.json`; "" if it names none."""
    try:
        return str(json.loads(bundle).get("criterion", ""))
    except (ValueError, AttributeError):
        return ""


def _checkpoint(p: ImportAlignerParams, kind: str) -> CtcCheckpoint:
    from megahour.foreign.espnet import read_espnet
    from megahour.foreign.huggingface import read_checkpoint
    from megahour.foreign.nemo import read_nemo
    from megahour.foreign.speechbrain import read_speechbrain

    readers = {"espnet": read_espnet, "nemo": read_nemo, "speechbrain": read_speechbrain}
    return readers[kind](p.model) if kind in readers else read_checkpoint(p.model, p.language)


def _with_checkpoint(p: ImportAlignerParams, values: Mapping[str, Any]) -> ImportAlignerParams:
    """The parameters with the values that the checkpoint fixes. Raises ConfigError: the user set another value."""
    fixed = {**values, "input": "waveform", "scale": "unit", "normalise": False, "output": "logits"}
    return _with_fixed(p, fixed, "checkpoint")


def _with_fixed(p: ImportAlignerParams, fixed: Mapping[str, Any], by: str) -> ImportAlignerParams:
    for name, value in fixed.items():
        if p.differs(name) and getattr(p, name) != value:
            what = f"{name} = {getattr(p, name)!r}, but the {by} has {value!r}"
            raise ConfigError(what, where=p.model, remedy=f"leave {name} out: the {by} defines it")
    return p.model_copy(update=fixed)


def _with_graph(p: ImportAlignerParams, graph: GraphFacts) -> ImportAlignerParams:
    """The parameters with values from an ONNX graph's inputs, for those that the user did not set.

    Raises ConfigError: the user set another value than the graph's own metadata.

    An input with three axes is log-mel, and an integer input is the length. The metadata of graphs of `export-model`
    have the front end. icefall's models, which theirs name, have filters up to 400 Hz below the Nyquist frequency.
    """
    audio = graph.inputs.get(p.input_name) if p.input_name else next(iter(graph.inputs.values()), None)
    seen: dict[str, Any] = {}
    if audio is not None and len(audio) == 3:
        frames_first = isinstance(audio[2], int) or not isinstance(audio[1], int)
        mels = audio[2] if frames_first else audio[1]
        seen |= {"input": "log-mel", "layout": "frames-first" if frames_first else "mels-first"}
        seen |= {"mels": mels} if isinstance(mels, int) else {}
    if graph.lengths:
        seen["length_name"] = graph.lengths[0]
    if graph.notes.get("model_author") == "k2-fsa":
        seen["high_hz"] = -400.0
    own = _front_end(graph, p.model)
    seen = {name: value for name, value in seen.items() if name not in own and not p.differs(name)}
    p = _with_fixed(p, own, "graph").model_copy(update=seen)
    _check_axes(audio or [], 2 if p.layout == "mels-first" and len(audio or []) == 3 else 1, p.model)
    return p


def _check_axes(axes: Sequence[Any], time: int, where: str) -> None:
    """Raises ConfigError: a graph's input has a fixed length, or always several sequences."""
    unit = "samples" if len(axes) == 2 else "frames"
    fixed = [f"{size} {unit}" for size in axes[time : time + 1] if isinstance(size, int)]
    fixed += [f"{size} sequences" for size in axes[:1] if isinstance(size, int) and size != 1]
    if fixed:
        remedy = "export it with dynamic axes, for audio of any length and one sequence at a time"
        raise ConfigError(f"the graph takes only inputs of {fixed[0]}", where=where, remedy=remedy)


def _check_filters(p: ImportAlignerParams) -> None:
    """Raises ConfigError: mel filters that audio of this rate has no frequencies for."""
    top_hz = p.high_hz if p.high_hz > 0 else p.rate_hz / 2 + p.high_hz
    if p.input == "log-mel" and not p.low_hz < top_hz <= p.rate_hz / 2:
        what = f"mel filters from {p.low_hz:g} to {top_hz:g} Hz do not fit below {p.rate_hz / 2:g} Hz"
        raise ConfigError(what, where=p.model, remedy="set low_hz, high_hz and rate_hz as in the model's training")


def _front_end(graph: GraphFacts, where: str) -> dict[str, Any]:
    """Settings in the metadata of a graph of `export-model`. Raises ConfigError: they are damaged."""
    names = ("rate_hz", "scale", "mels", "low_hz", "high_hz", "edges")
    try:
        noted = json.loads(graph.notes.get(FRONT_END, "{}"))
        own = {name: noted[name] for name in names if name in noted}
        ImportAlignerParams.model_validate(own)
    except (ValueError, TypeError, RecursionError):  # a ValidationError is a ValueError
        what = f"its metadata `{FRONT_END}` are damaged"
        raise ConfigError(what, where=where, remedy="export the model again") from None
    return own


def _noise(p: ImportAlignerParams, seconds: int) -> Any:
    """Noise (T, F) as input of the model: log-mel frames of 10 ms, or the samples of each output frame."""
    rng = np.random.Generator(np.random.PCG64(seconds))
    if p.input == "log-mel":
        return rng.normal(0.0 if p.normalise else 8.0, 1.0, (100 * seconds, p.mels)).astype(np.float32)
    frames = seconds * p.rate_hz // p.frame_shift_samples
    sigma = 1.0 if p.normalise else 0.1 * (32768 if p.scale == "int16" else 1)
    return rng.normal(0.0, sigma, (frames, p.frame_shift_samples)).astype(np.float32)


def _kind(p: ImportAlignerParams) -> str:
    if p.format != "auto":
        return p.format
    from megahour.foreign.espnet import is_espnet

    name = p.model.lower()
    if name.endswith(ESPNET) and is_espnet(p.model):
        return "espnet"
    if shown := next((kind for end, kind in FORMATS.items() if name.endswith(end)), ""):
        return shown
    from megahour.foreign.huggingface import CONFIG, Folder, is_checkpoint
    from megahour.foreign.speechbrain import is_speechbrain

    if is_speechbrain(p.model):  # whose repositories have a config.json, too
        return "speechbrain"
    espnet = is_espnet(p.model)
    if is_checkpoint(p.model) and not (espnet and "model_type" not in Folder(p.model).json(CONFIG)):
        return "huggingface"
    if espnet:  # whose repositories may have a config.json for the hub's statistics
        return "espnet"
    fs, inner = file_system(p.model)
    if not fs.exists(inner):
        raise ConfigError("no such file or folder", where=p.model, remedy="check the path")
    remedy = "format: onnx or torchscript; or a folder with config.json (Hugging Face), meta.yaml (ESPnet) "
    remedy += "or hyperparams.yaml (SpeechBrain); or the .pth beside config.yaml (ESPnet)"
    raise ConfigError("the file's name does not show its format", where=p.model, remedy=remedy)


def _audio(p: ImportAlignerParams) -> dict[str, Any]:
    names = ("input", "rate_hz", "frame_shift_samples", "scale", "normalise", "mels", "low_hz", "high_hz", "edges")
    return {"audio": {name: getattr(p, name) for name in names}}


def _run(p: ImportAlignerParams) -> dict[str, Any]:
    names = ("input_name", "length_name", "output_name", "layout")
    return {"run": {**{name: getattr(p, name) for name in names}, "log_probs": p.output == "log-probs"}}
