"""Run the graphs of a bundle in onnxruntime, and in sherpa-onnx's Python client if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.features.frontend import FrontEnd, Rows
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.exported_stream import ExportedEncoder, ExportedStream
from megahour.tts.voice_bundle import FILES, Form, Precision, VoiceBundle

Float32 = NDArray[np.float32]
TAIL_S = 0.3  # silence after a clip, besides what fills the last chunk, to flush the last words
BLOCK_S = 0.1


def padded(samples: NDArray[np.int16], rate_hz: int, chunk_s: float) -> NDArray[np.int16]:
    """Append silence to a clip so that a stream processes all of it: only whole chunks are taken."""
    return np.concatenate([samples, np.zeros(round((TAIL_S + chunk_s) * rate_hz), np.int16)])


def chunks(rows: int, chunk: int) -> Iterator[slice]:
    """The chunks that sherpa-onnx takes from `rows` frames: it waits for one frame beyond each chunk."""
    for begin in range(0, max(0, rows - chunk), chunk):
        yield slice(begin, begin + chunk)


class PlayedStream:
    """The streaming graph of a bundle, fed as by sherpa-onnx: in whole chunks of the exported size."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        """Raises StoreError: onnxruntime cannot read the graph, or its interface is another."""
        self._encoder = ExportedEncoder(bundle, precision)
        self.chunk, self.frames = self._encoder.chunk, bundle.manifest.frames

    def feeds(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """The graph's inputs for each chunk of log-mel frames, which have its runtime's scale (`stream_rows`)."""
        for feed, _ in self._run(rows):
            yield feed

    def outputs(self, rows: Rows) -> Float32:
        """Outputs (T, V) of all whole chunks, without those of an LSTM before its first frame."""
        return np.concatenate([values for _, values in self._run(rows)])[self._encoder.ahead :]

    def _run(self, rows: Rows) -> Iterator[tuple[dict[str, Any], Float32]]:
        stream = ExportedStream(self._encoder, self.chunk, self._encoder.left)
        for part in chunks(len(rows), self.chunk * self.frames):
            feed = stream.feed(rows[part])
            yield feed, stream.run(feed)


def stream_rows(bundle: Bundle, front: FrontEnd, samples: NDArray[np.int16]) -> Rows:
    """Log-mel frames of the samples as the streaming form scales them, whatever scale the model was trained in.

    They are a runtime's, without the floor of ours, which is in the graph.
    """
    own = replace(front, kind="log-mel", scale=1.0 if bundle.manifest.streams_int16 else front.scale)
    return own.utterance(samples, mean=False)


def _parts(bundle: Bundle, form: str, precision: str) -> dict[str, str]:
    """Files of a transducer by sherpa-onnx's names; {} for other models."""
    graphs = bundle.manifest.graphs
    if "joiner" not in graphs:
        return {}
    files = {"encoder": graphs[form], "decoder": graphs["decoder"], "joiner": graphs["joiner"]}
    names = {part: each[precision] for part, each in files.items()} | {"tokens": "tokens.txt"}
    return {part: f"{bundle.url}/{name}" for part, name in names.items()}


