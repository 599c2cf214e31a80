"""Aligns half an hour of sentences repeated 25 times each, in voices that the aligner was not trained on.

    python benchmarks/repeats.py --text books.txt.gz --train news.txt.gz --out OUT [--voices 0 1 2 3] [--write]

espeak-ng says short sentences of `--text` in random order, each 25 times, with pauses of 0.3 to 1.2 s, a twentieth of 2
to 5 s, in clean to noisy rooms. A tenth of the sentences have no line, and a tenth of the lines are unspoken; all lines
have the same few texts. Times drift within 5 s, or there are none. The aligner learns from sentences of
`--train` by voices 77 to 100, which have no variant of espeak-ng in common with voices 0 to 7.

Of two equal lines beside each other, one of which was not said, neither text nor sound tells which: a line at another
saying of its own text is counted apart from lines that are lost or wrong.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import yaml
from numpy.typing import NDArray
from page import command_line, machine, publish, python

from megahour.align.choice import Refused, trusted
from megahour.align.document import spell
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard, listen
from megahour.align.tables import Clock, time_words
from megahour.core.store import Artifact
from megahour.corpus.generate import rooms
from megahour.corpus.generate.espeak import RATE_HZ as ESPEAK_HZ
from megahour.corpus.generate.espeak import speaker
from megahour.corpus.generate.sentences import Sentence
from megahour.corpus.generate.synthesise import render, speak_sentence
from megahour.corpus.generate.voices import voice
from megahour.corpus.media.audio import to_int16
from megahour.features.frontend import FrontEnd, Source
from megahour.models.service import model_spec, open_session

RATE_HZ = 16_000
TIMES = 25
REPEATED, TRAINED = (2, 9), (4, 16)  # words of a sentence
VOICES = range(77, 101)  # of the aligner
CONDITIONS = ("clean", "office", "room", "noisy")
NEAR_S, FAR_S = 0.2, 2.0
Rng = np.random.Generator


class Line(NamedTuple):
    """A line of the transcript: its true start, or its place if unspoken; the start in the subtitle; is it spoken?"""

    text: str
    start_s: float
    shown_s: float
    said: bool


class Recording(NamedTuple):
    """samples (N,); the lines; and the text and start, in seconds, of each spoken sentence."""

    samples: NDArray[np.int16]
    lines: list[Line]
    said: list[tuple[str, float]]


@dataclass
class Found:
    """Counts of lines; `equal_*` are those at another saying of their own text, or that lost their place to one."""

    said: int = 0
    lost: int = 0
    equal_lost: int = 0
    near: int = 0
    far: int = 0
    equal_far: int = 0
    unspoken: int = 0
    unspoken_kept: int = 0
    equal_kept: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def sentences_of(path: Path, words: tuple[int, int], rng: Rng) -> list[str]:
    """The different sentences of a file with a number of words in this range and no digits, shuffled."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = {" ".join(line.split()) for line in file}
    usable = (line for line in lines if not any(map(str.isdigit, line)))
    fitting = sorted(line for line in usable if words[0] <= len(line.split()) <= words[1])
    rng.shuffle(fitting)
    return fitting


def speech(
    number: int, texts: list[str], pauses: list[int], rng: Rng
) -> tuple[NDArray[np.int16], list[float], list[float]]:
    """Audio of texts in one voice, and the starts and ends in seconds; `pauses` in samples at espeak's rate."""
    who = voice(number)
    with speaker(who.accent, who.variant) as say:
        spoken = [speak_sentence(say, who, Sentence(text, text), rng) for text in texts]
    audio, words = render(spoken, pauses, RATE_HZ)
    audio = rooms.apply(CONDITIONS[number % len(CONDITIONS)], audio, RATE_HZ, rng)
    starts, ends = (
        [getattr(w[i], f"{edge}_samples") / RATE_HZ for w in words] for i, edge in ((0, "start"), (-1, "end"))
    )
    return to_int16(audio), starts, ends


