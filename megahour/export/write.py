"""Write a model as a bundle: graphs, golden clips and manifest. Published only if its texts equal the model's."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from megahour.core.errors import ConfigError
from megahour.export import quantise, sherpa
from megahour.export.clips import SpokenClip, digest
from megahour.export.compare import GraphComparison, compare
from megahour.export.folder import GOLDEN, files_of, made_by, published
from megahour.export.graphs import (
    JoinerGraph,
    LstmPredictorGraph,
    OfflineGraph,
    PredictorGraph,
    StreamingCtc,
    StreamingEncoder,
)
from megahour.export.lstm_graph import StreamingLstm
from megahour.export.model import TrainedModel
from megahour.export.onnx_file import set_metadata, shorten, write_onnx
from megahour.export.origin import ModelOrigin
from megahour.export.params import CALIBRATED, ExportModelParams
from megahour.export.play import PlayedStream, padded, stream_rows
from megahour.export.program import FRAMES, write_program
from megahour.foreign.onnx_session import FRONT_END
from megahour.models.encoders import Lstm
from megahour.transcribe.bundle import Bundle, GoldenClip
from megahour.transcribe.bundle_files import MANIFEST
from megahour.transcribe.streaming import CHUNK_MS

OUTPUTS = {"ctc": "log_probs", "transducer": "encoder_out"}


@dataclass
class Draft:
    """An unfinished bundle, in a scratch folder beside its destination."""

    folder: Path
    model: TrainedModel
    params: ExportModelParams
    clips: Sequence[SpokenClip]
    calibration: Sequence[SpokenClip]
    origin: ModelOrigin
    graphs: dict[str, dict[str, str]] = field(default_factory=dict)
    quantisation: dict[str, dict[str, Any]] = field(default_factory=dict)
    golden: list[GoldenClip] = field(default_factory=list)
    played: dict[str, Any] = field(default_factory=dict)
    program: str = ""

    def bundle(self) -> Bundle:
        """Write the manifest of what the folder holds so far, and open it as a reader would."""
        model, front = self.model, self.model.front_end
        values = {
            "format": 1,
            "made_by": made_by(),
            "name": str(self.origin.provenance["model"]["digest"])[:12],
            "criterion": model.criterion,
            **self._sizes(),
            "tokens": model.tokens,
            "marks": bool(model.recogniser.mark),
            "front_end": front.model_dump(),
            "frames": model.frames,
            "look_ahead_s": model.look_ahead_s,
            "graphs": self.graphs,
            "streaming": self._stream(),
            "sherpa_onnx": {**model.sherpa_forms, **self.played},
            "quantisation": self.quantisation,
            "golden": [clip.model_dump() for clip in self.golden],
            "provenance": self.origin.provenance,
            "licences": self.origin.licences,
            "program": self.program,
            "files": dict(files_of(self.folder)),
        }
        (self.folder / MANIFEST).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return Bundle.open(str(self.folder))

    def _stream(self) -> dict[str, Any] | None:
        """The manifest's entry on streams. An LSTM takes chunks of any length, so `chunk` and `left` say nothing."""
        model, chunk, left = self.model, self.params.chunk, self.params.left
        if not model.streams:
            return None
        if model.config["kind"] == "lstm":
            chunk, left = max(1, round(CHUNK_MS["lstm"] / 10 / model.frames)), 0
        latency_s = chunk * model.frames / 100 + (model.look_ahead_s or 0.0)
        return {"kind": model.config["kind"], "chunk": chunk, "left": left, "latency_s": latency_s}

    def _sizes(self) -> dict[str, Any]:
        """Entries of the manifest for a transducer's predictor and joiner; none for CTC."""
        if self.model.criterion == "ctc":
            return {}
        width = int(self.model.config["join"])
        if self.model.predictor == "lstm":
            return {"width": width, "predictor": "lstm"}
        return {"width": width, "context": int(self.model.config["context"])}


def write_bundle(
    model: TrainedModel, params: ExportModelParams, origin: ModelOrigin, clips: Sequence[SpokenClip],
    calibration: Sequence[SpokenClip], out: str,
) -> tuple[Bundle, GraphComparison]:  # fmt: skip
    """Write a bundle to `out`, a local folder that must not exist yet; also returns the comparison on the golden clips.

    Raises
    ------
    ConfigError: `out` exists, static or mixed int8 lacks calibration clips, or a graph's texts of the clips differ from
        the model's. Nothing is left at `out`.
    """
    if "int8" in params.precisions and params.int8 in CALIBRATED and not calibration:
        raise ConfigError(
            f"int8 {params.int8} without calibration clips",
            where="export-model",
            remedy="export from a run's folder, give --calibration, or --int8 dynamic",
        )
    with published(out) as folder:
        result = _fill(Draft(folder, model, params, clips, calibration, origin))
    return Bundle.open(out), result


