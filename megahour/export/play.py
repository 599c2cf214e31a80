"""The graphs of a bundle as runtimes run them: onnxruntime, and sherpa-onnx's Python client where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.frontend import FrontEnd, Rows
from megahour.core.errors import StoreError
from megahour.transcribe.bundle import Bundle

Float32 = NDArray[np.float32]
TAIL_S = 0.3  # silence after a clip, beside what fills the last chunk: words end before it
BLOCK_S = 0.1


def padded(samples: NDArray[np.int16], rate_hz: int, chunk_s: float) -> NDArray[np.int16]:
    """A clip and the silence after it that lets a stream come to its end: the last chunk is taken only when whole."""
    return np.concatenate([samples, np.zeros(round((TAIL_S + chunk_s) * rate_hz), np.int16)])


def chunks(rows: int, chunk: int) -> Iterator[slice]:
    """The chunks that sherpa-onnx takes of `rows` frames: one more frame must have come."""
    for begin in range(0, max(0, rows - chunk), chunk):
        yield slice(begin, begin + chunk)


class GraphStream:
    """The streaming graph of a bundle, with the state that it gives from chunk to chunk."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        """Raises StoreError: onnxruntime cannot read the graph, or it is called otherwise."""
        import onnxruntime

        assert bundle.manifest.streaming is not None
        self.chunk, self.left = bundle.manifest.streaming.chunk, bundle.manifest.streaming.left
        self.frames = bundle.manifest.frames
        data = bundle.graph("streaming", precision)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            shapes = {each.name: each.shape for each in self._session.get_inputs()}
            self._attention, self._convolved = shapes["attn_cache"], shapes["conv_cache"]
        except Exception as error:  # onnxruntime's own classes share no base
            raise StoreError(f"no streaming graph: {error}", where=f"{bundle.url}: streaming, {precision}") from None

    def feeds(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """What the graph takes for each chunk of log-mel frames of int16 samples."""
        for feed, _ in self._run(rows):
            yield feed

    def log_posteriors(self, rows: Rows) -> Float32:
        """(T, V) of all whole chunks."""
        return np.concatenate([values[0] for _, values in self._run(rows)])

    def _run(self, rows: Rows) -> Iterator[tuple[dict[str, Any], Float32]]:
        length = self.chunk * self.left
        attention = np.zeros([*self._attention[:2], length, self._attention[3]], np.float32)
        convolved, heard = np.zeros(self._convolved, np.float32), 0
        for part in chunks(len(rows), self.chunk * self.frames):
            feed = {
                "chunk": rows[None, part],
                "offset": np.array([length + heard]),
                "required_cache_size": np.array([length]),
                "attn_cache": attention,
                "conv_cache": convolved,
                "attn_mask": np.ones((1, 1, length + self.chunk), bool),
            }
            values, attention, convolved = self._session.run(None, feed)
            heard += self.chunk
            yield feed, values


def int16_rows(front: FrontEnd, samples: NDArray[np.int16]) -> Rows:
    """Log-mel frames of int16 samples, whatever scale the model was trained in."""
    own = replace(front, scale=1.0)
    return np.concatenate(list(own.rows_of(iter([samples.astype(np.float32)]), [], mean=False)))


class SherpaOffline:
    """sherpa-onnx's offline recogniser of a bundle."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        import sherpa_onnx

        manifest = bundle.manifest
        self.rate_hz = manifest.front_end.rate_hz
        model, tokens = (f"{bundle.url}/{name}" for name in (manifest.graphs["offline"][precision], "tokens.txt"))
        if manifest.sherpa_onnx["offline"] == "zipformer2_ctc":
            self._recogniser: Any = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
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
    """As `OfflineRecognizer.from_fire_red_asr_ctc`, which is for 80 mels at 16 kHz alone."""
    from sherpa_onnx.lib import _sherpa_onnx as parts

    heard = parts.FeatureExtractorConfig(sampling_rate=rate_hz, feature_dim=mels)
    graph = parts.OfflineFireRedAsrCtcModelConfig(model=model)
    config = parts.OfflineModelConfig(fire_red_asr_ctc=graph, tokens=tokens, num_threads=1)
    recogniser = parts.OfflineRecognizer(parts.OfflineRecognizerConfig(feat_config=heard, model_config=config))
    return recogniser


class SherpaStream:
    """sherpa-onnx's streaming recogniser of a bundle."""

    def __init__(self, bundle: Bundle, precision: str = "fp32") -> None:
        import sherpa_onnx

        manifest = bundle.manifest
        assert manifest.streaming is not None
        self.rate_hz = manifest.front_end.rate_hz
        model, tokens = (f"{bundle.url}/{name}" for name in (manifest.graphs["streaming"][precision], "tokens.txt"))
        self._recogniser = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
            tokens=tokens, model=model, chunk_size=manifest.streaming.chunk, num_left_chunks=manifest.streaming.left,
            num_threads=1, sample_rate=self.rate_hz, feature_dim=manifest.front_end.mels,
        )  # fmt: skip

    def text(self, samples: NDArray[np.int16]) -> str:
        """Of samples that come in blocks, as from a microphone."""
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
