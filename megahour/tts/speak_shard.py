"""Worker side of `speak`: speak the texts of one shard into FLAC files in a tar, indexed as *utterances*."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.core.records import key_of
from megahour.core.schemas import UTTERANCES
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.generate import rooms
from megahour.corpus.generate.voices import Voice
from megahour.corpus.media.audio import FULL_SCALE, encode_flac, to_int16
from megahour.corpus.media.tar import tar_writer
from megahour.corpus.text.language_id import UNDETERMINED, same_language
from megahour.corpus.text.normalise import normalise
from megahour.cut.sound_quality import clipped_share, snr_db
from megahour.features.codecs import resampled
from megahour.tts.params import SpeakParams
from megahour.tts.sound_file import NOTICE
from megahour.units.lexicon import lexicon_of

Row = dict[str, Any]
Int16 = NDArray[np.int16]
Drawn = dict[str, float]
UNKNOWN = float("nan")
ESPEAK_HZ = 16_000
PLAIN = Voice("espeak-ng", accent="", variant="", words_per_minute=170, pitch=50, pitch_range=50)
TEXT_COLUMNS = ("key", "name", "text", "raw", "language", "licence", "attribution")


class ByVoice:
    """Speak with a trained voice; carries the licence and attribution of its speech."""

    def __init__(self, p: SpeakParams, inputs: Inputs) -> None:
        from megahour.tts.speaking import Speaker

        given, vocoder = inputs.get("lexicon"), inputs["vocoder"].url if "vocoder" in inputs else ""
        lexicon = lexicon_of(given) if given else None
        self.p, self.speaker = p, Speaker(inputs["voice"].url, lexicon=lexicon, vocoder=vocoder)
        self.name = inputs["voice"].manifest.digest
        self.speakers = p.speakers or self.speaker.voices
        self.licence = " AND ".join(self.speaker.config["licences"])
        self.attribution = "; ".join([NOTICE, *self.speaker.config["attributions"]])

    def language_of(self, text: Row) -> str:
        """The language to speak a text in: the one that was asked for, else its own, else the voice's first.

        Raises BadRecord: the text is in a language that the voice does not speak.
        """
        own, known = text.get("language") or UNDETERMINED, self.speaker.languages
        if self.p.language or own in known:
            return self.p.language or own
        alike = [each for each in known if same_language(own, each)]
        if not alike and UNDETERMINED not in (own, *known):
            detail = f"the text is in {own}, the voice speaks {', '.join(known)}; `language` has it spoken all the same"
            raise BadRecord("other-language", detail)
        return (alike or known)[0]

    def __call__(self, text: str, language: str, key: int, drawn: Drawn) -> tuple[Int16, int, str]:
        from megahour.tts.speaking import Manner

        speaker = self.speakers[key % len(self.speakers)]
        manner = Manner(speaker, language, spread=self.p.spread, steps=self.p.steps, seed=key, **drawn)
        reader = self.speaker.reader(language)
        pieces = [spoken.samples for spoken in self.speaker.say(text, manner, reader)]
        if reader.left_out:
            raise BadRecord(next(iter(reader.left_out)), reader.details[0])
        if not pieces:
            raise BadRecord("nothing-to-say", f"{text[:80]!r}")
        return to_int16(np.concatenate(pieces)), self.speaker.rate_hz, speaker


class ByEspeak:
    """Speak with espeak-ng: its plain voice, or one of `voices` that differ in vocal tract, speed and pitch."""

    licence, attribution = "", NOTICE

    def __init__(self, p: SpeakParams) -> None:
        self.p, self.name = p, p.espeak

    def language_of(self, text: Row) -> str:
        return self.p.language or self.p.espeak.partition("-")[0]

    def __call__(self, text: str, language: str, key: int, drawn: Drawn) -> tuple[Int16, int, str]:
        from megahour.corpus.generate.espeak import speak
        from megahour.corpus.generate.voices import voice

        who = voice(key % self.p.voices) if self.p.voices else PLAIN
        said = speak(
            text,
            self.p.espeak,
            who.variant,
            words_per_minute=round(who.words_per_minute * drawn["pace"]),
            pitch=int(np.clip(who.pitch + 4 * drawn["semitones"], 0, 99)),
            pitch_range=who.pitch_range,
        )
        if not len(said.samples):
            raise BadRecord("nothing-to-say", f"{text[:80]!r}")
        rate_hz = self.p.rate_hz or ESPEAK_HZ
        return _at(said.samples, said.rate_hz, rate_hz), rate_hz, who.name


def _at(samples: Int16, rate_hz: int, to_hz: int) -> Int16:
    """Resample (samples,) from `rate_hz` to `to_hz`."""
    signal = samples.astype(np.float32) / np.float32(FULL_SCALE)
    return samples if rate_hz == to_hz else to_int16(resampled(signal, rate_hz, to_hz))


def speak_shard(p: SpeakParams, inputs: Inputs, shard: int, out: ShardWriter, ctx: Context) -> None:
    """Write one *utterances* shard: `.tar` and `.parquet`."""
    say: ByVoice | ByEspeak = ByVoice(p, inputs) if "voice" in inputs else ByEspeak(p)
    turns = [(text, turn) for text in _texts(inputs["texts"], shard) for turn in range(p.times)]
    rows: list[Row] = []
    with out.open(".tar") as file, tar_writer(file) as tar:
        for done, (text, turn) in enumerate(turns, 1):
            out.came_in()
            key = key_of("speak", p.seed, say.name, text["key"], *([turn] if turn else []))
            try:
                language = say.language_of(text)
                samples, spoken_hz, speaker = say(_with_marks(text, language), language, key, _drawn(p, key))
            except BadRecord as bad:
                out.quarantine(text["key"], bad.reason, bad.detail, source=inputs["texts"].url)
                continue
            rate_hz = p.rate_hz or spoken_hz
            samples, condition = _in_a_room(p, _at(samples, spoken_hz, rate_hz), rate_hz, key)
            row = _row(text, key, samples, rate_hz, speaker, say) | {"condition": condition, "language": language}
            row["offset"], row["size"] = tar.add(f"{key}.flac", encode_flac(samples, rate_hz))
            rows.append(row)
            out.kept()
            out.stat("audio_s", round(len(samples) / rate_hz, 3))
            ctx.progress(done, len(turns), "texts")
    out.table(pa.Table.from_pylist(rows, UTTERANCES))


def _in_a_room(p: SpeakParams, samples: Int16, rate_hz: int, key: int) -> tuple[Int16, str]:
    """Put samples (N,) into a drawn condition; returns them with its name, or unchanged if `p` has no conditions."""
    if not p.conditions:
        return samples, "synthetic"
    rng = np.random.Generator(np.random.PCG64(key_of("room", key)))
    condition = p.conditions[int(rng.integers(len(p.conditions)))]
    signal = samples.astype(np.float32) / np.float32(FULL_SCALE)
    return to_int16(rooms.apply(condition, signal, rate_hz, rng)), condition


def _texts(texts: Artifact, shard: int) -> Iterator[Row]:
    """Yield rows with `TEXT_COLUMNS`; a *text* artifact gives a row per line, with fewer columns."""
    if ".parquet" in texts.receipt_of(shard).files:
        yield from texts.read_table(shard, columns=list(TEXT_COLUMNS)).to_pylist()
        return
    lines = texts.read_bytes(shard, ".txt").decode().splitlines()
    for number, line in enumerate(lines):
        yield {"key": key_of("line", shard, number, line), "name": f"{shard}-{number}", "text": line, "raw": line}


def _with_marks(text: Row, language: str) -> str:
    """The raw text if it normalises to the spoken text, since its punctuation makes pauses; else the spoken text."""
    raw = text.get("raw") or ""
    return raw if normalise(raw, language).text == text["text"] else text["text"]


def _drawn(p: SpeakParams, key: int) -> Drawn:
    rng = np.random.Generator(np.random.PCG64(key))
    return {"pace": float(rng.uniform(*p.pace)), "semitones": float(rng.uniform(*p.semitones))}


def _row(text: Row, key: int, samples: Int16, rate_hz: int, speaker: str, say: ByVoice | ByEspeak) -> Row:
    words = text["text"].split()
    places = {"start_samples": 0, "end_samples": len(samples), "samples": len(samples), "rate_hz": rate_hz}
    return {
        **{"key": key, "recording": text["key"], **places, "speaker": speaker, "name": text["name"]},
        **{"licence": say.licence, "attribution": say.attribution},
        **{"created_s": 0, "channel": 0, "split": "", "source": f"synthetic:{speaker}", "tier": "synthetic"},
        **{"raw": text["raw"] or text["text"], "text": text["text"], "words": words},
        **{"word_offset": [], "word_end": [], "word_confidence": [1.0] * len(words), "confidence": 1.0},
        **{"word_start_samples": [-1] * len(words), "word_end_samples": [-1] * len(words), "heard": ""},
        **dict.fromkeys(("loss", "cer", "edge_cer", "wildcard_share"), UNKNOWN),
        **{"snr_db": snr_db(samples, rate_hz), "clipped_share": clipped_share(samples)},
    }