def recording(number: int, texts: list[str], seed: int) -> Recording:
    """A voice's recording of `texts`, each `TIMES` times, and its flawed transcript."""
    rng = np.random.default_rng([seed, number])
    order = rng.permutation(np.repeat(np.arange(len(texts)), TIMES)).tolist()
    long = rng.random(len(order) + 1) < 0.05
    pauses = np.where(long, rng.uniform(2, 5, len(long)), rng.uniform(0.3, 1.2, len(long))) * ESPEAK_HZ
    samples, starts, ends = speech(number, [texts[i] for i in order], pauses.astype(int).tolist(), rng)
    lines: list[Line] = []
    for i, start, end in zip(order, starts, ends, strict=True):
        if rng.random() >= 0.1:
            lines.append(Line(texts[i], start, start, True))
        if rng.random() < 0.1:
            lines.append(Line(texts[int(rng.integers(len(texts)))], end + 0.1, end + 0.1, False))
    true = np.array([line.start_s for line in lines])
    knots = np.linspace(0, true[-1], 12)
    shown = true + np.interp(true, knots, rng.uniform(-4.5, 4.5, len(knots))) + rng.normal(0, 0.2, len(true))
    shown = np.maximum.accumulate(np.clip(shown, 0, None))
    lines = [line._replace(shown_s=at) for line, at in zip(lines, shown.tolist(), strict=True)]
    return Recording(samples, lines, [(texts[i], start) for i, start in zip(order, starts, strict=True)])


