"""`megahour transcribe`: recognises audio files, folders or a pipe as text, subtitles or JSON."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from megahour.cli.recogniser_options import chunk_options, end_options, recogniser_of, recogniser_options, taken
from megahour.core.errors import BadRecord, ConfigError, StoreError
from megahour.core.extras import needing
from megahour.core.output import make_folder, write_output
from megahour.core.unicode import shown
from megahour.runner import log

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from megahour.transcribe.channels import Channel
    from megahour.transcribe.latency import StreamMeter
    from megahour.transcribe.pieces import EndRules
    from megahour.transcribe.recogniser import Recogniser
    from megahour.transcribe.session import Transcription
    from megahour.transcribe.streaming import ChunkLengths

FORMATS = ("txt", "srt", "vtt", "json", "ctm")
SUBTITLES = ("srt", "vtt")
PIPE = "-"
LONGEST_NAME = 255  # bytes of a file name


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    form: str
    out: str
    resume: bool
    overwrite: bool
    ends: EndRules
    whole: bool
    rate_hz: int
    chunks: ChunkLengths | None
    channel: Channel


class ChannelNumber(click.ParamType):  # type: ignore[type-arg]
    """The number of a channel, or `each`."""

    name = "N|each"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Channel:
        if value == "each":  # a name of `transcribe.channels`, whose packages may not be installed yet
            return "each"
        try:
            return click.IntRange(0).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}: give its number, from 1; 0 is the mix of all; or each", param, ctx)


@click.command("transcribe")
@click.argument("audio", nargs=-1, required=True)
@recogniser_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="txt", show_default=True)
@click.option(
    "--out",
    default="",
    help="Folder for one output file per recording. Without it, text goes to standard output, of several recordings "
    "with NAME and a tab before each line.",
)
@click.option("--resume", is_flag=True, help="Skip recordings whose output already exists in --out.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that already exist in --out.")
@click.option("--stream", "live", is_flag=True, help="Show words while the audio arrives, for a single input.")
@chunk_options
@click.option("--rate-hz", default=0, help="Standard input is raw 16-bit mono audio at this sampling rate.")
@click.option(
    "--channel",
    type=ChannelNumber(),
    default=0,
    help="Transcribe this channel of each file, such as one of the two people on a call. each: every channel by "
    "itself, in one transcript that names it. 0: their mix.",
)
@end_options
@click.option(
    "--whole",
    is_flag=True,
    help="Treat each input as one utterance with all its pauses, as the stage `decode` does. For up to ten minutes.",
)
@log.logged
@needing("audio", "train", install_as="transcribe")
def command(audio: tuple[str, ...], live: bool, **values: Any) -> None:
    """Recognise speech: AUDIO are files, folders, or - for standard input.

    \b
    megahour transcribe talk.mp3 --model demo
    megahour transcribe interviews/ --model runs/demo --format srt --out subtitles
    arecord -f S16_LE -r 16000 -t raw | megahour transcribe - --model demo --rate-hz 16000 --stream
    """
    if audio.count(PIPE) > 1:
        raise ConfigError("standard input twice", where="transcribe", remedy=f"give {PIPE} once")
    which, chunks, ends = taken(values)
    asked = Asked(ends=ends, chunks=chunks if live or chunks.ms else None, **values)
    inputs = list(_inputs(audio))
    _check_agreement(inputs, live, asked)
    if (asked.form != "json" or asked.chunks) and any(
        each.startswith("nbest=") and each != "nbest=0" for each in which["settings"]
    ):
        remedy = "take --format json, without --stream and --chunk-ms"
        raise ConfigError(
            "--set nbest lists texts in JSON, of models that see whole pieces", where="transcribe", remedy=remedy
        )
    targets = _targets(inputs, asked)
    recogniser = recogniser_of(**which)
    if asked.out:
        make_folder(asked.out)  # now, and not once the first hours of audio are recognised
    if live:
        _stream(recogniser, inputs[0], asked)
    elif failed := _transcribe_all(recogniser, inputs, targets, asked):
        log.say("failed", f"{failed} of {len(inputs)} inputs failed", {"failed": failed}, level=logging.ERROR)
        sys.exit(1)


def _inputs(audio: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(file, its name relative to the given folder) of each input, those of a folder sorted by name."""
    from megahour.corpus.media.folders import HIDDEN, files_below
    from megahour.corpus.transcripts.pairing import MEDIA

    for each in audio:
        if each != PIPE and Path(each).is_dir():
            below = files_below(each)  # a broken link, as to a disk that is not there, fails like a damaged file
            names = {path: str(Path(path).relative_to(each)) for path in sorted([*below.entries, *below.broken])}
            found = [(path, name) for path, name in names.items() if name.lower().endswith(MEDIA)]
            shown = [(path, name) for path, name in found if not HIDDEN.search(name)]  # macOS leaves ._talk.mp3
            if not shown:
                raise ConfigError("no audio files in this folder", where=each, remedy=f"it needs {', '.join(MEDIA)}")
            yield from shown
        elif each != PIPE and Path(each).exists() and not Path(each).is_file():
            raise ConfigError("a pipe or a device, not a file", where=each, remedy=f"send it to standard input: {PIPE}")
        elif each != PIPE and not Path(each).is_file():
            remedy = "copy it to this machine, or `megahour ingest` it" if "://" in each else "check the path"
            raise ConfigError("no such file or folder", where=each, remedy=remedy)
        else:
            yield each, "stdin" if each == PIPE else Path(each).name


