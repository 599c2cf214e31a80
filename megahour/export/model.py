"""The model that is to go out: its configuration, its module, and what it says of clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.export.play import chunks, padded
from megahour.models.conformer import AttentionContext, Conformer
from megahour.models.foreign import log_softmax
from megahour.models.inference import Model
from megahour.transcribe.bundle import FrontEndSettings
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser
from megahour.units.tokens import spelled_words

Float32 = NDArray[np.float32]


class TrainedModel:
    """A trained CTC model, as `transcribe --whole` recognises with it: the frame's best tokens, without a graph.

    Raises
    ------
    ConfigError: a model of senones, one from elsewhere, or one that does not say how it hears audio.
    """

    def __init__(self, parts: RecogniserParts, *, threads: int = 1) -> None:
        self.artifact = Artifact(parts.model)
        self.config: dict[str, Any] = self.artifact.read_json(0, ".model.json")
        if parts.precision or "stats" not in self.config or "tokens" not in self.config:
            raise ConfigError(
                "not a model of tokens that was trained here",
                where=parts.model,
                remedy="give a *model* of `train` with criterion ctc; of a run, name its step with --step",
            )
        if heads := sorted(self.config.get("heads", {})):
            raise ConfigError(
                f"a model with heads ({', '.join(heads)}): only an encoder with CTC alone goes out so far",
                where=parts.model,
                remedy="train with criterion: ctc and no other heads",
            )
        self.recogniser = Recogniser(replace(parts, graph="", units="", lexicon=""), threads=threads)
        loaded = self.recogniser.model
        assert isinstance(loaded, Model)
        self.module = loaded.module
        self.tokens = list(self.recogniser.tokens)

    @property
    def front_end(self) -> FrontEndSettings:
        front = self.recogniser.front
        return FrontEndSettings(
            rate_hz=front.rate_hz, mels=front.mels, low_hz=front.low_hz, high_hz=front.high_hz,
            edges="mirrored" if front.mirrored else "inside", scale="unit" if front.scale != 1 else "int16",
        )  # fmt: skip

    @property
    def frames(self) -> int:
        """Of 10 ms for a row of log posteriors."""
        return self.recogniser.front.rows

    @property
    def streams(self) -> bool:
        return isinstance(self.module, Conformer)

    @property
    def look_ahead_s(self) -> float | None:
        """How far the offline graph looks ahead; None: to the end."""
        kind = self.config["kind"]
        if kind in ("blstm", "conformer"):
            return None
        rows = self.config["lookahead"] if kind == "lstm" else sum(2 ** (i % 4) for i in range(self.config["layers"]))
        return float(rows) * self.frames / 100

    def log_posteriors(self, samples: NDArray[np.int16]) -> Float32:
        """(T, V) of a whole clip."""
        return self.recogniser.log_posteriors(self._rows(samples))

    def streamed(self, samples: NDArray[np.int16], chunk: int, left: int) -> Float32:
        """(T, V) of a clip in chunks of output frames, those that a runtime would take."""
        assert isinstance(self.module, Conformer)
        rate_hz, size = self.recogniser.front.rate_hz, chunk * self.frames
        rows = self._rows(padded(samples, rate_hz, size / 100))
        features, context = torch.from_numpy(self.recogniser.features(rows)), AttentionContext(chunk, left)
        state, stack = self.module.state(), int(self.config["stack"])
        parts = [slice(each.start // stack, each.stop // stack) for each in chunks(len(rows), size)]
        with torch.inference_mode():
            found = [self.module.chunk(features[None, part], state, context)[0] for part in parts]
        return log_softmax(torch.cat(found).numpy())

    def text(self, log_probs: Float32) -> str:
        """The words of the best path."""
        return self.text_of(log_probs.argmax(axis=1))

    def text_of(self, labels: NDArray[Any]) -> str:
        """The words of a path, a token a frame."""
        words = spelled_words(labels.tolist(), self.tokens, self.recogniser.mark)
        return " ".join(word.text for word in words)

    def _rows(self, samples: NDArray[np.int16]) -> Float32:
        return np.concatenate(list(self.recogniser.front.rows_of(iter([samples.astype(np.float32)]), [])))