def trained(a: argparse.Namespace) -> Artifact:
    """The aligner, which learns from single sentences with right texts."""
    folder, recipe = a.out / "prompts", a.out / "training.yaml"
    if not folder.exists():
        folder.mkdir(parents=True)
        rng, seconds, number = np.random.default_rng(a.seed), 0.0, 0
        for text in sentences_of(a.train, TRAINED, rng):
            pauses = [int(rng.uniform(0.15, 0.4) * ESPEAK_HZ) for _ in range(2)]
            samples, _, _ = speech(VOICES[number % len(VOICES)], [text], pauses, rng)
            soundfile.write(folder / f"p{number:05d}.wav", samples, RATE_HZ)
            (folder / f"p{number:05d}.txt").write_text(text + "\n", "utf-8")
            seconds, number = seconds + len(samples) / RATE_HZ, number + 1
            if seconds >= 3600 * a.hours:
                break
    about = {"about": "an aligner for benchmarks/repeats.py", "run": str(a.out / "training"), "seed": 1, "threads": 1}
    steps = {"engine": {"kind": "local", "workers": 1}, "steps": dict(_training(folder))}
    recipe.write_text(yaml.safe_dump({**about, **steps}, sort_keys=False), "utf-8")
    if subprocess.run([sys.executable, "-m", "megahour", "run", str(recipe)], stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{recipe} did not end: see above")
    return Artifact(a.out / "training" / "aligner")


def _training(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    source = {"source": str(folder), "language": "en", "licence": "CC0-1.0", "rate_hz": RATE_HZ}
    yield "prompts-recordings", {"stage": "ingest", **source, "on_language_mismatch": "keep"}
    yield "prompts-utterances", {"stage": "cut", "inputs": {"recordings": "prompts-recordings"}, "min_s": 1}
    yield "prompts", {"stage": "select", "inputs": {"utterances": "prompts-utterances"}, "sets": [{"name": "prompts"}]}
    yield "features", {"stage": "features", "inputs": {"selection": "prompts", "utterances": "prompts-utterances"}}
    shape = {"kind": "tdnn", "criterion": "ctc", "sets": ["prompts"], "layers": 6, "hidden": 192}
    shape |= {"warp": 0.1, "mel_masks": 1, "epochs": 0, "whole_epochs": 6, "batch_frames": 1024}
    shape |= {"final_learning_rate": 2.0e-4, "held_out_by": "utterance"}
    yield "aligner", {"stage": "train", "inputs": {"features": "features"}, **shape}


def starts_of(heard: Heard, made: Recording, tokens: list[str], front: FrontEnd, *, timed: bool) -> NDArray[np.float64]:
    """(J,) seconds at which each line begins by `align` with its defaults, NaN for those that it refuses."""
    cues = [(i, line.shown_s if timed else np.nan, line.text) for i, line in enumerate(made.lines)]
    document = spell(cues, tokens)
    clock = Clock(front.shift_s, RATE_HZ, len(made.samples), front.frame_s)
    starts = np.full(len(cues), np.nan)
    try:
        aligned, unsure = trusted(AlignParams(), heard, document, clock.shift_s, doubtful=False)
    except Refused:
        return starts
    words = time_words(document, aligned, heard.level, clock)
    for word in np.flatnonzero(words.start >= 0)[::-1].tolist():
        starts[document.word_cue[word]] = clock.of_energy_frames(words.start[[word]])[0] / RATE_HZ
    starts[document.cues[unsure]] = np.nan
    return starts


def counted(starts: NDArray[np.float64], made: Recording) -> Found:
    found = Found()
    taken = [(line.text, at) for line, at in zip(made.lines, starts.tolist(), strict=True) if at == at]

    def at_its_text(text: str, at: float, among: list[tuple[str, float]]) -> bool:
        return any(other == text and abs(start - at) <= FAR_S for other, start in among)

    for line, at in zip(made.lines, starts.tolist(), strict=True):
        found.said += line.said
        found.unspoken += not line.said
        if at != at:
            equal = line.said and at_its_text(line.text, line.start_s, taken)
            found.lost += line.said and not equal
            found.equal_lost += equal
        elif line.said:
            found.near += abs(at - line.start_s) <= NEAR_S
            equal = at_its_text(line.text, at, made.said)
            found.far += abs(at - line.start_s) > FAR_S and not equal
            found.equal_far += abs(at - line.start_s) > FAR_S and equal
        else:
            equal = at_its_text(line.text, at, made.said)
            found.unspoken_kept += not equal
            found.equal_kept += equal
    return found


HEAD = (
    "| voice | times | lines lost | to an equal line | starts ≤ 200 ms | starts > 2 s off | at another saying "
    "| unspoken kept | at a saying |\n|" + "---|" * 9
)


def row_of(name: str, form: str, found: Found) -> str:
    kept = max(1, found.said - found.lost - found.equal_lost)
    cells = (
        name, form, f"{found.lost} of {found.said}, {found.lost / max(1, found.said):.1%}", found.equal_lost,
        f"{found.near / kept:.1%}", f"{found.far} of {kept}", found.equal_far,
        f"{found.unspoken_kept} of {found.unspoken}", found.equal_kept,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--voices", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--sentences", type=int, default=28, help="different ones of a recording")
    parser.add_argument("--hours", type=float, default=1.6, help="of speech that the aligner learns from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    load = os.getloadavg()[0]
    aligner = trained(a)
    config, p = aligner.read_json(0, ".model.json"), AlignParams()
    front = FrontEnd.of(config, window_s=p.window_s, margin_s=p.margin_s)
    spec = model_spec(aligner, p.batch_frames, outputs="costs", precision=p.precision)
    session = open_session(None, spec)
    texts = sentences_of(a.text, REPEATED, np.random.default_rng(a.seed))
    table, sums = [HEAD], {"timed": Found(), "untimed": Found()}
    for number in a.voices:
        made = recording(number, texts[number * a.sentences : (number + 1) * a.sentences], a.seed)
        source = Source(len(made.samples), RATE_HZ, lambda start, stop, made=made: made.samples[start:stop])
        (heard,) = listen([source], front, session, spec.rows(front.sequence_frames))
        for form in sums:
            found = counted(starts_of(heard, made, config["tokens"], front, timed=form == "timed"), made)
            table.append(row_of(str(number), form, found))
            print(table[-1], file=sys.stderr, flush=True)
            sums[form] += found
    table += [row_of("all", form, found) for form, found in sums.items()]
    lines = [
        "# Sentences that repeat",
        "",
        f"    {command_line(__file__)}",
        "",
        machine(python(), load=load),
        "",
        *table,
    ]
    publish(__file__, lines, write=a.write)


if __name__ == "__main__":
    main()