def _check_agreement(inputs: list[tuple[str, str]], live: bool, asked: Asked) -> None:
    """Raises ConfigError: an option would have no effect on these inputs, or would spoil the output."""
    if asked.rate_hz and any(path != PIPE for path, _ in inputs):
        remedy = f"send it to standard input: megahour transcribe {PIPE} --rate-hz {asked.rate_hz} < FILE"
        raise ConfigError("--rate-hz describes raw samples, not a file", where="transcribe", remedy=remedy)
    if asked.channel and (live or asked.rate_hz):
        what = "--channel applies to files, not to streams or raw samples"
        raise ConfigError(what, where="transcribe", remedy="leave it out, or --stream and --rate-hz")
    if live and asked.whole:
        remedy = "leave one of them out: a stream ends its segments at pauses"
        raise ConfigError("--whole with --stream", where="transcribe", remedy=remedy)
    if len(inputs) > 1 and asked.form in SUBTITLES and not asked.out:
        what = f"{asked.form} of {len(inputs)} inputs on standard output, where players would take only the first"
        raise ConfigError(what, where="transcribe", remedy="name a folder with --out")
    if live and (len(inputs) != 1 or asked.out):
        raise ConfigError(f"--stream with {len(inputs)} inputs", where="transcribe", remedy="give one, without --out")


def _transcribe_all(
    recogniser: Recogniser, inputs: list[tuple[str, str]], targets: Sequence[Path | None], asked: Asked
) -> int:
    """Write or print each input's transcript, and the reason of each failure; returns how many failed."""
    from megahour.runner.console import duration
    from megahour.transcribe.formats import FORMATS as WRITERS

    failed, skipped, heard_s, began_s = 0, 0, 0.0, time.monotonic()
    for number, ((path, _), target) in enumerate(zip(inputs, targets, strict=True), 1):
        started_s = time.monotonic()
        try:
            _check_name(target)
            if target is not None and asked.resume and target.exists():
                skipped += 1
                continue
            transcript = _transcribe(recogniser, path, asked)
        except BadRecord as bad:
            failed += 1
            log.say("bad-audio", f"{path}: {bad.reason}: {bad.detail}", {"path": path}, level=logging.ERROR)
            continue
        except KeyboardInterrupt:
            if asked.out:
                made = f"{number - 1 - failed} of {len(inputs)} transcripts are in {asked.out}"
                log.say("kept", f"{made}. To make the others: the same command with --resume", level=logging.WARNING)
            raise
        _say_oddities(path, transcript, asked.form)
        written = WRITERS[asked.form](transcript)
        if target is None:
            several = asked.form == "txt" and len(inputs) > 1
            click.echo(_named(transcript.name, written) if several else written, nl=False)
        else:
            _write(target, written, asked)
        heard_s += transcript.seconds
        rate = transcript.seconds / max(time.monotonic() - started_s, 1e-9)
        if len(inputs) > 1:
            line = f"{number}/{len(inputs)} {path}: {transcript.seconds:.1f} s, {rate:.1f}x real time"
            log.say("transcribed", line, {"path": path})
    if asked.out:
        took = f"{duration(heard_s)} of audio in {duration(time.monotonic() - began_s)}"
        before = f", {skipped} of them from before" if skipped else ""
        log.say_last(f"{len(inputs) - failed} of {len(inputs)} transcripts in {asked.out}{before}: {took}")
    return failed


