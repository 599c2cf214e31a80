"""CMU Sphinx on the features, lists, dictionary and n-grams of finished runs of an4, an4-all-labels or fsdd-rooms.

python benchmarks/sphinx.py runs/an4-? [--sets labelled] [--work FOLDER] [--write]
python benchmarks/sphinx.py runs/fsdd-rooms-* --sets labelled --sets labelled unlabelled

Needs sphinxtrain, pocketsphinx and, for fsdd-rooms, sphinxbase-utils (Debian's packages of these names). Each run's
labelled set, or each --sets, trains triphones by the toolkit's own scripts and defaults: 200 senones, cepstra with
deltas, their mean removed by utterance. The number of Gaussians and the language weight are the best of GAUSSIANS and
WEIGHTS on the run's tuning speakers; without these they are the toolkit's defaults. The table pools the runs and has
the systems that they scored beside it. Runs of one recipe with several seeds have the same utterances: pool each seed.
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

from page import machine, publish, python
from sphinx_data import Data, Texts, prepared

from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import Edits
from megahour.score.references import Reference
from megahour.score.table import Scored
from megahour.score.wer import Bootstrap, compare, word_edits

TOOLKIT, PROGRAMS = Path("/usr/lib/x86_64-linux-gnu/sphinxtrain"), Path("/usr/lib/sphinxtrain")
STEPS = ("05.vector_quantize/slave.VQ.pl", "20.ci_hmm/slave_convg.pl", "30.cd_hmm_untied/slave_convg.pl")
STEPS += ("40.buildtrees/slave.treebuilder.pl", "45.prunetree/slave.state-tying.pl", "50.cd_hmm_tied/slave_convg.pl")
SENONES, GAUSSIANS, WEIGHTS, DEFAULT = 200, (2, 4, 8), (4, 6, 8, 10, 13), (8, 10)
DECODER = {"beam": "1e-80", "wbeam": "1e-60", "pbeam": "1e-80", "wip": "0.2", "cepext": ".mfc"}
DECODER |= {"feat": "1s_c_d_dd", "cmn": "batch", "agc": "none"}
FEWEST = 3  # times that a phone must occur in training: the toolkit stops at phones that it cannot learn
SCORES = {"score": "student", "score-conditions": "student", "score-oracle": "oracle"}  # and what their students are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sets", nargs="+", action="append", help="sets to train on; may be repeated")
    parser.add_argument("--work", type=Path, help="folder for models and logs; otherwise a temporary one")
    parser.add_argument("--write", action="store_true", help="keep the table as sphinx.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        references: list[Reference] = []
        systems: dict[str, Texts] = {}
        trained = []
        for run in arguments.runs:
            folder = (work / run.name).absolute()
            data = prepared(run, folder / "feat")
            keys = [key for step in SCORES if (run / step).exists() for key in scored(run / step, references, systems)]
            for sets in arguments.sets or [["labelled"]]:
                name = f"sphinx, {' and '.join(sets)}"
                toolkit = Toolkit(run, folder / "-".join(sets), data)
                seconds = toolkit.train(sets)
                setting = toolkit.tune()
                own = f"{100 * toolkit.wer(toolkit.texts(sets), *setting):.1f}"
                trained.append([run.name, " and ".join(sets), *map(str, setting), f"{seconds:.0f}", own])
                print(*trained[-1], file=sys.stderr)
                systems.setdefault(name, {}).update(toolkit.decode(keys, *setting, "test"))
    scores = Scored(references, systems)
    lines = page(scores.table(draws=1000, seed=0), list(systems), trained)
    publish(__file__, [*lines, *beside(scores), "", machine(python())], write=arguments.write)


class Toolkit:
    """Sphinx's folder for one run: files of its own kinds, models and logs. The features lie beside it."""

    def __init__(self, run: Path, folder: Path, data: Data) -> None:
        self.run, self.folder, self.data, self.features = run, folder, data, folder.parent / "feat"
        for part in ("etc", "logdir", "bwaccumdir", "model_parameters", "model_architecture", "trees"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def _words(self, training: Texts) -> Texts:
        """Write the run's n-grams, and its dictionary without phones that are too rare in `training`; the utterances
        that have none of these."""
        entries = self.data.words
        counts = Counter(phone for text in training.values() for word in text.split() for phone in entries[word])
        heard = {phone for phone, count in counts.items() if count >= FEWEST}
        kept = {word: phones for word, phones in entries.items() if heard.issuperset(phones)}
        self.write("an4.dic", (f"{word} {' '.join(phones)}" for word, phones in kept.items()))
        self.write("an4.phone", sorted({"SIL"} | heard))
        self.write("an4.filler", ["<s> SIL", "</s> SIL", "<sil> SIL"])
        (self.folder / "etc/an4.lm").write_bytes((self.run / "lm/shards/00000.arpa").read_bytes())
        return {key: text for key, text in training.items() if all(word in kept for word in text.split())}

    def texts(self, sets: Iterable[str]) -> Texts:
        return {key: text for name in sets for key, text in self.data.sets[name].items()}

    def train(self, sets: Sequence[str]) -> float:
        """Train on `sets`; CPU-seconds."""
        chosen = self._words(self.texts(sets))
        self.write("an4_train.fileids", map(str, chosen))
        self.write("an4_train.transcription", (f"<s> {text} </s> ({key})" for key, text in chosen.items()))
        configuration = (TOOLKIT / "etc/sphinx_train.cfg").read_text("utf-8")
        for name, value in {
            "___DB_NAME___": "an4",
            "___BASE_DIR___": str(self.folder),
            "___SPHINXTRAIN_DIR___": str(TOOLKIT),
            "___SPHINXTRAIN_BIN_DIR___": str(PROGRAMS),
        }.items():
            configuration = configuration.replace(name, value)
        for name, value in {
            **self.data.settings,
            "N_TIED_STATES": str(SENONES),
            "FEATFILES_DIR": f'"{self.features}"',
        }.items():
            configuration = re.sub(rf"(?m)^(\$CFG_{name}) = [^;]+", rf"\1 = {value}", configuration)
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
        speakers = self.data.sets.get("tune", {})
        return min(product(GAUSSIANS, WEIGHTS), key=lambda own: self.wer(speakers, *own)) if speakers else DEFAULT

    def wer(self, texts: Texts, gaussians: int, weight: int) -> float:
        """Of the sets' utterances with these texts."""
        decoded = self.decode(texts, gaussians, weight, "own")
        edits = sum((word_edits(text, decoded.get(key, "")) for key, text in texts.items()), Edits())
        return edits.rate

    def decode(self, keys: Iterable[int], gaussians: int, weight: int, name: str) -> Texts:
        """The words of the utterances `keys`."""
        self.write(f"{name}.fileids", map(str, keys))
        texts = self.folder / f"{name}.hyp"
        files = {
            "hmm": self._model(gaussians),
            "lm": "etc/an4.lm",
            "dict": "etc/an4.dic",
            "fdict": "etc/an4.filler",
            "cepdir": self.features,
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
    """Add a score's utterances that are new, and the texts of its systems; the new utterances' keys."""
    table = Artifact(score).read_table(0)
    names = [name.removeprefix("errors_") for name in table.column_names if name.startswith("errors_")]
    rows, known = table.to_pylist(), {reference.key for reference in references}
    new = [Reference(r["key"], r["reference"], r["condition"], r["speaker"]) for r in rows if r["key"] not in known]
    references += new
    for name in names:
        system = SCORES[score.name] if name == "student" else name
        systems.setdefault(system, {}).update({row["key"]: row[name] for row in rows})
    return [reference.key for reference in new]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def page(rows: list[dict[str, Any]], systems: list[str], trained: list[list[str]]) -> list[str]:
    lines = ["# Sphinx beside the recipe's systems", "", "`python benchmarks/sphinx.py RUNS`", ""]
    lines += [f"sphinxtrain and pocketsphinx, {SENONES} senones. The last column is of the utterances of training.", ""]
    lines += ["| run | trained on | Gaussians | language weight | CPU-seconds of training | their WER % |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: |", *(f"| {' | '.join(row)} |" for row in trained), ""]
    lines += ["| condition | words | " + " | ".join(f"{name}: WER %" for name in systems) + " |"]
    lines += ["| --- | ---: |" + " --- |" * len(systems)]
    mixed = any("simulated" in row["condition"] for row in rows)  # nothing sums recorded and simulated conditions
    for row in rows[:-1] if mixed else rows:
        cells = []
        for name in systems:
            low, high = (100 * value for value in row[f"wer_{name}_interval"])
            cells.append(f"{100 * row[f'wer_{name}']:.2f} ({low:.1f} … {high:.1f})")
        lines.append(f"| {row['condition']} | {row['words']} | " + " | ".join(cells) + " |")
    return lines


def beside(scores: Scored) -> list[str]:
    """Lines on how many percent fewer words Sphinx has wrong than each other system, over all recorded conditions."""
    chosen = [i for i, reference in enumerate(scores.references) if "simulated" not in reference.condition]
    speakers = [scores.references[i].speaker for i in chosen]
    bootstrap = Bootstrap(len(chosen), speakers if len(set(speakers)) > 1 else None, draws=1000, seed=0)
    edits = {name: [every[i] for i in chosen] for name, every in scores.words.items()}
    lines = ["", "Words wrong of Sphinx, % fewer than another system's, over all recorded conditions:", ""]
    for sphinx, other in product(edits, edits):
        if sphinx.startswith("sphinx") and not other.startswith("sphinx"):
            found = compare(edits[other], edits[sphinx], bootstrap)
            low, high = (100 * value for value in found.interval)
            lines.append(f"- {sphinx}, beside {other}: {100 * found.werr:.1f} ({low:.1f} … {high:.1f})")
    return lines


if __name__ == "__main__":
    main()
