"""Load a trained model for export: its configuration, its modules and its output for clips."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.decode.params import DecodeParams
from megahour.export.graphs import LogPosteriors
from megahour.export.play import chunks, padded
from megahour.export.sherpa import forms
from megahour.models.build import WITH_LOOKAHEAD
from megahour.models.configuration import RECOGNISED, read_config
from megahour.models.conformer import AttentionContext, Conformer
from megahour.models.end_to_end import EndToEnd
from megahour.models.inference import Model
from megahour.models.streaming import ModelStream, encoder_of
from megahour.transcribe.bundle import FrontEndSettings
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser

Float32 = NDArray[np.float32]


class TrainedModel:
    """A trained CTC model or transducer, used as by `transcribe --whole --beams 1`, without a decoding graph.

    The output is log posteriors of tokens (T, V), or for a transducer the encoder output (T, D).

    Raises
    ------
    ConfigError: a model of senones, an exported one, or one whose heads or `tell` cannot be exported.
    """

    def __init__(self, parts: RecogniserParts, *, threads: int = 1, tell: str = "") -> None:
        """tell: a tag that is built into the exported model."""
        self.artifact = Artifact(parts.model)
        self.config: dict[str, Any] = read_config(self.artifact)
        if parts.precision or "stats" not in self.config or "tokens" not in self.config:
            raise ConfigError(
                "not a token model trained by megahour",
                where=parts.model,
                remedy="give a *model* of `train` with criterion ctc or transducer, or a run's folder and --step",
            )
        heads = self.config.get("heads", {})
        if heads and not {"transducer", "ctc"}.intersection(heads):
            raise ConfigError(
                f"a model with heads {', '.join(heads)}, none of which can be exported",
                where=parts.model,
                remedy="train with criterion ctc or transducer",
            )
        if tell == RECOGNISED:
            what = "--tell recognised: a bundle's graphs cannot recognise a tag before the utterance ends"
            raise ConfigError(what, where=parts.model, remedy="give --tell a tag, or leave it out")
        self.recogniser = Recogniser(greedy(parts, tell), threads=threads)
        loaded = self.recogniser.model
        assert isinstance(loaded, Model)
        module = loaded.module
        self.joint = module if isinstance(module, EndToEnd) else None
        self.encoder = module if self.joint is None else self.joint.encoder
        self.criterion: Literal["ctc", "transducer"] = "transducer" if "transducer" in heads else "ctc"
        self.predictor: str = self.config.get("predictor", "stateless") if "transducer" in heads else ""
        self.tokens = list(self.recogniser.tokens)

    @property
    def top(self) -> nn.Module:
        """Module from encoder output to model output: log posteriors for CTC, the identity for a transducer."""
        if self.criterion == "transducer":
            return nn.Identity()
        return LogPosteriors(None if self.joint is None else self.joint.ctc)

    @property
    def front_end(self) -> FrontEndSettings:
        """Settings of the log-mel front end. Raises StoreError: the model has an impossible frequency or rate."""
        front = self.recogniser.front
        values: dict[str, Any] = {name: getattr(front, name) for name in ("rate_hz", "mels", "low_hz", "high_hz")}
        values |= {
            "edges": "mirrored" if front.mirrored else "inside",
            "scale": "unit" if front.scale != 1 else "int16",
        }
        try:
            return FrontEndSettings(**values)
        except ValueError:
            what = f"the model's front end has invalid settings: {values}"
            raise StoreError(what, where=self.artifact.url, remedy="copy the model again, or train it again") from None

    @property
    def sherpa_forms(self) -> dict[str, Any]:
        """The sherpa-onnx forms that can run the model, or the reason why none can."""
        streams = self.streams and isinstance(self.encoder, Conformer)
        return forms(self.front_end, self.criterion, streams=streams, predictor=self.predictor)

    @property
    def frames(self) -> int:
        """Number of 10 ms frames per output row."""
        return self.recogniser.front.rows

    @property
    def streams(self) -> bool:
        """Whether it can recognise chunk by chunk. The mean of an utterance is known at its end only."""
        return encoder_of(self.encoder) is not None and not self.own_mean

    @property
    def own_mean(self) -> bool:
        """Whether each utterance's own mean is subtracted."""
        return self.recogniser.front.mean == "utterance"

    @property
    def look_ahead_s(self) -> float | None:
        """Look-ahead of the offline graph in seconds; None: to the end of the utterance."""
        kind = self.config["kind"]
        if kind in ("blstm", "conformer") or self.own_mean:
            return None
        dilations = (2 ** (i % 4) for i in range(self.config["layers"]))
        rows = self.config.get("lookahead", 0) if kind in WITH_LOOKAHEAD else sum(dilations)
        return float(rows) * self.frames / 100

    def output(self, samples: NDArray[np.int16]) -> Float32:
        """The output for a whole clip."""
        return self.recogniser.log_posteriors(self.recogniser.front.utterance(samples))

    def streamed(self, samples: NDArray[np.int16], chunk: int, left: int) -> Float32:
        """The output for a clip streamed as by a runtime: chunks of `chunk` output frames, `left` previous chunks."""
        rate_hz, size = self.recogniser.front.rate_hz, chunk * self.frames
        rows = self.recogniser.front.utterance(padded(samples, rate_hz, size / 100))
        assert isinstance(self.recogniser.model, Model)
        features, stack = self.recogniser.features(rows), int(self.config["stack"])
        stream = ModelStream(self.recogniser.model, AttentionContext(chunk, left))
        parts = [slice(each.start // stack, each.stop // stack) for each in chunks(len(rows), size)]
        return np.concatenate([stream(features[part]) for part in parts])

    def text(self, output: Float32) -> str:
        """The text of the best path through `output`."""
        return text_of(self.recogniser, output)


def greedy(parts: RecogniserParts, tell: str = "") -> RecogniserParts:
    """The model with greedy search, which every runtime has: no graph, language model, hot words or rescoring."""
    search = DecodeParams.model_validate({"beams": 1, "tell": tell})
    return RecogniserParts(parts.model, model_name=parts.model_name, precision=parts.precision, search=search)


def text_of(recogniser: Recogniser, output: Float32) -> str:
    """The text that a recogniser without a decoding graph reads from a model's output."""
    return " ".join(word.text for word in recogniser.spelled(output))