class SherpaOffline:
    """sherpa-onnx's offline recogniser with a bundle's graphs."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        import sherpa_onnx

        manifest = bundle.manifest
        self.rate_hz, parts = manifest.front_end.rate_hz, _parts(bundle, "offline", precision)
        model, tokens = (f"{bundle.url}/{name}" for name in (manifest.graphs["offline"][precision], "tokens.txt"))
        if manifest.criterion == "transducer":
            self._recogniser: Any = sherpa_onnx.OfflineRecognizer.from_transducer(
                **parts, num_threads=1, sample_rate=self.rate_hz, feature_dim=manifest.front_end.mels
            )
        elif manifest.sherpa_onnx["offline"] == "zipformer2_ctc":
            self._recogniser = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
                model=model, tokens=tokens, num_threads=1, sample_rate=self.rate_hz, feature_dim=manifest.front_end.mels
            )
        else:
            self._recogniser = _fire_red(model, tokens, self.rate_hz, manifest.front_end.mels)

    def text(self, samples: NDArray[np.int16]) -> str:
        stream = self._recogniser.create_stream()
        stream.accept_waveform(self.rate_hz, samples.astype(np.float32) / 32768)
        self._recogniser.decode_stream(stream)
        return str(stream.result.text)


def _fire_red(model: str, tokens: str, rate_hz: int, mels: int) -> Any:
    """`OfflineRecognizer.from_fire_red_asr_ctc` for any rate and mels; the original has only 16 kHz and 80 mels."""
    from sherpa_onnx.lib import _sherpa_onnx as parts

    heard = parts.FeatureExtractorConfig(sampling_rate=rate_hz, feature_dim=mels)
    graph = parts.OfflineFireRedAsrCtcModelConfig(model=model)
    config = parts.OfflineModelConfig(fire_red_asr_ctc=graph, tokens=tokens, num_threads=1)
    recogniser = parts.OfflineRecognizer(parts.OfflineRecognizerConfig(feat_config=heard, model_config=config))
    return recogniser


class SherpaStream:
    """sherpa-onnx's streaming recogniser with a bundle's graphs."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        import sherpa_onnx

        manifest = bundle.manifest
        assert manifest.streaming is not None
        self.rate_hz = manifest.front_end.rate_hz
        if manifest.criterion == "transducer":
            parts = _parts(bundle, "streaming", precision)
            self._recogniser: Any = sherpa_onnx.OnlineRecognizer.from_transducer(
                **parts, num_threads=1, sample_rate=self.rate_hz, feature_dim=manifest.front_end.mels
            )
            return
        model, tokens = (f"{bundle.url}/{name}" for name in (manifest.graphs["streaming"][precision], "tokens.txt"))
        self._recogniser = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
            tokens=tokens, model=model, chunk_size=manifest.streaming.chunk, num_left_chunks=manifest.streaming.left,
            num_threads=1, sample_rate=self.rate_hz, feature_dim=manifest.front_end.mels,
        )  # fmt: skip

    def text(self, samples: NDArray[np.int16]) -> str:
        """The text of samples that are fed in blocks, as from a microphone."""
        stream = self._recogniser.create_stream()
        block = round(BLOCK_S * self.rate_hz)
        for begin in range(0, len(samples), block):
            stream.accept_waveform(self.rate_hz, samples[begin : begin + block].astype(np.float32) / 32768)
            self._decode(stream)
        stream.input_finished()
        self._decode(stream)
        return str(self._recogniser.get_result(stream))

    def _decode(self, stream: Any) -> None:
        while self._recogniser.is_ready(stream):
            self._recogniser.decode_stream(stream)


class SherpaVoice:
    """sherpa-onnx's `OfflineTts` with a voice's bundle. spread: `noise_scale`; 0 makes the speech deterministic."""

    def __init__(
        self, bundle: VoiceBundle, precision: Precision = "fp32", spread: float = 0.667, form: Form = "vits"
    ) -> None:
        import sherpa_onnx

        roles = ("lexicon", "tokens", *(("model",) if form == "vits" else ("acoustic_model", "vocoder")))
        names = (*FILES[form], *bundle.graphs_of(form)[precision])
        paths = {role: f"{bundle.url}/{name}" for role, name in zip(roles, names, strict=True)}
        kind = sherpa_onnx.OfflineTtsVitsModelConfig if form == "vits" else sherpa_onnx.OfflineTtsMatchaModelConfig
        graphs = kind(**paths, noise_scale=spread, length_scale=1.0)
        model = sherpa_onnx.OfflineTtsModelConfig(**{form: graphs}, num_threads=1)
        # All sentences at once (-1); otherwise the Matcha form would be split at commas.
        most = 1 if form == "vits" else -1
        self._speaker: Any = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(model=model, max_num_sentences=most))

    def say(self, text: str, voice: int = 0, pace: float = 1.0) -> Float32:
        """Samples (N,) of a text; words that the lexicon lacks are left out."""
        import sherpa_onnx

        manner = sherpa_onnx.GenerationConfig()
        manner.sid, manner.speed = voice, pace
        manner.silence_scale = 1.0  # otherwise it shortens pauses to a fifth, whatever the speaker's configuration says
        return np.array(self._speaker.generate(text, manner).samples, np.float32)
