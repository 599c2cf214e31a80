"""`megahour align-file`: finds the times of the lines and words of one text in one recording.

The stages `ingest` and `align` do the work, with their defaults, in a temporary folder.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from megahour.align.params import AlignParams
from megahour.core.errors import ConfigError, NothingKept
from megahour.core.output import prepare_output, write_output
from megahour.core.store import Artifact
from megahour.core.surroundings import explaining
from megahour.core.unicode import shown
from megahour.runner import log

Row = dict[str, Any]
NAME = "recording"
PLAIN_TEXT = ".txt"
_VOICE = re.compile(r"</?v\b[^>]*>")  # WebVTT's mark of who speaks
FORMATS = ("srt", "json", "ctm", "textgrid")


@dataclass
class AlignedFile:
    """Rows of the recording, its lines and words; times are samples at `rate_hz`.

    lines: text, start, end, confidence, and reason: why the line is not in the audio, "" if it is. words: word, start,
    end, confidence, line.
    """

    file: str
    samples: int
    rate_hz: int
    lines: list[Row]
    words: list[Row]


@click.command("align-file")
@click.argument("audio")
@click.argument("text")
@click.option("--aligner", required=True, help="A *model* artifact: of import-aligner, or of train with criterion ctc.")
@click.option(
    "--language", default="en", show_default=True, help="Language of the text (BCP 47), for its numbers and dates."
)
@click.option(
    "--min-spoken",
    type=click.FloatRange(0, 1),
    default=AlignParams.model_fields["min_spoken"].default,
    show_default=True,
    help="Refuse a text of which a smaller share is spoken. Lower it for a book's text beside one of its chapters.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="srt", show_default=True)
@click.option("--out", default="", help="Output file. Default: standard output.")
@log.logged
def command(audio: str, text: str, aligner: str, language: str, min_spoken: float, form: str, out: str) -> None:
    """Find where each line and word of TEXT is spoken in AUDIO.

    TEXT is SRT, VTT, TTML, TextGrid, a recogniser's JSON, or plain text with one sentence per line. Times in it serve
    as hints. For more than a few files, use the stages `ingest` and `align`.

    \b
    megahour align-file talk.mp3 talk.txt --aligner work/aligner --out talk.srt
    megahour align-file talk.mp3 talk.srt --aligner work/aligner --format textgrid --out talk.TextGrid
    """
    for path in (audio, text):
        if not Path(path).is_file():
            raise ConfigError("no such file", where=path, remedy="check the path")
    if out:
        prepare_output(out)
    with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
        aligned = _aligned(Path(folder), audio, text, aligner, language, min_spoken)
    for number, line in enumerate(aligned.lines, 1):
        if line["reason"]:
            log.say("line-not-found", f"line {number} not found ({line['reason']}): {line['text']}", line)
    made = written(aligned, form)
    if out:
        write_output(out, made)
    else:
        with explaining("standard output", resumes=False):
            sys.stdout.write(made)
            sys.stdout.flush()
    found = sum(not line["reason"] for line in aligned.lines)
    facts = {"lines": len(aligned.lines), "found": found, "words": len(aligned.words)}
    log.say("aligned-file", f"{found} of {len(aligned.lines)} lines found in {audio}", facts)


def _aligned(folder: Path, audio: str, text: str, aligner: str, language: str, min_spoken: float) -> AlignedFile:
    from megahour.core.config import parse
    from megahour.engine.local import LocalEngine
    from megahour.features.frontend import FrontEnd
    from megahour.recipes.recipe import load_stage
    from megahour.runner.runner import run_stage

    model = Artifact(aligner)
    if not model.complete or model.manifest.stage not in ("train", "import-aligner"):
        remedy = "give a *model* artifact: of `import-aligner`, or of `train` with criterion ctc"
        raise ConfigError("not an aligner", where=model.url, remedy=remedy)
    rate_hz = FrontEnd.of(model.read_json(0, ".model.json"), where=model.url).rate_hz
    recordings, alignment, work = Artifact(folder / "recordings"), Artifact(folder / "alignment"), folder / "work"
    source = _source(folder / "source", Path(audio), Path(text))
    ingest, align = load_stage("ingest"), load_stage("align")
    given = {"licence": "CC0", "language": language, "on_language_mismatch": "keep", "rate_hz": rate_hz, "max_bad": 1.0}
    given |= {"source": str(source), "on_cut_short": "keep"}
    checked = parse(ingest.params, given, where="align-file")
    with LocalEngine(workers=1) as engine:
        try:
            run_stage(ingest, checked, {}, recordings, engine, work=work)
        except NothingKept:
            why = recordings.read_table(0, ".left_out.parquet").to_pylist()[0]
            remedy = "repair the file, or use another"
            raise ConfigError(f"{why['reason']}: {why['detail']}", where=f"{audio}, {text}", remedy=remedy) from None
        for odd in recordings.receipt_of(0).stats.get("examples", {}).get("odd-audio", []):
            log.say("odd-audio", f"{audio}: {odd['detail']}", {"path": audio}, level=logging.WARNING)
        usual = parse(align.params, {"min_spoken": min_spoken}, where="align-file")
        run_stage(align, usual, {"recordings": recordings, "aligner": model}, alignment, engine, work=work)
    return _read(recordings, alignment, Path(audio).name)


def _source(folder: Path, audio: Path, text: Path) -> Path:
    """The two files side by side under one name, as `ingest` pairs them. Its audio may have any suffix."""
    from megahour.corpus.transcripts.pairing import MEDIA
    from megahour.corpus.transcripts.read import SUFFIXES as TRANSCRIPTS

    folder.mkdir()
    medium = audio.suffix.lower() if audio.name.lower().endswith(MEDIA) else ".wav"
    kind = text.suffix.lower() if text.name.lower().endswith(TRANSCRIPTS) else PLAIN_TEXT
    for path, suffix in ((audio, medium), (text, kind)):
        (folder / f"{NAME}{suffix}").symlink_to(path.resolve())
    return folder


def _read(recordings: Artifact, alignment: Artifact, file: str) -> AlignedFile:
    (recording,) = recordings.read_table(0).to_pylist()
    cues = {cue["cue"]: cue for cue in recordings.read_table(0, ".cues.parquet").to_pylist()}
    segments = alignment.read_table(0, ".segments.parquet").to_pylist()
    words = alignment.read_table(0).to_pylist()
    if not words:
        whole = next((each["reason"] for each in segments if each["cue"] < 0 and not each["kept"]), "unspoken")
        remedy = "check that the text belongs to the recording"
        if "doubt" not in alignment.manifest.summary:  # which says what to check of the aligner
            remedy += ", and the aligner to its language"
        if whole in ("text-mismatch", "wrong-transcript"):
            remedy += "; of a text that goes far beyond the recording, give its part, or lower --min-spoken"
        raise ConfigError(f"{whole}: no line of the text was found", where=file, remedy=remedy)
    found = {each["cue"]: each for each in segments if each["cue"] >= 0}
    numbers = {cue: number for number, cue in enumerate(cues, 1)}
    lines = [_line(cue, found.get(number)) for number, cue in cues.items()]
    return AlignedFile(
        file, recording["samples"], recording["rate_hz"], lines, [_word(word, numbers) for word in words]
    )


def _line(cue: Row, segment: Row | None) -> Row:
    kept = segment is not None and segment["kept"]
    place = {"start": segment["start_samples"], "end": segment["end_samples"]} if segment is not None else {}
    known = {"confidence": round(segment["confidence"], 4)} if segment is not None and kept else {}
    reason = "" if kept else (segment or {}).get("reason") or "unspoken"
    return {
        "text": " ".join(_VOICE.sub("", cue["raw"]).split()),
        "start": -1,
        "end": -1,
        **place,
        **known,
        "reason": reason,
    }


def _word(word: Row, numbers: dict[int, int]) -> Row:
    times = {"start": word["start_samples"], "end": word["end_samples"]}
    return {"word": word["text"], **times, "confidence": round(word["confidence"], 4), "line": numbers[word["cue"]]}


def written(aligned: AlignedFile, form: str) -> str:
    """The contents of a file of format `form`."""
    return {"srt": _srt, "json": _json, "ctm": _ctm, "textgrid": _textgrid}[form](aligned)


def _spoken(aligned: AlignedFile) -> list[Row]:
    """Lines that are in the audio, in the order in which they are spoken."""
    return sorted((line for line in aligned.lines if not line["reason"]), key=lambda line: int(line["start"]))


def _srt(aligned: AlignedFile) -> str:
    from megahour.corpus.interchange.subtitles import srt_text

    names = {"start": "start_samples", "end": "end_samples", "text": "raw"}
    spoken = _spoken(aligned)
    return srt_text({"rate_hz": aligned.rate_hz} | {names[key]: line[key] for key in names} for line in spoken)


def _json(aligned: AlignedFile) -> str:
    def in_seconds(row: Row) -> Row:
        times = {key: round(row[key] / aligned.rate_hz, 3) if row[key] >= 0 else None for key in ("start", "end")}
        return row | times

    made = {"file": shown(aligned.file), "seconds": round(aligned.samples / aligned.rate_hz, 3)}
    rows = {"lines": list(map(in_seconds, aligned.lines)), "words": list(map(in_seconds, aligned.words))}
    return json.dumps(made | rows, ensure_ascii=False, indent=1) + "\n"


def _ctm(aligned: AlignedFile) -> str:
    name, rate_hz = "_".join(Path(shown(aligned.file)).stem.split()), aligned.rate_hz
    times = ((word["start"] / rate_hz, (word["end"] - word["start"]) / rate_hz, word) for word in aligned.words)
    return "".join(f"{name} 1 {at:.3f} {s:.3f} {word['word']} {word['confidence']}\n" for at, s, word in times)


def _textgrid(aligned: AlignedFile) -> str:
    from megahour.corpus.interchange.subtitles import Interval, grid, without_gaps

    def tier(rows: list[Row], key: str) -> list[Interval]:
        spans = ((row["start"], row["end"], row[key]) for row in rows)
        return without_gaps(spans, aligned.samples, aligned.rate_hz)

    tiers = {"words": tier(aligned.words, "word"), "lines": tier(_spoken(aligned), "text")}
    return grid(tiers, aligned.samples / aligned.rate_hz)
