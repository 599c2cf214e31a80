"""Worker side of `import-aligner`: token list and file are read, compared, tried on noise, and stored as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.filesystems import file_system
from megahour.models.foreign import SUFFIX, ForeignModel, log_softmax
from megahour.units.tokens import MARK

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter
    from megahour.models.huggingface import Checkpoint
    from megahour.models.params import ImportAlignerParams

BLANKS = ("<blank>", "<blk>", "<pad>", "[PAD]", "<eps>", "[blank]", "_")
SEPARATORS = ("|", " ", "<space>")
MAX_MODEL_BYTES = 2 << 30
MAX_TOKENS_BYTES = 64 << 20
NOISE_S = (1, 3)


def import_aligner(p: ImportAlignerParams, out: ShardWriter) -> None:
    """Write a *model* artifact's only shard: the file itself and `.model.json`.

    Raises
    ------
    ConfigError: what is missing, does not fit or fails on noise, with the numbers.
    """
    if not p.model:
        raise ConfigError("model is empty", where="import-aligner", remedy="give the path of the model")
    kind, own = _kind(p), {}
    if kind in ("huggingface", "nemo"):
        found = _checkpoint(p, kind)
        kind = "huggingface"
        tokens, data = found.tokens, found.weights
        own = {"architecture": found.architecture, "extractor": found.extractor}
        p = _as_checkpoint_says(p, {"rate_hz": found.rate_hz, "blank": tokens[found.blank]})
    elif p.tokens:
        tokens, data = read_tokens(p.tokens), _read(p.model, MAX_MODEL_BYTES)
    else:
        raise ConfigError("tokens is empty", where="import-aligner", remedy="give the path of the tokens file")

    def config() -> dict[str, Any]:
        return {"format": 1, "kind": kind, "criterion": "ctc", **ordered(p, tokens), **_audio(p), **_run(p), **own}

    model = ForeignModel(config(), data, where=p.model)
    if kind == "huggingface":
        p = _as_checkpoint_says(p, {"frame_shift_samples": _shift(model, p)})
    try_on_noise(model, p, len(tokens))
    with out.open(SUFFIX[kind]) as file:
        file.write(data)
    out.json(config(), ".model.json")
    out.came_in()
    out.kept()
    out.stats.update({"outputs": len(tokens), "bytes": len(data)})


def read_tokens(path: str) -> list[str]:
    """Tokens in the order of the model's outputs.

    From JSON (a list, or a mapping token → number) or text: a token a line, and after a blank its number where every
    line has one (`a 5`). A line that is only a blank is the token " ".
    """
    text = _read(path, MAX_TOKENS_BYTES).decode("utf-8-sig", errors="strict")
    if path.lower().endswith(".json"):
        found = _parsed(text, path)
    else:
        lines = [line.rstrip("\r\n") for line in text.splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        pairs = [line.rpartition(" ") for line in lines]
        numbered = all(token and number.isdigit() for token, _, number in pairs)
        found = {token: int(number) for token, _, number in pairs} if numbered else lines
    if isinstance(found, Mapping):
        numbers = sorted(found.values())
        if numbers != list(range(len(numbers))):
            raise ConfigError(f"{len(numbers)} tokens are not numbered 0 … {len(numbers) - 1}", where=path)
        found = sorted(found, key=lambda token: found[token])
    doubled = {token for token in found if found.count(token) > 1} if len(set(found)) < len(found) else set()
    if doubled or not found:
        what = f"the token {min(doubled)!r} occurs more than once" if doubled else "an empty token list"
        raise ConfigError(what, where=path)
    return list(found)


def _parsed(text: str, path: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=path) from None
    flat = isinstance(found, list) and all(isinstance(token, str) for token in found)
    numbered = isinstance(found, dict) and all(type(number) is int for number in found.values())
    if not flat and not numbered:
        raise ConfigError("neither a list of tokens nor a mapping of tokens to numbers", where=path)
    return found


def ordered(p: ImportAlignerParams, tokens: Sequence[str]) -> dict[str, Any]:
    """`tokens` as the aligner spells with them, the blank first, and `order`: the model's output of each.

    The separator becomes " ". Upper-case letters become lower-case ones, as in normalised text, where the list has no
    lower-case letters of its own (or `case` says so).

    Raises
    ------
    ConfigError: no such token, or two tokens that are equal in lower case.
    """
    blank = _special(p.blank, tokens, BLANKS, "blank")
    separator = _special(p.separator, tokens, SEPARATORS, "separator")
    order = [blank, *(i for i in range(len(tokens)) if i != blank)]
    letters = [token for i, token in enumerate(tokens) if i not in (blank, separator) and not _is_sign(token)]
    upper = any(token != token.lower() for token in letters)
    lower = any(token != token.upper() for token in letters)
    if p.case == "upper" or (p.case == "auto" and upper and not lower):
        tokens = [token if _is_sign(token) else token.lower() for token in tokens]
        doubled = sorted({token for token in tokens if tokens.count(token) > 1})
        if doubled:
            raise ConfigError(f"two tokens are {doubled[0]!r} in lower case", where=p.tokens, remedy="case: lower")
    spelled = [" " if i == separator else tokens[i] for i in order]
    marks = any(token.startswith(MARK) for token in tokens)
    return {"outputs": len(tokens), "tokens": ["<blank>", *spelled[1:]], "order": order, "marks": marks}


def _is_sign(token: str) -> bool:
    """`<unk>`, `[PAD]`: a sign for the model's own use, not text."""
    return len(token) > 2 and token[0] + token[-1] in ("<>", "[]")


