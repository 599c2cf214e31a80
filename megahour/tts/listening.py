"""Make listening-test pages, evaluate the listeners' answers, and make pages of samples.

Tests are MOS (ITU-T P.800), comparison MOS and MUSHRA (ITU-R BS.1534). The page contains the recordings but not which
system made them: clips have names hashed from the seed, and a separate file, the key, maps each name to its system.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from megahour.core.errors import ConfigError
from megahour.core.records import canonical_json, fingerprint, key_of
from megahour.core.store import Artifact
from megahour.score.wer import interval

REFERENCE = "reference"
SCALES = {"mos": (1, 5), "cmos": (-1.5, 1.5), "mushra": (0, 100)}  # cmos: each of two recordings has half
LARGEST_BYTES = 64 << 20  # limit of the encoded sound in a page
Row = dict[str, Any]


@dataclass(frozen=True)
class ListeningTest:
    """A test page, and the key that maps each of its clips to a system."""

    page: str
    key: dict[str, Any]


def make_test(kind: str, title: str, systems: Mapping[str, Artifact], *, utterances: int, seed: int) -> ListeningTest:
    """Make a blind test of `systems` (by name) on up to `utterances` texts that all of them say, drawn with `seed`.

    Raises ConfigError: the systems have no text in common, or there is too much sound for a page.
    """
    said, texts = _common(systems, utterances, seed)
    of_clip: dict[str, str] = {}
    sounds: dict[str, str] = {}
    trials: list[dict[str, Any]] = []
    for text in texts:
        clips = {name: f"{key_of('clip', seed, text, name):x}" for name in systems}
        for name, clip in clips.items():
            of_clip[clip] = name
            sounds[clip] = _sound(systems[name], said[name][text])
        number = f"{key_of('trial', seed, text):x}"
        if kind == "mos":
            trials += [{"id": clip, "clips": [clip]} for clip in clips.values()]
        elif kind == "cmos":
            trials.append({"id": number, "clips": list(clips.values())})
        else:
            hidden = f"{key_of('hidden', seed, text):x}"  # the hidden reference of MUSHRA
            of_clip[hidden], sounds[hidden] = REFERENCE, sounds[clips[REFERENCE]]
            others = [clip for name, clip in clips.items() if name != REFERENCE]
            trials.append({"id": number, "reference": clips[REFERENCE], "clips": [hidden, *others]})
    _check_size(sum(map(len, sounds.values())), utterances)
    test = fingerprint([kind, seed, sorted(sounds)])[:16]
    data = {"test": test, "kind": kind, "title": title, "trials": trials, "sounds": sounds}
    template = resources.files("megahour.tts").joinpath("listening_page.html").read_text("utf-8")
    page = template.replace(">DATA<", ">" + canonical_json(data).replace("<", "\\u003c") + "<", 1)
    return ListeningTest(page, {"test": test, "kind": kind, "systems": list(systems), "clips": of_clip})


def make_samples(title: str, systems: Mapping[str, Artifact], *, utterances: int, seed: int) -> str:
    """Make a page that is not blind: a row per text, a column per system. Raises as `make_test` does."""
    said, texts = _common(systems, utterances, seed)
    rows, size = [], 0
    for text in texts:
        cells = [f"<th scope=row>{escape(text)}</th>"]
        for name, artifact in systems.items():
            sound = _sound(artifact, said[name][text])
            size += len(sound)
            cells.append(f'<td><audio controls preload=none aria-label="{escape(name)}" src="{sound}"></audio></td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    _check_size(size, utterances)
    chosen = [said[name][text] for name in systems for text in texts]
    sources = sorted({_source(row["attribution"], row["licence"]) for row in chosen if row["attribution"]})
    filled = {
        "TITLE": escape(title),
        "NAMES": "".join(f"<th scope=col>{escape(name)}</th>" for name in systems),
        "ROWS": "\n".join(rows),
        "SOURCES": "".join(f"<li>{escape(source)}</li>" for source in sources),
    }
    page = resources.files("megahour.tts").joinpath("samples_page.html").read_text("utf-8")
    return re.sub("|".join(filled), lambda found: filled[found[0]], page)


def _common(
    systems: Mapping[str, Artifact], utterances: int, seed: int
) -> tuple[dict[str, dict[str, Row]], Sequence[str]]:
    """Each system's rows by text, and up to `utterances` texts drawn from those that all systems say."""
    said = {name: dict(_said(artifact)) for name, artifact in systems.items()}
    common = sorted(set.intersection(*map(set, said.values())), key=lambda text: key_of("listening", seed, text))
    if not common:
        what = "the systems have no text in common"
        raise ConfigError(what, where="listening-test", remedy="give speech of the same texts")
    return said, common[:utterances]