def _fill(draft: Draft) -> GraphComparison:
    (draft.folder / "tokens.txt").write_text(sherpa.tokens_text(draft.model.tokens), "utf-8")
    _offline(draft)
    if draft.model.criterion == "transducer":
        _search_graphs(draft)
    if draft.model.streams:
        _streaming(draft)
    for smaller in dict.fromkeys(draft.params.precisions):
        if smaller != "fp32":
            _smaller(draft, smaller)
    if draft.params.program:
        _program(draft)
    for number, clip in enumerate(draft.clips):
        sound = io.BytesIO()  # libsndfile says "System error" of a full disk
        soundfile.write(sound, clip.samples, draft.model.front_end.rate_hz, format="WAV")
        (draft.folder / GOLDEN / f"{number:03d}.wav").write_bytes(sound.getbuffer())
        np.save(draft.folder / GOLDEN / f"{number:03d}.npy", draft.model.output(clip.samples))
    found = compare(draft.model, draft.params, draft.bundle(), draft.clips)
    draft.played = {"version": found.sherpa} if found.sherpa else {}
    draft.golden = [
        GoldenClip(
            file=f"{GOLDEN}/{number:03d}.wav", said=clip.said, texts=found.texts[number],
            log_probs=f"{GOLDEN}/{number:03d}.npy",
        )
        for number, clip in enumerate(draft.clips)
    ]  # fmt: skip
    for form, precision in found.graphs:
        draft.quantisation.setdefault(f"{form} {precision}", {}).update(found.figures(form, precision))
    draft.bundle()
    return found


def _offline_graph(model: TrainedModel) -> OfflineGraph:
    return OfflineGraph(model.encoder, model.config, model.top, OUTPUTS[model.criterion])