def _special(asked: str, tokens: Sequence[str], usual: Sequence[str], role: str) -> int:
    """Index of a special token; -1 for a separator that the list does not have."""
    for token in (asked,) if asked else usual:
        if token in tokens:
            return tokens.index(token)
    if asked or role == "blank":
        what = f"the list has no token {asked!r}" if asked else f"none of {', '.join(usual)} is in the list"
        raise ConfigError(what, where="import-aligner", remedy=f"say with `{role}` which token it is")
    return -1


def try_on_noise(model: ForeignModel, p: ImportAlignerParams, tokens: int) -> None:
    """Run noise of one second and of three: outputs must fit the list, be finite, and advance at the stated shift."""
    frames = []
    for seconds in NOISE_S:
        try:
            values = model.run(_noise(p, seconds))
        except MegahourError:
            raise
        except Exception as error:  # whatever the library raises says that the file is called wrongly
            remedy = "check input, layout, mels, input_name and length_name"
            raise ConfigError(
                f"the model fails on {seconds} s of noise: {error}", where=p.model, remedy=remedy
            ) from None
        if values.shape[1] != tokens:
            raise ConfigError(
                f"the model gives {values.shape[1]} values a frame, the list has {tokens} tokens",
                where=p.tokens,
                remedy="give the token list that the model was trained with, its blank included",
            )
        if not np.isfinite(values).all():
            raise ConfigError(f"the model gives NaN or infinity for {seconds} s of noise", where=p.model)
        frames.append(len(values))
    due = (NOISE_S[1] - NOISE_S[0]) * p.rate_hz / p.frame_shift_samples
    if abs(frames[1] - frames[0] - due) > 2:
        shift = likely_shift((NOISE_S[1] - NOISE_S[0]) * p.rate_hz, frames[1] - frames[0], p.rate_hz)
        raise ConfigError(
            f"frame_shift_samples = {p.frame_shift_samples}, but two more seconds give {frames[1] - frames[0]} frames",
            where=p.model,
            remedy=f"it looks like {shift} samples, or the rate is not {p.rate_hz} Hz",
        )
    sums = np.exp(log_softmax(values, normal=True).astype(np.float64)).sum(axis=1)
    if p.output == "log-probs" and np.abs(sums - 1).max() > 0.01:
        raise ConfigError(
            f"the outputs are no log posteriors: they add up to {sums[0]:.3g}", where=p.model, remedy="output: logits"
        )


