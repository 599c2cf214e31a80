"""`megahour say`: speaks a text with a trained voice."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.core.errors import ConfigError
from megahour.core.extras import needing
from megahour.runner import log
from megahour.runner.options import FiniteRange

if TYPE_CHECKING:
    from megahour.tts.speaking import AnySpeaker, Spoken

PIPE = "-"
MOST_SEED = (1 << 63) - 1  # onnxruntime's
_NOT_WORDS = re.compile(r"<[^<>]*>|\{[^{}]*\}")  # tags of SSML, and phones


@click.command("say")
@click.argument("text", nargs=-1)
@click.option("--voice", required=True, help="A *model* artifact of kind voice, a run's folder, or an exported bundle.")
@click.option("--file", "path", default="", help="A text or SSML file to say; - for standard input.")
@click.option(
    "--out", default="speech.wav", show_default=True, help="WAV file, or - for raw 16-bit samples as they are computed."
)
@click.option("--speaker", default="", help="Speaker, for a model with several voices.")
@click.option("--language", default="", help="Language, for a model with several languages.")
@click.option(
    "--pace", type=FiniteRange(0.25, 4), default=1.0, show_default=True, help="Speaking rate. 2 is twice as fast."
)
@click.option(
    "--semitones", type=FiniteRange(-12, 12), default=0.0, show_default=True, help="Pitch shift, in semitones."
)
@click.option(
    "--spread",
    type=FiniteRange(0, 2),
    default=0.667,
    show_default=True,
    help="With a flow: scale of its noise. Less is clearer and more monotonous.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=8,
    show_default=True,
    help="With a flow: number of steps. Fewer are faster.",
)
@click.option(
    "--lexicon", default="", help="A *lexicon* artifact or a dictionary file `WORD PH PH …` that takes precedence."
)
@click.option("--vocoder", default="", help="A *model* artifact of kind vocoder, in place of Griffin-Lim.")
@click.option(
    "--precision", default="fp32", show_default=True, help="With a bundle: fp32, or fp16 or int8 if the bundle has it."
)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Seed of all draws.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@log.logged
@needing("audio", "text", "train", "generate", install_as="train,generate")
def command(
    text: tuple[str, ...],
    voice: str,
    path: str,
    out: str,
    lexicon: str,
    vocoder: str,
    precision: str,
    threads: int,
    **values: Any,
) -> None:
    """Speak TEXT: words, phones in braces as {h ə l oʊ} or X-SAMPA, or SSML that begins with <speak>.

    \b
    megahour say 'Your call costs $4.50.' --voice runs/voice --out call.wav
    megahour say --file story.txt --voice runs/voice --out - | aplay -f S16_LE -r 8000
    """  # fmt: skip
    from megahour.tts.speaking import Manner
    from megahour.tts.voices import lexicon_at, speaker_at

    content = _text(text, path)
    speaker = speaker_at(voice, lexicon_at(lexicon) if lexicon else None, threads, precision, vocoder)
    reader, manner = speaker.reader(values["language"]), Manner(**values)
    speaker.ready(manner)
    began_s = time.process_time()
    seconds = _write(speaker, _shown(speaker.say(content, manner, reader), len(content)), out)
    for detail in reader.details[:5]:
        log.say("left-out", f"left out: {detail}", {"detail": detail})
    unread = ""
    if reader.unread:
        unread = f"signs without words: {' '.join(list(reader.unread)[:20])}"
        log.say("unread", f"not read, {unread}", {"count": reader.unread.total()})
    if not seconds:
        remedy = "; ".join([*reader.details[:3], *([unread] if unread else [])]) or "give it words"
        raise ConfigError("nothing in the text can be spoken", where="say", remedy=remedy)
    used_s = time.process_time() - began_s
    left_out = f", {sum(reader.left_out.values())} words left out" if reader.left_out else ""
    if other := _other_language(content, reader.language):
        hint = f"the text seems to be in {other}, and was spoken by the rules of {reader.language}"
        log.say("other-language", hint, {"language": other})
    where = "standard output" if out == PIPE else out
    summary = f"{seconds:.2f} s of synthetic speech to {where} in {used_s:.2f} s of CPU (real-time factor "
    log.say("said", f"{summary}{used_s / seconds:.3f}){left_out}", {"seconds": seconds, "cpu_s": used_s})


def _other_language(text: str, language: str) -> str:
    """The language of a text if it is surely not `language`, else ""; of short texts nothing is known."""
    from megahour.corpus.text.language_id import UNDETERMINED, identify, same_language

    if language in ("", UNDETERMINED):
        return ""
    found = identify(_NOT_WORDS.sub(" ", text)).language
    return "" if not found or same_language(found, language) else found


def _text(words: tuple[str, ...], path: str) -> str:
    if words == (PIPE,) and not path:  # as many programs name standard input
        words, path = (), PIPE
    if bool(words) == bool(path):
        remedy = 'megahour say "hello" --voice RUN, or --file FILE; --file - reads standard input'
        raise ConfigError("give either a text or --file", where="say", remedy=remedy)
    if words:
        return " ".join(words)
    try:
        return (sys.stdin.buffer.read() if path == PIPE else Path(path).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path, remedy="check --file") from error
    except UnicodeDecodeError as error:
        where = "standard input" if path == PIPE else path
        raise ConfigError(
            f"not UTF-8: {error}", where=where, remedy=f"iconv -f LATIN1 -t UTF-8 {path} first"
        ) from error


def _shown(pieces: Iterator[Spoken], characters: int) -> Iterator[Spoken]:
    """The pieces; tells how much of a long text has been spoken, every quarter of a minute."""
    from megahour.runner.progress import TerminalMonitor

    monitor, done = TerminalMonitor(step="say"), 0
    for spoken in pieces:
        done += len(spoken.piece.text)
        monitor.progress(min(done, characters), characters, "characters")  # numbers are longer in words
        yield spoken


def _write(speaker: AnySpeaker, pieces: Iterator[Spoken], out: str) -> float:
    """Write the speech; returns its seconds."""
    from megahour.corpus.media.audio import to_int16
    from megahour.tts.sound_file import WavWriter

    samples = 0
    if out == PIPE:
        for spoken in pieces:
            samples += len(spoken.samples)
            sys.stdout.buffer.write(to_int16(spoken.samples).tobytes())
            sys.stdout.buffer.flush()
        return samples / speaker.rate_hz
    with WavWriter(Path(out), speaker.rate_hz) as wav:
        for spoken in pieces:
            samples += len(spoken.samples)
            wav.add(spoken.samples)
    return samples / speaker.rate_hz