def _offline(draft: Draft) -> None:
    model, path = draft.model, draft.folder / "model.onnx"
    graph = _offline_graph(model)
    x = torch.zeros(2, max(FRAMES, 4 * model.frames), model.front_end.mels)
    lengths = torch.tensor([x.shape[1], x.shape[1] // 2])
    output, output_lens = graph.outputs
    free = {"x": {0: "B", 1: "T"}, "x_lens": {0: "B"}, output: {0: "B", 1: "T'"}, output_lens: {0: "B"}}
    write_onnx(graph, (x, lengths), free, path)
    if model.criterion == "ctc":
        form = sherpa.forms(model.front_end, model.criterion, streams=False)["offline"]
        about = sherpa.offline_metadata(form, model.front_end.mels, len(model.tokens), model.frames)
        set_metadata(path, {**about, FRONT_END: model.front_end.model_dump_json()})
    draft.graphs["offline"] = {"fp32": path.name}


def _search_graphs(draft: Draft) -> None:
    """Write a transducer's predictor, which runtimes call decoder, and its joiner."""
    joint = draft.model.joint
    assert joint is not None
    width, lstm = draft.model.config["join"], draft.model.predictor == "lstm"
    decoder, joiner = (draft.folder / f"{name}.onnx" for name in ("decoder", "joiner"))
    predicts = (LstmPredictorGraph if lstm else PredictorGraph)(joint.predictor)  # type: ignore[arg-type]
    some = torch.zeros(2, width)
    for graph, given, path in ((predicts, predicts.example(), decoder), (JoinerGraph(joint), (some, some), joiner)):
        write_onnx(graph, given, {name: {0: "N"} for name in (*graph.inputs, *graph.outputs)}, path)
    context = {} if lstm else {"context_size": draft.model.config["context"]}
    set_metadata(decoder, {"vocab_size": len(draft.model.tokens), **context})
    set_metadata(joiner, {"joiner_dim": width})
    draft.graphs |= {"decoder": {"fp32": decoder.name}, "joiner": {"fp32": joiner.name}}


def _streaming(draft: Draft) -> None:
    model, p, path = draft.model, draft.params, draft.folder / "streaming.onnx"
    draft.graphs["streaming"] = {"fp32": path.name}
    if isinstance(model.encoder, Lstm):
        recurrent = StreamingLstm(model.encoder, model.config, model.top, OUTPUTS[model.criterion])
        write_onnx(recurrent, recurrent.example(model.front_end.mels), recurrent.free, path)
        return
    kind = StreamingEncoder if model.criterion == "transducer" else StreamingCtc
    graph = kind(model.encoder, model.config, model.top)  # type: ignore[arg-type]
    write_onnx(graph, graph.example(p.chunk, p.chunk * p.left, model.front_end.mels), graph.free, path)
    set_metadata(path, sherpa.streaming_metadata(graph, len(model.tokens), p.chunk, p.left))


def _smaller(draft: Draft, precision: str) -> None:
    """Write each graph in fp16 or int8 too. In int8, decoder and joiner are never calibrated."""
    leave: list[str] = []
    about: dict[str, Any] = {}
    how = draft.params.int8
    least = math.inf if how == "weights" else quantise.LEAST_COMPUTED
    if precision == "int8" and how in CALIBRATED:
        about = {"calibration": {"clips": len(draft.calibration), "sha256": digest(draft.calibration)}}
    if precision == "int8" and how == "mixed":
        leave, sensitivity = _sensitive(draft)
        about |= {"kept_fp32": [_layer(name) for name in leave], "divergence": sensitivity}
    for form, graphs in draft.graphs.items():
        source, encodes = draft.folder / graphs["fp32"], form in ("offline", "streaming")
        target = source.with_name(f"{source.stem}.{precision}.onnx")
        if precision == "fp16":
            quantise.to_fp16(source, target)
        elif encodes:
            order = dict(zip(quantise.layers(draft.folder / "model.onnx"), quantise.layers(source), strict=True))
            feeds = _feeds(draft, form) if how == "static" else None
            quantise.to_int8(source, target, leave=[order[name] for name in leave], feeds=feeds, least=least)
        else:
            quantise.to_int8(source, target, least=least)
        graphs[precision] = target.name
        ranges = quantise.ranges(target)
        shorten(target)
        share = round(target.stat().st_size / source.stat().st_size, 4)
        found = {"how": how if precision == "int8" else "weights", "share_of_fp32": share, **(about if encodes else {})}
        if ranges:
            found["ranges"] = ranges
        draft.quantisation[f"{form} {precision}"] = found


def _feeds(draft: Draft, form: str) -> Iterator[dict[str, Any]]:
    """A graph's inputs for the calibration clips."""
    model, bundle = draft.model, draft.bundle()
    stream = PlayedStream(bundle) if form == "streaming" else None
    for clip in draft.calibration:
        if stream is not None:
            samples = padded(clip.samples, model.front_end.rate_hz, stream.chunk * model.frames / 100)
            yield from stream.feeds(stream_rows(bundle, model.recogniser.front, samples))
        else:
            rows = model.recogniser.front.utterance(clip.samples, mean=False)
            yield {"x": rows[None], "x_lens": np.array([len(rows)])}


def _sensitive(draft: Draft) -> tuple[list[str], dict[str, float]]:
    """Layers to keep in fp32 so that the texts of the calibration clips do not change, and each layer's divergence.

    Layers are taken in order of divergence, the change of the output when only that layer is quantised.
    """
    source, feeds = draft.folder / "model.onnx", list(_feeds(draft, "offline"))
    output = _offline_graph(draft.model).outputs[0]
    found = quantise.divergences(source, feeds, output)
    order = sorted(found, key=lambda name: -found[name])
    kept = 0
    target = draft.folder / "trial.onnx"
    texts = [draft.model.text(values[0]) for values in quantise.outputs_of(source, feeds, output)]
    while kept < len(order):
        quantise.to_int8(source, target, leave=order[:kept])
        if [draft.model.text(values[0]) for values in quantise.outputs_of(target, feeds, output)] == texts:
            break
        kept += 1
    target.unlink(missing_ok=True)
    return order[:kept], {_layer(name): float(f"{found[name]:.3g}") for name in order}


def _layer(node: str) -> str:
    """`/encoder/blocks.0/gate/MatMul` → `encoder.blocks.0.gate`."""
    return ".".join(node.strip("/").split("/")[:-1])


def _program(draft: Draft) -> None:
    model = draft.model
    draft.program = "model.pt2"
    write_program(_offline_graph(model), model.front_end.mels, model.frames, draft.folder / draft.program)
