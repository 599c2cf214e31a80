"""What a user may set of the stages that make voices."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params

Room = Literal["clean", "office", "room", "noisy", "far"]


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
    silence_db: float = Field(
        10.0,
        ge=0,
        description="least distance of an utterance's silences from its speech, in dB: less is music, noise "
        "or another voice, which a voice would learn. Raise it for studio speech; 0 keeps all",
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


class SpeakParams(Params):
    """Texts spoken by a trained voice, or by espeak-ng, as utterances: to judge a voice, or to train recognisers."""

    sets: list[str] = Field([], description="sets of a selection whose texts are spoken; empty: all")
    espeak: str = Field("", description="espeak-ng's name of a language, such as en-us, in place of a voice")
    voices: int = Field(
        0,
        ge=0,
        description="of espeak-ng: speakers with a vocal tract, speed and pitch of their own, of which each text draws "
        "one; 0: one plain voice; 70 have tracts that all differ, and help recognisers on unheard voices",
        json_schema_extra=LATER,
    )
    times: int = Field(
        1, ge=1, description="how often each text is spoken, each time with other draws", json_schema_extra=LATER
    )
    conditions: list[Room] = Field(
        [],
        description="rooms with their noise, of which each utterance draws one; empty: dry sound, to judge a voice",
        json_schema_extra=LATER,
    )
    speakers: list[str] = Field([], description="of a model with several voices: each text by one of these; empty: all")
    language: str = Field("", description="BCP 47 language of the texts; empty: the voice's first")
    pace: tuple[float, float] = Field(
        (1.0, 1.0), description="slowest and fastest, drawn for each text; 0.9 to 1.1 where recognisers learn from it"
    )
    semitones: tuple[float, float] = Field((0.0, 0.0), description="lowest and highest shift of the pitch, drawn")
    spread: float = Field(0.667, ge=0, le=2, description="of a flow's noise: less is clearer and more monotonous")
    steps: int = Field(8, ge=1, le=100, description="of a flow: fewer are faster and rougher")
    rate_hz: int = Field(0, ge=0, le=48_000, description="sampling rate; 0: the voice's own, of espeak-ng 16,000")
    seed: int = Field(0, ge=0, description="of what is drawn")

    @model_validator(mode="after")
    def _check(self) -> SpeakParams:
        if self.voices and not self.espeak:
            raise ValueError("voices are espeak-ng's: give espeak, too; a model's own are its speakers")
        for name, (low, high) in (("pace", (0.25, 4.0)), ("semitones", (-12.0, 12.0))):
            first, last = getattr(self, name)
            if not low <= first <= last <= high:
                raise ValueError(
                    f"{name} is {first} to {last}: it lies between {low:g} and {high:g}, the lower one first"
                )
        return self


class ScoreSpeechParams(Params):
    """How good synthetic speech is, beside recordings of the same texts: MCD, pitch, PESQ, STOI, MOS, WER."""

    recogniser: str = Field(
        "",
        description="what hears whether it can be understood: a model, a run or a bundle, as `transcribe` takes it, or "
        "package.module:function of samples (float32, -1 to 1) and their rate that gives text; empty: no WER",
    )
    mos: bool = Field(False, description="also the MOS that DNSMOS predicts (extra `mos`)")
    draws: int = Field(1000, ge=1, description="bootstrap draws of the intervals")
    seed: int = Field(0, description="of the draws")

    def identity(self) -> dict[str, Any]:
        """With a digest of the function's file, so that a changed one is asked again."""
        from megahour.core.hooks import code_digest

        return {**super().identity(), "recogniser_sha256": code_digest(self.recogniser)}


class ListeningTestParams(Params):
    """A page on which people rate voices, blind and in an order of their own: MOS, comparison MOS or MUSHRA."""

    kind: Literal["mos", "cmos", "mushra", "samples"] = Field(
        "mos",
        description="mos: each recording from 1 to 5; cmos: two systems side by side, for small differences; mushra: "
        "all beside the reference, 0 to 100; samples: no test, all side by side with their names",
    )
    names: list[str] = Field(
        [],
        description="for samples: what the page calls its systems, in the order reference, first, second …",
        json_schema_extra=LATER,
    )
    utterances: int = Field(20, ge=1, le=500, description="texts; a listener takes half a minute for each")
    title: str = Field("Listening test", description="headline of the page")
    seed: int = Field(0, ge=0, description="draws the texts and the names of the clips")
