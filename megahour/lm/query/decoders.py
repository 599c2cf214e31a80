"""Adapters of a model for other decoders: pyctcdecode, and the beam search of flashlight and TorchAudio.

from pyctcdecode import Alphabet, BeamSearchDecoderCTC
BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), PyctcdecodeModel(NgramScorer.open("lm.mlm")))

from torchaudio.models.decoder import ctc_decoder        # or flashlight.lib.text.decoder.LexiconDecoder
words = Path("words.txt").read_text().split("\\n")       # one word per line, with <unk>, in the decoder's order
lm = flashlight_model(NgramScorer.open("lm.mlm"), words)
ctc_decoder(lexicon="lexicon.txt", tokens="tokens.txt", lm=lm, lm_dict="words.txt", unk_word="<unk>")
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any

from megahour.lm.query.scorer import NgramScorer
from megahour.lm.text.tokenise import END, RESERVED, UNKNOWN

LN10 = math.log(10.0)
MOST_STATES = 1 << 20  # states above which all are forgotten when a sentence begins
USUAL_LETTERS = 6  # pyctcdecode: longer unknown words cost more


class PyctcdecodeModel:
    """A language model for pyctcdecode, with the scores and defaults of its own class for KenLM models. States are
    numbers, so hypotheses can be sent to other processes.

    words: known words; None: all words of the model. alpha: weight of ln p. beta: added for each word.
    unk_score_offset: added to log10 p of unknown words, and of beginnings of words that are no prefix of a known word.
    score_boundary: whether `<s>` and `</s>` are scored.
    """

    def __init__(
        self,
        scorer: NgramScorer,
        words: Collection[str] | None = None,
        *,
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        score_boundary: bool = True,
    ) -> None:
        self._scorer = scorer
        known = scorer.model.spelled()[len(RESERVED) :]
        self._words = sorted(known if words is None else {word for word in words if word in scorer})
        self._known = frozenset(self._words)
        self.alpha, self.beta, self.unk_score_offset = alpha, beta, unk_score_offset
        self.score_boundary = score_boundary

    @property
    def order(self) -> int:
        return self._scorer.order

    def reset_params(self, **params: Any) -> None:
        """Change alpha, beta, unk_score_offset or score_boundary; None keeps the old value."""
        for name in ("alpha", "beta", "unk_score_offset", "score_boundary"):
            if params.get(name) is not None:
                setattr(self, name, params[name])

    def get_start_state(self) -> int:
        return self._scorer.begin(bos=self.score_boundary)

    def score_partial_token(self, partial_token: str) -> float:
        """The score of an incomplete word: 0 if a known word begins with it, else a penalty."""
        at = bisect_left(self._words, partial_token)
        if at < len(self._words) and self._words[at].startswith(partial_token):
            return 0.0
        return self.unk_score_offset * max(1.0, len(partial_token) / USUAL_LETTERS)

    def score(self, prev_state: int, word: str, is_last_word: bool = False) -> tuple[float, int]:
        """alpha · ln p(word) + beta, and the state after it. The last word includes the end of the sentence."""
        total, _, state = self._scorer.score(prev_state, word)
        if word not in self._known:
            total += self.unk_score_offset
        if is_last_word and self.score_boundary:
            total += self._scorer.score(state, END)[0]
        return self.alpha * total * LN10 + self.beta, state


def flashlight_model(scorer: NgramScorer, words: Sequence[str], *, merged: bool = False) -> Any:
    """A `flashlight.lib.text.decoder.LM`, also for TorchAudio's `ctc_decoder`. Needs flashlight-text.

    words: the decoder's dictionary of words, or of tokens if it has no lexicon, in its order. Scores are log10 p, as in
    flashlight's own KenLM class. merged: merge hypotheses that no later word can distinguish, which widens the beam and
    shortens n-best lists. Decode one sentence at a time: states of earlier sentences may be forgotten.
    """
    from flashlight.lib.text.decoder import LM, LMState

    numbers = [scorer.number(word) for word in words]

    class FlashlightModel(LM):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self._of: dict[int, Any] = {}
            self._states: dict[Any, int] = {}

        def _shown(self, before: Any, token: int, state: int) -> Any:
            """The decoder's state for one of ours: one per path, or one for all paths if they are merged."""
            shown = self._of.setdefault(state, LMState()) if merged else before.child(token)
            self._states[shown] = state
            return shown

        def start(self, start_with_nothing: bool) -> Any:
            if len(self._states) > MOST_STATES:
                self._of, self._states = {}, {}
            state, begun = scorer.begin(bos=not start_with_nothing), LMState()
            begun = self._of.setdefault(state, begun) if merged else begun
            self._states[begun] = state
            return begun

        def score(self, state: Any, token_index: int) -> tuple[Any, float]:
            number = numbers[token_index] if 0 <= token_index < len(numbers) else UNKNOWN
            log10_prob, _, after = scorer.score(self._states[state], number)
            return self._shown(state, token_index, after), log10_prob

        def finish(self, state: Any) -> tuple[Any, float]:
            log10_prob, _, after = scorer.score(self._states[state], END)
            ended = state.child(-1)  # never merged: that would leave a single hypothesis
            self._states[ended] = after
            return ended, log10_prob

    return FlashlightModel()