def _named(name: str, lines: str) -> str:
    """NAME and a tab before each line, as grep names the files of lines; a text without words is an empty line."""
    start = shown(name).replace("\t", "\\t").replace("\n", "\\n")
    return "".join(f"{start}\t{line}\n" for line in lines.split("\n")[:-1] or [""])


def _say_oddities(path: str, transcript: Transcription, form: str) -> None:
    """Warn of what the transcript is missing, and why."""
    timeless = sum(word.start_s is None for word in transcript.words) if form == "ctm" else 0
    remedy = "give --units and --lexicon, or take --format txt"
    for kind, warnings in (
        ("odd-audio", transcript.remarks),
        ("lost-piece", [f"nothing recognised from {lost}" for lost in transcript.lost]),
        ("no-words", ["no words recognised"] if not (transcript.words or transcript.lost) else []),
        ("no-times", [f"{timeless} words have no times and are not in the CTM: {remedy}"] if timeless else []),
    ):
        for warning in warnings:
            log.say(kind, f"{path}: {warning}", {"path": path}, level=logging.WARNING)


def _targets(inputs: list[tuple[str, str]], asked: Asked) -> Sequence[Path | None]:
    """The file of each transcript: talk.srt, or talk.mp3.srt if talk.wav is an input too. None: standard output.

    Raises ConfigError: a folder has the name of a transcript, or files exist, which people may have written, and
    neither --resume nor --overwrite is given.
    """
    if not asked.out:
        if asked.resume or asked.overwrite:
            what = "--resume or --overwrite without --out"
            raise ConfigError(what, where="transcribe", remedy="name a folder with --out")
        return [None] * len(inputs)
    if "://" in asked.out:
        remedy = "name a local folder, and copy it there afterwards"
        raise ConfigError("--out cannot be a store", where=asked.out, remedy=remedy)
    plain = [Path(asked.out) / Path(name).with_suffix(f".{asked.form}") for _, name in inputs]
    whole = [Path(asked.out) / f"{name}.{asked.form}" for _, name in inputs]
    shared = Counter(plain)
    targets = [one if shared[one] == 1 else other for one, other in zip(plain, whole, strict=True)]
    if twice := sorted(str(target) for target, count in Counter(targets).items() if count > 1):
        raise ConfigError(f"two inputs would become {twice[0]}", where=asked.out, remedy="transcribe them one by one")
    there = [target for target in targets if _fits(target) and target.exists()]
    if folder := next(filter(Path.is_dir, there), None):
        raise ConfigError("a folder where a transcript would be", where=str(folder), remedy="choose another --out")
    if there and not (asked.resume or asked.overwrite):
        what = f"{len(there)} of {len(targets)} outputs already exist, such as {there[0].name}"
        remedy = "choose another --out; or --resume to make only the missing ones, or --overwrite to replace them"
        raise ConfigError(what, where=asked.out, remedy=remedy)
    return targets


def _check_name(target: Path | None) -> None:
    """Raises BadRecord: no file can have the name of this transcript."""
    if target is not None and not _fits(target):
        size = len(os.fsencode(target.name))
        raise BadRecord(
            "long-name", f"its transcript's name would have {size} bytes, {LONGEST_NAME} at most: rename it"
        )


def _fits(target: Path) -> bool:
    """Whether a file can have this name; of another one `exists` raises OSError."""
    return len(os.fsencode(target.name)) <= LONGEST_NAME


def _write(target: Path, text: str, asked: Asked) -> None:
    try:
        make_folder(target.parent)
        write_output(target, text)
    except StoreError as error:  # the same command would be refused for the transcripts that are there
        if not asked.overwrite:
            error.remedy = error.remedy.replace("starts again", "with --resume makes the missing ones")
        raise


