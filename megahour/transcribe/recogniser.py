"""Recognises a piece of speech: posteriors from features, the best path, and each word's times and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.core.kinds import kind_of, makers_of
from megahour.core.store import Artifact
from megahour.decode.nbest import Text
from megahour.decode.params import DecodeParams
from megahour.decode.token_search import TokenReading, TokenSearcher
from megahour.features.frontend import FrontEnd, Rows
from megahour.foreign.model import ForeignModel
from megahour.models.configuration import Outputs, normalisation, output_without_graph, read_config, warn_untold
from megahour.models.inference import Model, load
from megahour.models.paths import TokenPath
from megahour.models.token_search import Transducer
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.exported_stream import ExportedEncoder
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.word_times import phone_spans, word_spans
from megahour.units.tokens import MARK, Span, spelled_words

if TYPE_CHECKING:
    from megahour.decode.search import Hypothesis, Searcher

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class TimedWord:
    """A word, its start and end in seconds (None if the model cannot tell), and an acoustic confidence.

    confidence: mean posterior of the path's labels over the word's frames, 0 to 1; for CTC without frames of blanks. It
    is not a probability that the word is right. channel: of the file, if every channel was heard by itself; else 0.
    """

    text: str
    start_s: float | None = None
    end_s: float | None = None
    confidence: float | None = None
    channel: int = 0


class PieceReading(NamedTuple):
    """What a model hears in a piece of speech.

    tags: probabilities (N,) of `Recogniser.tags`; None if the model predicts none or there are no frames. texts: the
    most likely ones, best first, if the search's `nbest` asks for them.
    """

    words: list[TimedWord]
    tags: Float32 | None = None
    texts: tuple[Text, ...] = ()


def _check_kind(address: str, kind: str) -> None:
    """Raises ConfigError if the artifact is of another kind. An empty address is skipped."""
    if address and kind_of(artifact := Artifact(address)) != kind:
        what = f"an artifact of stage {artifact.manifest.stage}, not a {kind}"
        raise ConfigError(what, where=address, remedy=makers_of((kind,)))


def _loaded(
    parts: RecogniserParts, threads: int, device: str
) -> tuple[dict[str, Any], Model | ForeignModel, Transducer | None]:
    """Configuration and model, from a bundle or an artifact, and the transducer's parts for the search."""
    if not parts.precision:
        config = read_config(Artifact(parts.model))
        attention = parts.search.attention_weight > 0
        outputs: Outputs = "log_probs" if parts.graph else output_without_graph(config, attention=attention)
        precision = parts.search.precision
        more: dict[str, Any] = {"precision": precision, "outputs": outputs, "tell": parts.search.tell}
        loaded = load(parts.model, threads=threads, device=device, **more)
        return config, loaded, getattr(loaded, "module", None)
    if parts.graph:
        raise ConfigError(
            "a bundle is searched without a graph",
            where=parts.model,
            remedy="give --graph with a model artifact, not with a bundle",
        )
    if parts.search.tell:
        what = f"a bundle cannot take the tag {parts.search.tell!r}"
        raise ConfigError(what, where=parts.model, remedy="export the model again, with --tell")
    bundle = Bundle.open(parts.model)
    model = bundle.model(parts.precision, threads=threads, device=device)
    return dict(model.config), model, bundle.transducer(parts.precision, threads=threads)


