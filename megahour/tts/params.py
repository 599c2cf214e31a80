"""What a user may set of the stages that make voices."""

from __future__ import annotations

from pydantic import Field, model_validator

from megahour.core.config import Params


class TtsDataParams(Params):
    """Mel spectra, phones, durations, pitch and energy of aligned utterances: what a voice learns from."""

    sets: list[str] = Field([], description="sets of the selection that are used; empty: all that are aligned")
    language: str = Field(
        "",
        description="espeak-ng's name of the language whose phones the lexicon has, such as en-us: the voice then "
        "pronounces words by its rules. Empty: it knows the words of a lexicon alone",
    )
    mels: int = Field(80, ge=20, le=256, description="mel filters; fewer sound duller and train a little faster")
    low_hz: float = Field(30.0, ge=0, description="lower edge of the lowest filter, in Hz")
    high_hz: float = Field(0.0, description="upper edge of the highest filter; 0 or less: counted from Nyquist")
    window_s: float = Field(0.04, ge=0.02, le=0.1, description="length of an analysis window, in seconds")
    pause_s: float = Field(
        0.08, ge=0.02, description="shortest silence between words that is a pause; a shorter one is part of a phone"
    )
    edge_s: float = Field(0.1, ge=0.02, description="silence that is kept before the first and after the last word")
    pitch_hz: tuple[float, float] = Field(
        (60.0, 500.0), description="lowest and highest pitch of the voices; narrow it where octaves are confused"
    )
    most_s: float = Field(20.0, gt=0, description="longer utterances are left out: a batch must hold them")
    phone_s: float = Field(
        1.0,
        gt=0,
        description="an utterance with a longer phone is left out: its words are not those that are spoken, or aligned "
        "wrongly",
    )
    no_derivatives: bool = Field(
        False,
        description="also use speech whose licence forbids derivatives, which a voice is: with the speaker's leave",
    )

    @model_validator(mode="after")
    def _check(self) -> TtsDataParams:
        low, high = self.pitch_hz
        if not 20 <= low < high <= 2000:
            raise ValueError(f"pitch_hz is {low} to {high}: it lies between 20 and 2000 Hz, the lower one first")
        return self