def _transcribe(recogniser: Recogniser, path: str, asked: Asked) -> Transcription:
    from megahour.transcribe.channels import transcribe_channel
    from megahour.transcribe.decoded import declared_s
    from megahour.transcribe.live import UNSENT
    from megahour.transcribe.session import transcribe

    how: dict[str, Any] = {"ends": asked.ends, "whole": asked.whole, "chunks": asked.chunks}
    if path != PIPE:
        with _opened(path) as file:
            watch = _shown(path, declared_s(file))
            return transcribe_channel(file, recogniser, asked.channel, name=path, watch=watch, **how)
    if asked.rate_hz:
        transcript = transcribe(sys.stdin.buffer, recogniser, name="stdin", rate_hz=asked.rate_hz, **how)
        if not transcript.seconds:
            raise BadRecord("zero-length-audio", f"no audio arrived; {UNSENT}")
        return transcript
    with tempfile.TemporaryFile() as kept:  # containers must be seekable
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.seek(0)
        try:
            return transcribe_channel(kept, recogniser, asked.channel, name="stdin", **how)
        except BadRecord as bad:
            hint = "; of raw 16-bit samples give their sampling rate with --rate-hz"
            raise BadRecord(bad.reason, f"{bad.detail}{hint * (bad.reason == 'unreadable-audio')}") from bad


def _shown(path: str, seconds: float) -> Callable[[float], None]:
    """Tells how much of a long recording of `seconds` has been heard, every quarter of a minute."""
    from megahour.runner.progress import TerminalMonitor

    monitor = TerminalMonitor(step=path)
    return lambda heard_s: monitor.progress(heard_s, seconds, "s of audio")


def _opened(path: str) -> BinaryIO:
    """Raises BadRecord: the file cannot be opened."""
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise BadRecord("unreadable-file", f"{error.strerror or error}") from None


def _stream(recogniser: Recogniser, source: tuple[str, str], asked: Asked) -> None:
    """Recognise a pipe, or a file of any kind, as a stream; exits with 1 if the file cannot be decoded."""
    from megahour.transcribe.decoded import played_blocks
    from megahour.transcribe.latency import StreamMeter
    from megahour.transcribe.live import UNSENT, live_blocks

    if asked.form not in ("txt", "json"):
        raise ConfigError(f"--stream --format {asked.form}", where="transcribe", remedy="take txt or json")
    rate_hz, meter, remarks = recogniser.front.rate_hz, StreamMeter(), list[str]()
    path, where = source[0], "standard input" if source[0] == PIPE else source[0]
    try:
        if path == PIPE:
            _show(recogniser, live_blocks(sys.stdin.buffer, rate_hz, asked.rate_hz), asked, meter)
        else:
            with _opened(path) as file:
                _show(recogniser, played_blocks(file, rate_hz, remarks), asked, meter)
    except BadRecord as bad:
        log.say("bad-audio", f"{path}: {bad.reason}: {bad.detail}", {"path": path}, level=logging.ERROR)
        sys.exit(1)
    if not meter.heard_s:
        raise ConfigError("no audio arrived", where=where, remedy=UNSENT)
    for remark in remarks:
        log.say("odd-audio", f"{path}: {remark}", {"path": path}, level=logging.WARNING)
    log.say("streamed", meter.text(), meter.facts())


def _show(recogniser: Recogniser, blocks: Iterator[NDArray[np.float32]], asked: Asked, meter: StreamMeter) -> None:
    """Print words while the audio arrives: a terminal's line is updated; elsewhere each segment becomes a line."""
    from megahour.transcribe.formats import word_dict
    from megahour.transcribe.session import stream

    terminal = sys.stdout.isatty() and asked.form == "txt"
    assert asked.chunks is not None
    for update in stream(recogniser, blocks, ends=asked.ends, chunks=asked.chunks, meter=meter):
        text = " ".join(word.text for word in update.words)
        if asked.form == "json":
            news = {"final": update.final, "text": text, "words": [word_dict(word) for word in update.words]}
            click.echo(json.dumps(news, ensure_ascii=False))
        elif terminal:
            click.echo(f"\r\033[K{text}", nl=update.final)
        elif update.final and text:
            click.echo(text)
        sys.stdout.flush()