class Recogniser:
    """A model and its search, loaded once to recognise any number of pieces, one at a time.

    Raises
    ------
    ConfigError: the parts do not belong together, or the model does not record how its features are computed.
    """

    def __init__(self, parts: RecogniserParts, *, threads: int = 1, device: str = "cpu") -> None:
        self.parts = parts
        if parts.graph and parts.models():
            raise ConfigError(
                "a graph is searched with its own language model here, and with no other",
                where=next(iter(parts.models().values())).url,
                remedy="leave --lm out; of a run, name a step that decodes without `lm` with --step, or its model and "
                "graph with --model and --graph",
            )
        for kind in ("model", "graph", "units", "lexicon", "lm"):
            if not (parts.precision and kind == "model"):
                _check_kind(getattr(parts, kind), kind)
        _check_kind(parts.low_order_lm, "lm")
        config, self.model, transducer = _loaded(parts, threads, device)
        self._threads = threads
        self.tokens: tuple[str, ...] = tuple(config.get("tokens", ()))
        self.phones = bool(config.get("phones"))
        self.tag: str = config.get("tag", "")
        self.tags: tuple[str, ...] = tuple(config.get("tags", ()))
        self.told: str = parts.search.tell
        warn_untold(config, self.told, where=parts.model)
        if not parts.graph and (self.phones or not self.tokens):
            raise ConfigError(
                f"the model outputs {'phones' if self.phones else 'senones'}, which need a graph to give words",
                where=parts.model,
                remedy="of a run, name its step `decode` with --step, or leave --step out; or give --graph (and "
                "--units and --lexicon for word times)",
            )
        if "stats" in config:
            normalisation(config, where=parts.model)  # damaged values would fail for each piece, or give no words
        try:
            self.front = FrontEnd.of(config, tokens=False, where=parts.model)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"the model's configuration is damaged: {error!r}"
            raise StoreError(what, where=parts.model, remedy="train the model or copy it again") from None
        self.mark = MARK if config.get("marks") else ""
        self.searcher: Searcher | None = None
        self._pauses: Sequence[int] = ()
        search = DecodeParams.model_validate({}) if parts.graph else parts.search
        self.speller = TokenSearcher(config, transducer, search, parts.models())
        if parts.graph:
            self.searcher, self._pauses = self._search(Artifact(parts.model))
        spoken = parts.graph and parts.lexicon and (parts.units or self.phones)
        self._pronunciations = self._spoken() if spoken else {}

    @cached_property
    def exported(self) -> ExportedEncoder | None:
        """The bundle's streaming graph; None if it has none or the graph takes only chunks of one length."""
        if not self.parts.precision:
            return None
        bundle = Bundle.open(self.parts.model)
        if self.parts.precision not in bundle.manifest.graphs.get("streaming", {}):
            return None
        encoder = ExportedEncoder(bundle, self.parts.precision, threads=self._threads)
        return encoder if encoder.any_length else None

    def words(self, rows: Rows, start_s: float = 0.0) -> list[TimedWord]:
        """Words of a piece of rows from `FrontEnd.rows_of`; `start_s`: where the piece begins in the recording.

        Raises ValueError if no path survives the search.
        """
        return self.recognise(rows, start_s).words

    def recognise(self, rows: Rows, start_s: float = 0.0) -> PieceReading:
        """Words, tags and texts of a piece. See `words`."""
        outputs = self._outputs(rows)
        log_probs = next(iter(outputs.values()))
        if not len(log_probs):
            return PieceReading([])
        tags = np.exp(outputs["tags"][0]) if "tags" in outputs else None
        most = self.parts.search.nbest
        if self.searcher is not None:
            words = self.words_of_graph(self.searcher(log_probs), log_probs, start_s)
            return PieceReading(words, tags, self.searcher.texts(log_probs, most) if most else ())
        readings = self._readings(log_probs)
        words = self.words_of_tokens(readings[0].path, start_s)
        return PieceReading(words, tags, self.speller.texts(readings, most) if most else ())

    def spelled(self, output: Float32, start_s: float = 0.0) -> list[TimedWord]:
        """Words from the output of `log_posteriors`, for a token model without a graph."""
        return self.words_of_tokens(self._readings(output)[0].path, start_s)

    def _readings(self, output: Float32) -> list[TokenReading]:
        (found,) = self.speller([output])
        if isinstance(found, ValueError):
            raise found
        return found

    def words_of_graph(self, best: Hypothesis, log_probs: Float32, start_s: float) -> list[TimedWord]:
        """Timed words of the graph's best path for `log_probs` (T, V)."""
        labels = np.array(best.labels)
        if self.phones and self._pronunciations:
            spans = phone_spans(best.words, best.labels, self._pronunciations)
        elif self.phones:
            return [TimedWord(word) for word in best.words]
        elif self.tokens:
            spans = [word.span for word in spelled_words(best.labels, self.tokens, self.mark)]
        elif self._pronunciations:
            spans = word_spans(best.words, best.labels, self._pronunciations, self._pauses)
        else:
            return [TimedWord(word) for word in best.words]
        return self._timed(best.words, spans, labels, np.exp(log_probs[np.arange(len(labels)), labels]), start_s)

    def words_of_tokens(self, path: TokenPath, start_s: float) -> list[TimedWord]:
        """Timed words of the best path of a token model without a graph."""
        words = self.speller.words(path.labels)
        texts, spans = [word.text for word in words], [word.span for word in words]
        return self._timed(texts, spans, np.array(path.labels), np.array(path.chances), start_s)

    def log_posteriors(self, rows: Rows) -> Float32:
        """Log posteriors (T, V) for a piece of rows from `FrontEnd.rows_of`.

        For a transducer without a graph: the encoder's output (T, D).
        """
        return next(iter(self._outputs(rows).values()))

    def _outputs(self, rows: Rows) -> dict[str, Float32]:
        """The model's outputs by name; the first one has a row per frame."""
        features = self.features(rows)
        if not len(features):
            return {"": np.zeros((0, self.front.units), np.float32)}
        outputs, _ = self.model(features[None], np.array([len(features)]))
        return {name: array[0] for name, array in outputs.items()}

    def features(self, rows: Rows) -> Rows:
        """The model's input (T', F) for a piece of rows."""
        if self.front.kind == "stacked":
            rows = rows.astype(np.float16).astype(np.float32)  # as in training: stored features are fp16
        if self.parts.precision:
            return self.front.shape(rows)  # a bundle's graph takes all rows, which its mean of an utterance needs
        return self.front.shape(rows[: len(rows) // self.joined * self.joined])

    @property
    def joined(self) -> int:
        """Rows of 10 ms that the model stacks; 1 for a model of waveforms, whose rows are output frames."""
        return 1 if self.front.kind == "waveform" else self.front.rows

    def _timed(
        self, words: Sequence[str], spans: Sequence[Span], labels: NDArray[Any], chances: NDArray[Any], start_s: float
    ) -> list[TimedWord]:
        """`words` with times and confidence. chances: posterior of each frame's label."""
        timed = []
        for word, (first, end) in zip(words, spans, strict=False):
            counted = chances[first:end][labels[first:end] != 0] if self.tokens else chances[first:end]
            start, stop = (round(start_s + frame * self.front.shift_s, 3) for frame in (first, end))
            timed.append(TimedWord(word, start, stop, round(float(counted.mean()), 3) if len(counted) else 0.0))
        return timed

    def _search(self, model: Artifact) -> tuple[Searcher, Sequence[int]]:
        """The searcher, and the labels of silence and noises."""
        from megahour.decode.build import read_graph
        from megahour.decode.match import check_match
        from megahour.decode.search import Searcher, SearchOptions

        inputs = {"model": model, "graph": Artifact(self.parts.graph)}
        check_match(inputs | ({"units": Artifact(self.parts.units)} if self.parts.units else {}))
        graph, about = read_graph(inputs["graph"])
        p = self.parts.search
        prior_scale = p.prior_scale if about["priors"] is not None else 0.0
        options = SearchOptions(p.beam, p.max_active, p.acoustic_scale, prior_scale, p.min_active)
        return Searcher(graph, about["priors"], options), [int(about.get("silence") or 0), *about.get("noises", ())]

    def _spoken(self) -> dict[str, list[list[int]]]:
        """Each word's pronunciations, as labels of senones or as tokens (phones)."""
        from megahour.decode.build import pronounced
        from megahour.units.hmm import read_units
        from megahour.units.lexicon import lexicon_of

        lexicon = Artifact(self.parts.lexicon)
        entries = lexicon_of(lexicon)
        return pronounced(entries, self.tokens if self.phones else read_units(Artifact(self.parts.units)))
