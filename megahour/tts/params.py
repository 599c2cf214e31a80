"""The parameters of the stages in `tts`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params

SLOWEST_HZ = 1_000
Room = Literal["clean", "office", "room", "noisy", "far"]


class TtsDataParams(Params):
    """Extract training data for a voice from utterances.

    The data are mel spectra, phones, durations, pitch and energy.
    """

    sets: list[str] = Field([])
    """Sets of the selection to use. Empty: all that are aligned."""
    language: str = ""
    """espeak-ng's name of the language whose phones the lexicon has, such as en-us. The voice then pronounces unknown
    words by espeak-ng's rules. Empty: it knows only the words of a lexicon."""
    languages: dict[str, str] = Field({}, json_schema_extra=LATER)
    """espeak-ng's names for utterances in other languages (BCP 47), such as {it: it}, as the lexicon was made with."""
    mels: int = Field(80, ge=20, le=256)
    """Number of mel filters. Fewer sound duller and train a little faster."""
    low_hz: float = Field(30.0, ge=0)
    """Lower edge of the lowest mel filter, in Hz."""
    high_hz: float = 0.0
    """Upper edge of the highest mel filter, in Hz. 0 or less is relative to the Nyquist frequency."""
    window_s: float = Field(0.04, ge=0.02, le=0.1)
    """Length of an analysis window, in seconds."""
    pause_s: float = Field(0.08, ge=0.02)
    """Shortest silence between words that counts as a pause, in seconds. A shorter one belongs to a phone."""
    edge_s: float = Field(0.1, ge=0.02)
    """Silence kept before the first and after the last word, in seconds."""
    pitch_hz: tuple[float, float] = (60.0, 500.0)
    """Lowest and highest pitch of the voices, in Hz. Narrow the range when the pitch tracker makes octave errors."""
    most_s: float = Field(20.0, gt=0)
    """Leave out longer utterances, in seconds. A batch must hold the longest one."""
    phone_s: float = Field(1.0, gt=0)
    """Leave out utterances with a longer phone, in seconds: their text or alignment is wrong."""
    least_confidence: float = Field(-3.0, le=0)
    """Leave out utterances whose sound fits their phones worse, in nats a frame: the text is wrong, or music plays. It
    is judged where a shard has 50 utterances or more. -100 keeps all."""
    silence_db: float = Field(18.0, ge=0)
    """Smallest level difference between an utterance's speech and its quietest moments, in dB, less where frames are
    voiced and the phones are not. Less means music, noise or a voice under the speech. A voice of 20 utterances or more
    that is noisy throughout keeps what is at most 8 dB noisier than its median. 0 keeps all."""
    voice_distance: float = Field(5.5, ge=0, json_schema_extra=LATER)
    """Least distance of another speaker from the voice, in standard deviations of a dozen phones. What such a speaker
    says is left out, also a part of an utterance; five utterances or more are found, in a shard with 200 of the voice.
    100 keeps all."""
    sound: bool = Field(False, json_schema_extra=LATER)
    """Also write the samples, from which a vocoder learns (`train` with kind vocoder)."""
    no_derivatives: bool = False
    """Also use speech whose licence forbids derivatives (a voice is one). Set it only with the speaker's permission."""

    @model_validator(mode="after")
    def _check(self) -> TtsDataParams:
        low, high = self.pitch_hz
        if not 20 <= low < high <= 2000:
            raise ValueError(f"pitch_hz is {low} to {high}; give a range within 20 to 2000 Hz, lowest first")
        return self


