"""Compare a bundle's graphs with the model, in onnxruntime and, if it is installed, in sherpa-onnx."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.corpus.text.edit_distance import distance
from megahour.export.clips import SpokenClip
from megahour.export.model import TrainedModel, greedy, text_of
from megahour.export.params import ExportModelParams
from megahour.export.play import PlayedStream, SherpaOffline, SherpaStream, padded, stream_rows
from megahour.transcribe.bundle import Bundle, StreamSettings
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser

Float32 = NDArray[np.float32]


@dataclass
class GraphComparison:
    """Texts of each clip by form and precision, and the largest output differences.

    sherpa: the version of sherpa-onnx that gave the same texts; "" if none was tried.
    """

    clips: Sequence[SpokenClip]
    texts: list[dict[str, dict[str, str]]]
    graphs: list[tuple[str, str]] = field(default_factory=list)
    differences: dict[tuple[str, str], float] = field(default_factory=dict)
    sherpa: str = ""

    def figures(self, form: str, precision: str) -> dict[str, Any]:
        """The number of clips with the fp32 text, the largest output difference, and the WER if all texts are known."""
        pairs = [(each[form][precision], each[form]["fp32"]) for each in self.texts]
        found: dict[str, Any] = {
            "same_texts": sum(one == other for one, other in pairs),
            "clips": len(pairs),
            "largest_difference": round(self.differences[form, precision], 6),
        }
        if all(clip.said for clip in self.clips):
            found["wer"] = round(self.wer(form, precision), 4)
        return found

    def wer(self, form: str, precision: str) -> float:
        """Word error rate over all clips, in per cent."""
        said = [clip.said.split() for clip in self.clips]
        heard = [each[form][precision].split() for each in self.texts]
        wrong = sum(distance(one, other) for one, other in zip(said, heard, strict=True))
        return 100 * wrong / max(1, sum(map(len, said)))


def compare(
    model: TrainedModel, params: ExportModelParams, bundle: Bundle, clips: Sequence[SpokenClip]
) -> GraphComparison:
    """Run every graph on the clips and compare its texts and outputs with the model's.

    Raises ConfigError: an fp32 graph, or the program, gives another text, or its outputs differ by more than the
    tolerance.
    """
    found = GraphComparison(clips, [{} for _ in clips])
    for form in ("offline", "streaming"):
        settings = bundle.manifest.streaming if form == "streaming" else None
        exact = [_expected(model, settings, clip) for clip in clips] if form in bundle.manifest.graphs else []
        for precision in bundle.manifest.graphs.get(form, {}):
            found.graphs.append((form, precision))
            worst = 0.0
            recogniser = Recogniser(greedy(parts_of(bundle.url, precision)))
            heard = _heard(recogniser, bundle, form, precision, clips)
            for number, (mine, values) in enumerate(zip(exact, heard, strict=True)):
                text = text_of(recogniser, values)
                found.texts[number].setdefault(form, {})[precision] = text
                worst = max(worst, float(np.abs(mine - values).max(initial=0.0)))
                if precision == "fp32":
                    _check(form, clips[number].name, model.text(mine), text, worst, params.tolerance)
            found.differences[form, precision] = worst
    if bundle.manifest.program:
        _check_program(model, params, bundle, clips)
    if find_spec("sherpa_onnx"):
        _played(model, bundle, clips, found)
    return found


def _check_program(model: TrainedModel, params: ExportModelParams, bundle: Bundle, clips: Sequence[SpokenClip]) -> None:
    """Raises ConfigError: the torch.export program gives another text, or its outputs differ too much."""
    import torch

    program = torch.export.load(f"{bundle.url}/{bundle.manifest.program}").module()
    recogniser = Recogniser(greedy(parts_of(bundle.url, "fp32")))
    for clip in clips:
        rows = recogniser.features(recogniser.front.utterance(clip.samples))
        with torch.inference_mode():
            outputs, lengths = program(torch.from_numpy(rows)[None], torch.tensor([len(rows)]))
        values, mine = outputs[0, : int(lengths[0])].numpy(), model.output(clip.samples)
        worst = float(np.abs(mine - values).max(initial=0.0))
        _check("torch.export", clip.name, model.text(mine), text_of(recogniser, values), worst, params.tolerance)


def _expected(model: TrainedModel, streaming: StreamSettings | None, clip: SpokenClip) -> Float32:
    if streaming is None:
        return model.output(clip.samples)
    return model.streamed(clip.samples, streaming.chunk, streaming.left)


def _heard(
    recogniser: Recogniser, bundle: Bundle, form: str, precision: str, clips: Sequence[SpokenClip]
) -> Iterator[Float32]:
    """Outputs of the bundle in onnxruntime: by `transcribe`'s recogniser (offline), or by its streaming graph."""
    if form == "offline":
        for clip in clips:
            yield recogniser.log_posteriors(recogniser.front.utterance(clip.samples))
        return
    stream, rate_hz = PlayedStream(bundle, precision), bundle.manifest.front_end.rate_hz
    for clip in clips:
        samples = padded(clip.samples, rate_hz, stream.chunk * stream.frames / 100)
        yield stream.outputs(stream_rows(bundle, recogniser.front, samples))


def _check(form: str, clip: str, mine: str, text: str, worst: float, tolerance: float) -> None:
    if text != mine:
        raise ConfigError(
            f'the {form} graph recognises "{text}", but the model "{mine}"',
            where=f"clip {clip}",
            remedy="this is a bug in the exporter: please report it with the clip",
        )
    if worst > tolerance:
        raise ConfigError(
            f"the {form} graph's output differs from the model's by {worst:.2g}, the limit is {tolerance}",
            where=f"clip {clip}",
            remedy="raise --tolerance if only the texts matter",
        )


def _played(model: TrainedModel, bundle: Bundle, clips: Sequence[SpokenClip], found: GraphComparison) -> None:
    """Check that sherpa-onnx gives the same texts with the fp32 graphs. Raises ConfigError: it does not."""
    forms = bundle.manifest.sherpa_onnx
    players: dict[str, type[SherpaOffline] | type[SherpaStream]] = {"offline": SherpaOffline, "streaming": SherpaStream}
    for form, player in players.items():
        if not forms[form]:
            continue
        client = player(bundle)
        for number, clip in enumerate(clips):
            samples = clip.samples
            if form == "streaming" and bundle.manifest.streaming is not None:
                samples = padded(samples, model.front_end.rate_hz, bundle.manifest.streaming.latency_s)
            text, mine = client.text(samples), found.texts[number][form]["fp32"]
            if " ".join(text.split()) != mine:
                raise ConfigError(
                    f'sherpa-onnx recognises "{text}", but the model "{mine}" ({form})',
                    where=f"clip {clip.name}",
                    remedy="this is a bug in the exporter: please report it with the clip",
                )
    if forms["offline"] or forms["streaming"]:
        found.sherpa = metadata.version("sherpa-onnx")