def _source(attribution: str, licence: str | None) -> str:
    return f"{attribution} ({licence})" if licence else attribution


def _check_size(size: int, utterances: int) -> None:
    if size > LARGEST_BYTES:
        what = f"{size >> 20} MB of sound for one page"
        raise ConfigError(what, where="listening-test", remedy=f"lower `utterances` (now {utterances})")


def _said(artifact: Artifact) -> Iterator[tuple[str, Row]]:
    columns = ["text", "offset", "size", "attribution", "licence"]
    for receipt in artifact.each_receipt():
        for row in artifact.read_table(receipt.shard, columns=columns).to_pylist():
            yield row["text"], {**row, "shard": receipt.shard}


def _sound(artifact: Artifact, row: Row) -> str:
    """The FLAC of an utterance as a data URL."""
    with artifact.open(row["shard"], ".tar") as file:
        file.seek(row["offset"])
        return "data:audio/flac;base64," + base64.b64encode(file.read(row["size"])).decode()


@dataclass(frozen=True)
class Opinion:
    """A system's mean rating with its 95 % interval (`low`, `high`), from `ratings` ratings."""

    system: str
    mean: float
    low: float
    high: float
    ratings: int


def opinions(key: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], draws: int = 2000) -> list[Opinion]:
    """Evaluate the listeners' files for each system, with bootstrap intervals over listeners and, within them, ratings.

    Raises ConfigError: an answer belongs to another test or has a rating off its scale, or no answer has ratings.
    """
    by_system: defaultdict[str, list[list[float]]] = defaultdict(list)
    for number, answer in enumerate(answers, 1):
        if answer.get("test") != key["test"]:
            what = f"answer {number} belongs to test {answer.get('test')}, but the key to {key['test']}"
            raise ConfigError(what, where="listening-results", remedy="give only the answers to this page")
        own: defaultdict[str, list[float]] = defaultdict(list)
        for clip, value in _rated(answer, key["kind"], f"answer {number}"):
            if clip in key["clips"]:
                own[key["clips"][clip]].append(value)
        for system, values in own.items():
            by_system[system].append(values)
    if not by_system:
        remedy = "give files of listeners who have rated"
        raise ConfigError("the answers have no ratings", where="listening-results", remedy=remedy)
    rng = np.random.Generator(np.random.PCG64(0))
    found = []
    for system in [name for name in key["systems"] if name in by_system]:
        listeners = by_system[system]
        means = [float(np.mean(_drawn(listeners, rng))) for _ in range(draws)]
        every = [value for values in listeners for value in values]
        found.append(Opinion(system, float(np.mean(every)), *interval(np.array(means)), len(every)))
    return found


def _rated(answer: Mapping[str, Any], kind: str, where: str) -> Iterator[tuple[str, float]]:
    """Yield clips with their ratings. Raises ConfigError: one that the page cannot have saved."""
    low, high = SCALES[kind]
    trials = answer.get("ratings", {})
    if not isinstance(trials, dict) or not all(isinstance(trial, dict) for trial in trials.values()):
        raise ConfigError("ratings of another form", where=where, remedy="give files that the page saved")
    for trial in trials.values():
        for clip, value in trial.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                what = f"rating {value!r}: {kind} has {low:g} to {high:g}"
                raise ConfigError(what, where=where, remedy="leave this file out: the page did not save it so")
            yield clip, float(value)


def one_of_each(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the answers of a listener, who may have saved twice, the one with the most trials; at a tie the last."""
    best: dict[Any, dict[str, Any]] = {}
    for number, answer in enumerate(answers):
        listener = answer.get("listener")
        name = str(listener) if listener is not None else (number,)
        if name not in best or len(answer.get("ratings", ())) >= len(best[name].get("ratings", ())):
            best[name] = answer
    return list(best.values())


def _drawn(listeners: Sequence[Sequence[float]], rng: np.random.Generator) -> list[float]:
    chosen = rng.integers(0, len(listeners), len(listeners))
    return [
        value for i in chosen.tolist() for value in rng.choice(np.asarray(listeners[i]), len(listeners[i])).tolist()
    ]


def read_answer(data: bytes, where: str) -> dict[str, Any]:
    """Parse a listener's file. Raises ConfigError: `data` is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"not a file of answers: {error}", where=where, remedy="give files that the page saved"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("test"), str):
        raise ConfigError("not a file of answers", where=where, remedy="give files that the page saved")
    return found