class SpeakParams(Params):
    """Speak texts with a trained voice or espeak-ng.

    The result is utterances, to judge a voice or to train recognisers.
    """

    sets: list[str] = Field([])
    """Sets of a selection whose texts are spoken. Empty: all."""
    espeak: str = ""
    """espeak-ng's name of a language, such as en-us, to use espeak-ng instead of a voice."""
    voices: int = Field(0, ge=0, json_schema_extra=LATER)
    """With espeak-ng: number of simulated speakers with their own vocal tract, speed and pitch, one drawn for each
    text. 70 have tracts that all differ, and help recognisers on unheard voices. 0: one plain voice."""
    times: int = Field(1, ge=1, json_schema_extra=LATER)
    """Number of times each text is spoken, each time with new draws."""
    conditions: list[Room] = Field([], json_schema_extra=LATER)
    """Rooms with their noise, one drawn for each utterance. Empty: dry sound, to judge a voice."""
    speakers: list[str] = Field([])
    """With a model of several voices: speakers to draw from. Empty: all."""
    language: str = ""
    """Language to speak in (BCP 47). Empty: that of each text, or the voice's first one if the voice lacks it."""
    pace: tuple[float, float] = (1.0, 1.0)
    """Range of the speaking rate, drawn for each text. Use 0.9 to 1.1 to train recognisers."""
    semitones: tuple[float, float] = (0.0, 0.0)
    """Range of the pitch shift in semitones, drawn for each text."""
    spread: float = Field(0.667, ge=0, le=2)
    """With a flow: scale of its noise. Less is clearer and more monotonous."""
    steps: int = Field(8, ge=1, le=100)
    """With a flow: number of steps. Fewer are faster and sound rougher."""
    rate_hz: int = Field(0, ge=0, le=48_000)
    """Sampling rate, in Hz, at least 1,000. 0: the voice's own, or 16,000 with espeak-ng."""
    seed: int = Field(0, ge=0)
    """Seed of all draws."""

    @model_validator(mode="after")
    def _check(self) -> SpeakParams:
        if self.voices and not self.espeak:
            raise ValueError("voices applies only to espeak-ng: set espeak too; for a model's voices, set speakers")
        if 0 < self.rate_hz < SLOWEST_HZ:
            raise ValueError(f"rate_hz is {self.rate_hz}; give at least {SLOWEST_HZ:,}, or 0 for the voice's own")
        for name, (low, high) in (("pace", (0.25, 4.0)), ("semitones", (-12.0, 12.0))):
            first, last = getattr(self, name)
            if not low <= first <= last <= high:
                raise ValueError(f"{name} is {first} to {last}; give a range within {low:g} to {high:g}, lowest first")
        return self


class ScoreSpeechParams(Params):
    """Score synthetic speech against recordings.

    The texts are the same, the scores MCD, pitch, PESQ, STOI, MOS and WER.
    """

    recogniser: str = ""
    """Recogniser that measures intelligibility: a model, run or bundle as in `transcribe`, or package.module:function
    that returns the text for samples (float32, -1 to 1) and their rate. Empty: no WER."""
    mos: bool = False
    """Also predict the MOS with DNSMOS (extra `mos`)."""
    draws: int = Field(1000, ge=1)
    """Bootstrap draws for the intervals."""
    seed: int = 0
    """Seed of the bootstrap."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the function's file, so that a changed one is asked again."""
        from megahour.core.hooks import code_digest

        return {**super().identity(), "recogniser_sha256": code_digest(self.recogniser)}


class ListeningTestParams(Params):
    """Make a page on which people rate voices.

    They rate blind and in random order: MOS, comparison MOS or MUSHRA.
    """

    kind: Literal["mos", "cmos", "mushra", "samples"] = "mos"
    """mos: rate each recording from 1 to 5. cmos: compare two systems, for small differences. mushra: rate all systems
    beside the reference, from 0 to 100. samples: no test, all systems side by side with their names."""
    names: list[str] = Field([], json_schema_extra=LATER)
    """With kind samples: names of the systems on the page, in the order reference, first, second …."""
    utterances: int = Field(20, ge=1, le=500)
    """Number of texts. A listener takes half a minute for each."""
    title: str = "Listening test"
    """Heading of the page."""
    seed: int = Field(0, ge=0)
    """Seed for the choice of texts and the names of the clips."""
