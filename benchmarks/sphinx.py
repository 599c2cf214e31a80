"""CMU Sphinx on the cepstra, lists, dictionary and trigram of finished runs of the recipe an4 or an4-all-labels.

python benchmarks/sphinx.py runs/an4-? [--sets labelled] [--work FOLDER] [--write]

Needs sphinxtrain and pocketsphinx (Debian's packages of these names). Each run's labelled set trains triphones by the
toolkit's own scripts and defaults: 200 senones, cepstra with deltas, their mean removed by utterance. The number of
Gaussians and the language weight are the best of GAUSSIANS and WEIGHTS on the run's tuning speakers; without these they
are the toolkit's defaults. The table pools the runs and has the systems that they scored beside it, on recorded and on
simulated conditions.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from page import machine, publish, python

from megahour.core.store import Artifact
from megahour.features.cepstra import FRAME_S, CepstraUtterance, plan_import, read_cepstra, utterance_key
from megahour.features.params import ImportFeaturesParams
from megahour.features.simulated import simulated
from megahour.score.references import Reference
from megahour.score.table import Scored
from megahour.score.wer import word_edits

TOOLKIT, PROGRAMS = Path("/usr/lib/x86_64-linux-gnu/sphinxtrain"), Path("/usr/lib/sphinxtrain")
STEPS = ("05.vector_quantize/slave.VQ.pl", "20.ci_hmm/slave_convg.pl", "30.cd_hmm_untied/slave_convg.pl")
STEPS += ("40.buildtrees/slave.treebuilder.pl", "45.prunetree/slave.state-tying.pl", "50.cd_hmm_tied/slave_convg.pl")
SENONES, GAUSSIANS, WEIGHTS, DEFAULT = 200, (2, 4, 8), (4, 6, 8, 10, 13), (8, 10)
DECODER = {"beam": "1e-80", "wbeam": "1e-60", "pbeam": "1e-80", "wip": "0.2", "cepext": ".mfc"}
DECODER |= {"feat": "1s_c_d_dd", "cmn": "batch", "agc": "none"}
FEWEST = 3  # times that a phone must occur in training: the toolkit stops at phones that it cannot learn
Texts = dict[int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sets", nargs="+", default=["labelled"], help="sets to train on")
    parser.add_argument("--work", type=Path, help="folder for models and logs; otherwise a temporary one")
    parser.add_argument("--write", action="store_true", help="keep the table as sphinx.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        references: list[Reference] = []
        systems: dict[str, Texts] = {}
        seconds, settings = [], []
        for run in arguments.runs:
            toolkit = Toolkit(run, (work / run.name).absolute())
            seconds.append(toolkit.train(arguments.sets))
            settings.append(toolkit.tune())
            for step in ("score", "score-conditions"):
                own = scored(run / step, references, systems)
                systems.setdefault("sphinx", {}).update(toolkit.decode(own, *settings[-1], step))
            print(
                f"{run}: {seconds[-1]:.0f} CPU-seconds of training, Gaussians and weight {settings[-1]}",
                file=sys.stderr,
            )
    rows = Scored(references, systems).table(draws=1000, seed=0)
    publish(__file__, page(rows, list(systems), arguments.sets, seconds, settings), write=arguments.write)


class Toolkit:
    """Sphinx's folder for one run: files of its own kinds, models and logs."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run, self.folder = run, folder
        made = Artifact(run / "features").manifest.params
        own = {name: value for name, value in made.items() if name in ImportFeaturesParams.model_fields}
        self.params = ImportFeaturesParams.model_validate(own)
        self.sets: dict[str, list[CepstraUtterance]] = {}
        for name, shard in plan_import(self.params):
            self.sets.setdefault(name, []).extend(utterance for utterance in shard if utterance.path)
        for part in ("etc", "feat", "logdir", "bwaccumdir", "model_parameters", "model_architecture", "trees"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for name, utterances in self.sets.items():
            self._features(utterances, ["channel", "noise", "reverb"] if name == "test" else [])

    def _key(self, utterance: CepstraUtterance) -> int:
        return utterance_key(self.params.corpus, utterance.name)

    def _words(self, training: Sequence[CepstraUtterance]) -> list[CepstraUtterance]:
        """Write the run's trigram, and its dictionary without phones that are too rare in `training`; the utterances
        that have none of these."""
        dictionary = Path(Artifact(self.run / "lexicon").manifest.params["dictionary"]).read_text("utf-8")
        entries = {word.lower(): phones for word, *phones in map(str.split, dictionary.splitlines()) if phones}
        counts = Counter(phone for u in training for word in u.text.split() for phone in entries[word])
        heard = {phone for phone, count in counts.items() if count >= FEWEST}
        kept = {word: phones for word, phones in entries.items() if heard.issuperset(phones)}
        self.write("an4.dic", (f"{word} {' '.join(phones)}" for word, phones in kept.items()))
        self.write("an4.phone", sorted({"SIL"} | heard))
        self.write("an4.filler", ["<s> SIL", "</s> SIL", "<sil> SIL"])
        (self.folder / "etc/an4.lm").write_bytes((self.run / "lm/shards/00000.arpa").read_bytes())
        return [u for u in training if all(word in kept for word in u.text.split())]

    def _features(self, utterances: Iterable[CepstraUtterance], conditions: Sequence[Any]) -> None:
        for utterance in utterances:
            data = (Path(self.params.source) / utterance.path).read_bytes()
            cepstra, key = read_cepstra(data, self.params.dims), self._key(utterance)
            versions = {key: cepstra}
            for condition in conditions:
                own = utterance_key(self.params.corpus, utterance.name, condition)
                versions[own] = simulated(condition, cepstra, own, FRAME_S)
            for name, values in versions.items():
                count = np.array([values.size], "<i4").tobytes()
                (self.folder / f"feat/{name}.mfc").write_bytes(count + values.astype("<f4").tobytes())

    def train(self, sets: Sequence[str]) -> float:
        """Train on `sets`; CPU-seconds."""
        chosen = self._words([utterance for name in sets for utterance in self.sets[name]])
        self.write("an4_train.fileids", (str(self._key(u)) for u in chosen))
        self.write("an4_train.transcription", (f"<s> {u.text} </s> ({self._key(u)})" for u in chosen))
        configuration = (TOOLKIT / "etc/sphinx_train.cfg").read_text("utf-8")
        for name, value in {
            "___DB_NAME___": "an4",
            "___BASE_DIR___": str(self.folder),
            "___SPHINXTRAIN_DIR___": str(TOOLKIT),
            "___SPHINXTRAIN_BIN_DIR___": str(PROGRAMS),
        }.items():
            configuration = configuration.replace(name, value)
        configuration = re.sub(r"(?m)^(\$CFG_N_TIED_STATES) = \d+", rf"\1 = {SENONES}", configuration)
        self.write("sphinx_train.cfg", [configuration])
        self.write("feat.params", [(TOOLKIT / "etc/feat.params").read_text("utf-8")])
        before = cpu_seconds()
        for step in STEPS:
            self.call(["perl", str(TOOLKIT / "scripts" / step)], "train.log")
        for gaussians in GAUSSIANS[:-1]:  # the toolkit keeps their parameters alone
            for name in ("mdef", "feat.params", "noisedict"):
                shutil.copy(self._model(GAUSSIANS[-1]) / name, self._model(gaussians))
        return cpu_seconds() - before

    def _model(self, gaussians: int) -> Path:
        last = "" if gaussians == GAUSSIANS[-1] else f"_{gaussians}"
        return self.folder / f"model_parameters/an4.cd_cont_{SENONES}{last}"

    def tune(self) -> tuple[int, int]:
        """The number of Gaussians and the language weight with the fewest words wrong on the tuning speakers."""
        speakers = {self._key(u): u.text for u in self.sets.get("tune", [])}

        def wrong(setting: tuple[int, int]) -> int:
            texts = self.decode(speakers, *setting, "tune")
            return sum(word_edits(text, texts.get(key, "")).errors for key, text in speakers.items())

        return min(product(GAUSSIANS, WEIGHTS), key=wrong) if speakers else DEFAULT

    def decode(self, keys: Iterable[int], gaussians: int, weight: int, name: str) -> Texts:
        """The words of the utterances `keys`."""
        self.write(f"{name}.fileids", map(str, keys))
        texts = self.folder / f"{name}.hyp"
        files = {
            "hmm": self._model(gaussians),
            "lm": "etc/an4.lm",
            "dict": "etc/an4.dic",
            "fdict": "etc/an4.filler",
            "cepdir": "feat",
        }
        files |= {"ctl": f"etc/{name}.fileids", "hyp": texts}
        every = files | DECODER | {"lw": weight}
        options = [part for option, value in every.items() for part in (f"-{option}", str(value))]
        self.call(["pocketsphinx_batch", *options], f"{name}.log")
        result = {}
        for line in texts.read_text("utf-8").splitlines():
            words, _, about = line.rpartition("(")
            kept = (re.sub(r"\(\d+\)$", "", word) for word in words.split() if not word.startswith("<"))
            result[int(about.split()[0])] = " ".join(kept)
        return result

    def write(self, name: str, lines: Iterable[str]) -> None:
        (self.folder / "etc" / name).write_text("\n".join(lines) + "\n", "utf-8")

    def call(self, command: Sequence[str], log: str) -> None:
        libraries = {"PERL5LIB": str(TOOLKIT / "scripts/lib"), "PERL_USE_UNSAFE_INC": "1"}
        with (self.folder / log).open("a") as file:
            done = subprocess.run(
                command, cwd=self.folder, stdout=file, stderr=file, env={**os.environ, **libraries}, check=False
            )
        if done.returncode:
            raise SystemExit(f"{command[:2]} failed: see {self.folder / log}")


def scored(score: Path, references: list[Reference], systems: dict[str, Texts]) -> list[int]:
    """Add the utterances of a score, and the texts of its systems; the utterances' keys."""
    table = Artifact(score).read_table(0)
    names = [name.removeprefix("errors_") for name in table.column_names if name.startswith("errors_")]
    rows = table.to_pylist()
    references += [Reference(r["key"], r["reference"], r["condition"], r["speaker"]) for r in rows]
    for name in names:
        systems.setdefault(name, {}).update({row["key"]: row[name] for row in rows})
    return [row["key"] for row in rows]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def page(
    rows: list[dict[str, Any]], systems: list[str], sets: list[str], seconds: list[float], settings: Any
) -> list[str]:
    lines = ["# Sphinx beside the recipe's systems", "", "`python benchmarks/sphinx.py RUNS`", ""]
    lines += [
        f"sphinxtrain and pocketsphinx trained on {' and '.join(sets)} of {len(seconds)} runs: {SENONES} senones,"
    ]
    lines += [f"{min(seconds):.0f} to {max(seconds):.0f} CPU-seconds of training each. Gaussians and language weights:"]
    lines += [", ".join(f"{gaussians} and {weight}" for gaussians, weight in settings) + ".", ""]
    lines += ["| condition | words | " + " | ".join(f"{name}: WER %" for name in systems) + " |"]
    lines += ["| --- | ---: |" + " --- |" * len(systems)]
    for row in rows[:-1]:
        cells = []
        for name in systems:
            low, high = (100 * value for value in row[f"wer_{name}_interval"])
            cells.append(f"{100 * row[f'wer_{name}']:.2f} ({low:.1f} … {high:.1f})")
        lines.append(f"| {row['condition']} | {row['words']} | " + " | ".join(cells) + " |")
    return [*lines, "", machine(python())]


if __name__ == "__main__":
    main()