def likely_shift(samples: int, frames: int, rate_hz: int) -> int:
    """Samples from one output frame to the next, where `samples` give `frames`: the roundest that fits within a frame.

    >>> likely_shift(32_000, 67, 16_000)  # 32000 / 67 = 477.6
    480
    """
    for grid in (rate_hz // 100, rate_hz // 200, rate_hz // 400, rate_hz // 800):  # 10 ms and less
        shift = grid * max(1, round(samples / max(1, frames) / max(1, grid)))
        if shift and abs(samples / shift - frames) <= 1:
            return shift
    return round(samples / max(1, frames))


def _checkpoint(p: ImportAlignerParams, kind: str) -> Checkpoint:
    from megahour.models.huggingface import read_checkpoint
    from megahour.models.nemo import read_nemo

    return read_nemo(p.model) if kind == "nemo" else read_checkpoint(p.model, p.language)


def _shift(model: ForeignModel, p: ImportAlignerParams) -> int:
    """Samples between the output frames of a model of waveforms, by its outputs for noise."""
    frames = [len(model.run(_noise(p, seconds))) for seconds in NOISE_S]
    return likely_shift((NOISE_S[1] - NOISE_S[0]) * p.rate_hz, frames[1] - frames[0], p.rate_hz)


def _as_checkpoint_says(p: ImportAlignerParams, found: Mapping[str, Any]) -> ImportAlignerParams:
    """The parameters with what a checkpoint says itself. Raises ConfigError: the user says something else."""
    fixed = {**found, "input": "waveform", "scale": "unit", "normalise": False, "output": "logits"}
    for name, value in fixed.items():
        default, given = type(p).model_fields[name].default, getattr(p, name)
        if given not in (default, value):
            what = f"{name} = {given!r}, but the checkpoint has {value!r}"
            raise ConfigError(what, where=p.model, remedy=f"leave {name} out: a checkpoint says it itself")
    return p.model_copy(update=fixed)


def _noise(p: ImportAlignerParams, seconds: int) -> Any:
    """(T, F) frames of noise as the model is fed: samples by the output frame, or log-mel frames of 10 ms."""
    rng = np.random.Generator(np.random.PCG64(seconds))
    if p.input == "log-mel":
        return rng.normal(0.0 if p.normalise else 8.0, 1.0, (100 * seconds, p.mels)).astype(np.float32)
    frames = seconds * p.rate_hz // p.frame_shift_samples
    sigma = 1.0 if p.normalise else 0.1 * (32768 if p.scale == "int16" else 1)
    return rng.normal(0.0, sigma, (frames, p.frame_shift_samples)).astype(np.float32)


def _kind(p: ImportAlignerParams) -> str:
    if p.format != "auto":
        return p.format
    name = p.model.lower()
    if name.endswith(".onnx"):
        return "onnx"
    if name.endswith((".pt", ".ts", ".pth", ".torchscript", ".jit")):
        return "torchscript"
    if name.endswith(".nemo"):
        return "nemo"
    from megahour.models.huggingface import is_checkpoint

    if is_checkpoint(p.model):
        return "huggingface"
    remedy = "format: onnx or torchscript; or a folder with the config.json of a Hugging Face checkpoint"
    raise ConfigError("the file's name does not say what it is", where=p.model, remedy=remedy)


def _audio(p: ImportAlignerParams) -> dict[str, Any]:
    names = ("input", "rate_hz", "frame_shift_samples", "scale", "normalise", "mels", "low_hz", "high_hz")
    return {"audio": {name: getattr(p, name) for name in names}}


def _run(p: ImportAlignerParams) -> dict[str, Any]:
    names = ("input_name", "length_name", "output_name", "layout")
    return {"run": {**{name: getattr(p, name) for name in names}, "log_probs": p.output == "log-probs"}}


def _read(path: str, limit: int) -> bytes:
    fs, inner = file_system(path)
    try:
        size = fs.size(inner)
        if size > limit:
            raise ConfigError(f"{size} bytes, at most {limit}", where=path)
        return bytes(fs.cat_file(inner))
    except FileNotFoundError:
        raise ConfigError("no such file", where=path) from None
