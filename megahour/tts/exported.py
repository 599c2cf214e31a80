"""Speak with an exported voice in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.foreign.onnx_session import in_a_line, limited_run, open_session
from megahour.models.voice import STEPS
from megahour.transcribe.bundle_files import AGAIN
from megahour.tts.phones import Pronounce
from megahour.tts.script import SpokenPiece
from megahour.tts.speaking import AnySpeaker, Manner, rules_of
from megahour.tts.voice_bundle import LEXICON, Form, VoiceBundle
from megahour.units.lexicon import Lexicon, read_lexicon

LONG_SYMBOL_S = 0.2  # speech of a symbol at pace 1, for the time limit of a run


class ExportedSpeaker(AnySpeaker):
    """A voice loaded from a bundle; the counterpart of `megahour.tts.speaking.Speaker`, which loads a model.

    lexicon: pronunciations that take precedence over the bundle's own, which precede espeak-ng's rules. form: which of
    the bundle's graphs to run.

    Raises
    ------
    ConfigError: the bundle is not a voice, or lacks the precision. StoreError: it is damaged.
    """

    def __init__(
        self,
        url: str,
        *,
        precision: str = "fp32",
        lexicon: Lexicon | None = None,
        threads: int = 1,
        form: Form = "vits",
    ) -> None:
        self.bundle, self.url, self.threads = VoiceBundle.open(url), url, threads
        manifest = self.bundle.manifest
        files = {str(name): each for name, each in self.bundle.graphs_of(form).items()}
        if precision not in files:
            what = f"the bundle has no {precision} graph"
            raise ConfigError(what, where=url, remedy=f"use one of {', '.join(files)}")
        self._graphs = [self.bundle.read(file) for file in files[precision]]
        # One set of sessions per seed: onnxruntime takes its random seed when it loads a graph.
        self._sessions: dict[int, list[Any]] = {}
        self.voices, self.languages = manifest.voices, [manifest.language]
        self.symbols = {symbol: number for number, symbol in enumerate(manifest.symbols)}
        own = read_lexicon(_text(self.bundle.read(LEXICON), f"{url}/{LEXICON}"), where=f"{url}/{LEXICON}")
        self.pronounce = Pronounce(
            manifest.symbols, manifest.scripts, rules_of(manifest.rules), {**own, **(lexicon or {})}
        )

    @property
    def rate_hz(self) -> int:
        return self.bundle.manifest.rate_hz

    def ready(self, manner: Manner) -> None:
        """Load the graphs. Raises StoreError: onnxruntime cannot read one."""
        self._opened(manner.seed)

    def sound(self, piece: SpokenPiece, manner: Manner, number: int) -> tuple[NDArray[np.float32], list[int]]:
        """Synthesise a piece. Raises ConfigError: the bundle cannot speak in this manner. StoreError: a bad graph."""
        if manner.semitones or manner.steps != STEPS:
            what = "a bundle's pitch and number of steps are fixed"
            raise ConfigError(what, where=self.url, remedy="leave out --semitones and --steps, or speak with the model")
        self.number_of("languages", manner.language)
        tokens = [self.symbols[symbol] for symbol in piece.symbols]
        return self.run(tokens, manner.pace * piece.pace, manner.spread, manner.speaker, manner.seed)

    def run(
        self, tokens: list[int], pace: float = 1.0, spread: float = 0.0, voice: str = "", seed: int = 0
    ) -> tuple[NDArray[np.float32], list[int]]:
        """Run the graphs on token numbers of `tokens.txt`: samples (N,) and the frames of each symbol."""
        sessions = self._opened(seed)
        given = {
            "x": np.array([tokens], np.int64),
            "x_length": np.array([len(tokens)], np.int64),
            "noise_scale": np.array([spread], np.float32),
            "length_scale": np.array([1 / pace], np.float32),
            "noise_scale_w": np.zeros(1, np.float32),
            "sid": np.array([self.number_of("voices", voice)], np.int64),
        }
        try:
            with limited_run(len(tokens) * LONG_SYMBOL_S / pace) as options:
                taken = {each.name: given[each.name] for each in sessions[0].get_inputs()}
                y, frames = sessions[0].run(None, taken, options)
                for session in sessions[1:]:
                    (y,) = session.run(None, {"mel": y}, options)
        except Exception as error:
            raise StoreError(f"the graph cannot be run: {in_a_line(error)}", where=self.url, remedy=AGAIN) from error
        if y.ndim != 2 or not np.isfinite(y).all():
            raise StoreError("the graph does not output finite samples", where=self.url, remedy=AGAIN)
        return y[0].astype(np.float32), frames[0].tolist()

    def _opened(self, seed: int) -> list[Any]:
        """Sessions of all graphs for a seed. Raises StoreError: onnxruntime cannot read a graph."""
        import onnxruntime

        if seed not in self._sessions:
            onnxruntime.set_seed(seed)
            bounds: dict[str, Any] = {"threads": self.threads, "bounded": True}
            try:
                self._sessions[seed] = [open_session(each, **bounds) for each in self._graphs]
            except Exception as error:
                what = f"onnxruntime cannot load a graph: {in_a_line(error)}"
                raise StoreError(what, where=self.url, remedy=AGAIN) from error
        return self._sessions[seed]


def _text(data: bytes, where: str) -> str:
    """Decode a file of the bundle. Raises StoreError: it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"not UTF-8: {error}", where=where, remedy=AGAIN) from error
