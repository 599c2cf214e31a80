"""What a Whisper model's text adds to `align` and `cut` on read speech: beside texts, in place of wrong ones, alone.

    python benchmarks/whisper_beside.py CLIPS --aligner ALIGNER --model tiny.en --out OUT [--write]
    python benchmarks/whisper_beside.py ../shared/data/fsdd --digits --speaker lucas --aligner ALIGNER --out OUT

CLIPS/SPEAKER/NAME.wav with NAME.txt; ALIGNER has not heard these clips. The clips, each once, become recordings of some
minutes. A tenth of the lines is missing from their texts, and a tenth was never spoken. faster-whisper reads each
recording; MODEL is its name or folder. Recordings have their own text, the text of the next one, or none; each is tried
with and without `ingest --recognised`, all else by default but for the shortest utterance. A word of an utterance
is right if it is spoken there, in order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from page import command_line, machine, publish, python
from strangers import FLAWED, OF_DIGITS, PATTERN, Step, files_of, rows_of, run

from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import match

TEXTS = ("own", "of the next", "none")
HEAD = (
    "| texts | Whisper beside | recordings aligned | utterances kept | minutes kept | words in them | right "
    "| spoken words kept |\n|" + "---|" * 8
)


def unpacked(raw: Artifact, folder: Path) -> dict[str, Path]:
    """Write each recording's audio and text; gives a folder for each kind of text, with links to the audio."""
    files = files_of(raw)
    names = sorted(files)
    next_to = dict(zip(names, names[1:] + names[:1], strict=True))
    made = {text: folder / text.replace(" ", "-") for text in TEXTS}
    for name, own in files.items():
        for text, place in made.items():
            place.mkdir(parents=True, exist_ok=True)
            (suffix,) = own.keys() & {"wav", "flac"}
            (place / f"{name}.{suffix}").write_bytes(own[suffix])
            if text != "none":
                (place / f"{name}.txt").write_bytes(files[name if text == "own" else next_to[name]]["txt"])
    return made


def read_by_whisper(model: str, source: Path, folder: Path, language: str) -> None:
    """Write a JSON of each recording, as users of faster-whisper do; those that are there stay."""
    from faster_whisper import WhisperModel

    folder.mkdir(parents=True, exist_ok=True)
    whisper = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)
    for audio in sorted([*source.glob("*.wav"), *source.glob("*.flac")]):
        if not (out := folder / f"{audio.stem}.json").exists():
            segments, info = whisper.transcribe(str(audio), language=language, word_timestamps=True)
            heard = {"language": info.language, "segments": [dataclasses.asdict(each) for each in segments]}
            out.write_text(json.dumps(heard), "utf-8")


def aligned(text: str, beside: bool, folders: dict[str, Path], a: argparse.Namespace) -> None:
    """From the recordings with one kind of text to utterances; of wrong texts `cut` may have nothing to keep."""
    place = a.out / name_of(text, beside)
    recognised = ["--recognised", str(a.out / "whisper")] if beside else []
    about = ["--licence", a.licence, "--language", a.language, "--rate-hz", str(a.rate_hz)]
    of_recordings, of_alignment = (f"{place}/{step}" for step in ("recordings", "alignment"))
    for words in (
        ["ingest", "--source", str(folders[text]), *about, *recognised, "--out", of_recordings],
        ["align", "--recordings", of_recordings, "--aligner", a.aligner, "--out", of_alignment],
        ["cut", "--recordings", of_recordings, "--alignment", of_alignment, "--min-s", "0.3", "--out", f"{place}/cut"],
    ):
        subprocess.run([sys.executable, "-m", "megahour", *words, "--max-bad", "1"], stdout=subprocess.DEVNULL)


def name_of(text: str, beside: bool) -> str:
    return f"{text.replace(' ', '-')}-{'read' if beside else 'alone'}"


def spoken_words(raw: Artifact) -> dict[str, list[Step]]:
    """The words of each recording, with their middles; inside a clip they follow each other evenly."""
    spoken: dict[str, list[Step]] = {}
    for (name, _), clip in groupby(rows_of(raw, ".truth.parquet"), lambda row: (row["name"], row["sentence"])):
        words = list(clip)
        start, end = words[0]["start_samples"], words[-1]["end_samples"]
        for n, word in enumerate(words):
            middle = start + (end - start) * (n + 0.5) / len(words)
            spoken.setdefault(name, []).append({"text": word["text"], "middle": middle})
    return spoken


def row_of(text: str, beside: bool, made: Path, spoken: dict[str, list[Step]]) -> str:
    counts = Artifact(made / name_of(text, beside) / "alignment").manifest.counts
    kept = Artifact(made / name_of(text, beside) / "cut")
    utterances = list(rows_of(kept)) if kept.complete else []
    words = right = 0
    for row in utterances:
        there = [
            word["text"] for word in spoken[row["name"]] if row["start_samples"] <= word["middle"] <= row["end_samples"]
        ]
        words += len(row["words"])
        right += int((match(row["words"], there) >= 0).sum())
    minutes = sum(row["samples"] / row["rate_hz"] for row in utterances) / 60
    total = sum(map(len, spoken.values()))
    cells = (
        text, "yes" if beside else "no", f"{counts.kept} of {counts.came_in}", str(len(utterances)), f"{minutes:.1f}",
        str(words), f"{right / max(1, words):.1%}", f"{right / total:.1%} of {total}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips")
    parser.add_argument("--aligner", required=True, help="an artifact of train or import-aligner")
    parser.add_argument("--model", default="tiny.en", help="of faster-whisper: a name or a folder")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--pattern", default=PATTERN)
    parser.add_argument("--digits", action="store_true", help="clips are those of the Free Spoken Digit Dataset")
    parser.add_argument("--speaker", default="", help="only this speaker's clips")
    parser.add_argument("--language", default="en")
    parser.add_argument("--licence", default="CC0-1.0", help="of the clips")
    parser.add_argument("--rate-hz", type=int, default=8000)
    parser.add_argument("--minutes", type=float, default=2.0, help="of a recording")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    a.aligner, load = str(Path(a.aligner).resolve()), os.getloadavg()[0]
    a.out.mkdir(parents=True, exist_ok=True)
    source = {"stage": "compose", "source": a.clips, "pattern": a.pattern, "licence": a.licence}
    source |= (OF_DIGITS if a.digits else {}) | ({"only": {"speaker": a.speaker}} if a.speaker else {})
    about = {"language": a.language, "rate_hz": a.rate_hz, "recording_minutes": a.minutes, "forms": ["lines"]}
    raw = Artifact(run(a.out / "raw.yaml", {"raw": {**source, **about, **FLAWED}}, a) / "raw")
    folders = unpacked(raw, a.out / "talks")
    read_by_whisper(a.model, folders["own"], a.out / "whisper", a.language)
    tried = [(text, beside) for text in TEXTS for beside in (False, True) if beside or text != "none"]
    for text, beside in tried:
        aligned(text, beside, folders, a)
    spoken = spoken_words(raw)
    lines = ["# Whisper's text beside the texts of recordings", "", f"    {command_line(__file__)}", ""]
    lines += [machine(python(), load=load), "", HEAD, *(row_of(*each, a.out, spoken) for each in tried)]
    publish(__file__, lines, write=a.write)


if __name__ == "__main__":
    main()
