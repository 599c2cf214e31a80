"""Each folder of the package can be imported with only its own extra, and a missing package gives a one-line error."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import numpy as np
import pytest
from exported import model
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from statements import below
from tones import RATE_HZ, sentences, speak, write_recordings

from megahour.core.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "megahour"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

FOLDERS = {
    "": "cli core engine lattices lm metrics recipes runner score serve",
    "audio": "align corpus cut features report select",
    "generate": "corpus",
    "train": "batches clock foreign learn losses models monitor parallel sync teach train units",
    "decode": "decode",
    "transcribe": "listen transcribe",
    "export": "export",
    "tts": "tts",
}
"""Folders of the package by the extra that they are imported with; the small core is enough for those of ""."""
BROUGHT = {"flashlight"}
"""Packages of decoders that call us, and which the caller therefore has."""
STANDARD = frozenset(sys.stdlib_module_names) | {"megahour"}
WITHIN = {
    **{"": None, "audio": "", "generate": "audio", "train": "", "decode": ""},
    **{"transcribe": "train", "export": "transcribe", "tts": "transcribe"},
}
"""Each extra, and one that brings a part of the same: the process that has imported its folders forks the other's."""
WITHOUT = ("align", "train", "decode")
IMPORT_ALL = """
import importlib, json, os, sys, traceback
import sitecustomize
from pathlib import Path

def imported(name):
    sitecustomize.HIDDEN, modules = frozenset(given[name]["hidden"]), given[name]["modules"]
    error = ""
    try:
        for module in modules:
            importlib.import_module(module)
    except BaseException:
        error = traceback.format_exc()
    Path(name).write_text(error)
    for inner in given:
        if given[inner]["within"] == name:
            process = os.fork()
            if not process:
                imported(inner)
                os._exit(0)
            os.waitpid(process, 0)

given = json.loads(Path("given").read_text())
imported("core")
"""
"""Writes the error of each import, or nothing, to a file of the working folder."""


packages_distributions = cache(metadata.packages_distributions)  # it reads the books of all that is installed


@cache
def distributions(extra: str) -> frozenset[str]:
    """What `pip install megahour[extra]` brings with it, by canonical name."""
    found: set[str] = set()
    declared = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    waiting = [Requirement(text) for text in declared]
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name == "megahour":
            waiting += [Requirement(text) for own in each.extras for text in PROJECT["optional-dependencies"][own]]
        elif name not in found:
            found.add(name)
            waiting += needed_by(name, each.extras)
    return frozenset(found)


def needed_by(name: str, extras: set[str]) -> list[Requirement]:
    try:
        texts = requires(name) or []
    except PackageNotFoundError:  # of another platform
        return []
    found = [Requirement(text) for text in texts]
    return [each for each in found if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras | {""})]


@cache
def modules_of(extra: str) -> frozenset[str]:
    """Top-level modules that can be imported when only this extra is installed."""
    installed = distributions(extra)
    owners = packages_distributions().items()
    return frozenset(module for module, names in owners if installed & {canonicalize_name(name) for name in names})


def hidden_from(extra: str) -> list[str]:
    return sorted(packages_distributions().keys() - modules_of(extra) - {"megahour"})


def run(code: list[str], extra: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a Python process with only the core and `extra` installed."""
    path = os.pathsep.join([str(ROOT / "tests" / "without_packages"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HIDDEN": " ".join(hidden_from(extra))}
    command = [sys.executable, *code]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )


def names_of(folder: str) -> Iterator[str]:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def third_party(path: Path) -> set[str]:
    """Top-level modules that a file imports anywhere, those only for types left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += below(node)
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - STANDARD


def test_every_folder_has_its_extra() -> None:
    """A new folder must be assigned to an extra."""
    listed = {folder for folders in FOLDERS.values() for folder in folders.split()}
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} <= listed


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the errors of imports: of each extra's folders with it alone, and of some `WITHOUT` theirs."""
    folder, given = tmp_path_factory.mktemp("imports"), {}
    for extra, within in WITHIN.items():
        assert within is None or modules_of(within) <= modules_of(extra), "it would find what is not installed"
        modules = [name for part in FOLDERS[extra].split() for name in names_of(part)]
        outer = within if within is None else within or "core"
        given[extra or "core"] = {"within": outer, "hidden": hidden_from(extra), "modules": modules}
    for part in WITHOUT:
        given[f"without-{part}"] = {"within": "core", "hidden": hidden_from(""), "modules": [*names_of(part)]}
    (folder / "given").write_text(json.dumps(given))
    done = run(["-c", IMPORT_ALL], "", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("extra", FOLDERS, ids=lambda extra: extra or "core")
def test_a_folder_is_imported_with_its_extra_alone(extra: str, imports: Path) -> None:
    assert (imports / (extra or "core")).read_text() == ""


@pytest.mark.parametrize("folder", WITHOUT)
def test_without_its_extra_a_folder_is_not_imported(folder: str, imports: Path) -> None:
    """The check above really hides the other packages."""
    assert re.search(r"ModuleNotFoundError: No module named '\w+'", (imports / f"without-{folder}").read_text())


def test_every_optional_package_has_an_extra_that_installs_it() -> None:
    core = modules_of("")
    used = {module for path in PACKAGE.rglob("*.py") for module in third_party(path)}
    assert used - core - BROUGHT == used & EXTRAS.keys(), "core.extras.EXTRAS and the imports differ"
    for module, extra in EXTRAS.items():
        if module in ("kenlm", "librosa", "speechmos") and module not in packages_distributions():
            continue  # one does not compile on every Python, the other brings much
        assert module in modules_of(extra), f"megahour[{extra}] does not install {module}"


def test_all_leaves_out_only_what_is_large_or_compiled() -> None:
    extras = PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    (brought,) = (Requirement(text) for text in PROJECT["optional-dependencies"]["all"])
    assert extras - brought.extras == {"all", "spark", "ray", "kenlm", "tts", "mos", "tokenizers", "huggingface"}


def command(*words: str, extra: str = "") -> str:
    """The error that a command ends with."""
    done = run(["-m", "megahour", *words], extra)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.partition("error: ")[2]


def test_align_without_torch_names_the_extra_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    spoken = sentences(2, rng)
    samples, words, _ = speak(spoken, rng)
    write_recordings(tmp_path, [("a", samples, spoken, words)])
    model(tmp_path / "aligner", "tdnn", rate_hz=RATE_HZ)
    given = ["--recordings", f"{tmp_path}/recordings", "--aligner", f"{tmp_path}/aligner", "--out", f"{tmp_path}/out"]
    assert re.fullmatch(
        r'.*\w+ is not installed: pip install "megahour\[train\]"\n', command("align", *given, extra="audio")
    )


def test_a_worker_without_a_package_names_the_extra_in_one_line(tmp_path: Path) -> None:
    printed = command("synthesise", "--hours", "0.01", "--shards", "1", "--out", f"{tmp_path}/raw", extra="audio")
    assert printed == 'espeakng_loader is not installed: pip install "megahour[generate]"\n'


@pytest.mark.parametrize("words", ["transcribe {0}/a.wav --model {0}", "listen --model {0} --port 0"])
def test_all_that_a_command_lacks_is_named_at_once(words: str, tmp_path: Path) -> None:
    """Imports name one package after the other: four installations until the first word."""
    (tmp_path / "a.wav").touch()
    said = command(*words.format(tmp_path).split())
    assert all(name in said for name in ("av", "scipy", "soundfile", "soxr", "safetensors", "sentencepiece", "torch"))
    assert said.endswith(' are not installed: pip install "megahour[transcribe]"\n')
    said = command(*words.format(tmp_path).split(), extra="audio")
    assert said == 'safetensors, sentencepiece, torch are not installed: pip install "megahour[train]"\n'


def test_all_that_say_lacks_is_named_at_once(tmp_path: Path) -> None:
    said = command("say", "Hello.", "--voice", str(tmp_path))
    assert all(name in said for name in ("soundfile", "num2words", "espeakng_loader", "torch", "safetensors"))
    assert said.endswith(' are not installed: pip install "megahour[train,generate]"\n')


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("lm train s3://bucket/text --out {0}/lm.arpa", 'pip install "megahour[s3]"'),
        ("lm train https://localhost/text --out {0}/lm.arpa", 'pip install "megahour[http]"'),
        ("import-aligner --model {0}/m.onnx --tokens {0}/tokens.txt --out {0}/out", 'pip install "megahour[onnx]"'),
    ],
)
def test_a_missing_package_is_named(words: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    (tmp_path / "tokens.txt").write_text("a\nb\n<blank>\n")
    assert remedy in command(*words.format(tmp_path).split())


LM_BYTES = 600e6
"""What `pip install megahour[lm]` may take on a disk, nine tenths of it numba's compiler, NumPy and Arrow."""
GIVEN = """
import sys
from megahour.cli.main import app
for words in sys.argv[1:]:
    app(words.split(), standalone_mode=False)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_language_models_bring_numbers_tables_and_a_command_line_alone() -> None:
    brought = distributions("lm")
    assert {"numpy", "numba", "pyarrow", "click"} <= brought
    here = [each for each in metadata.distributions() if canonicalize_name(each.name) in brought]
    # A set: other tests may have put the folder of packages onto the path a second time.
    files = {Path(str(file.locate())).resolve() for each in here for file in each.files or ()}
    assert sum(file.stat().st_size for file in files if file.is_file()) < LM_BYTES


def test_language_model_commands_load_nothing_of_speech(tmp_path: Path) -> None:
    """Not even where it is installed: it would be most of the start of a small command."""
    text, model = ROOT / "tests" / "lm" / "small.txt", tmp_path / "a.arpa"
    commands = [
        f"lmplz -o 2 --text {text} --arpa {model}",
        f"lm convert {model} {tmp_path}/a.mlm",
        f"lm score {model} {text}",
    ]
    done = subprocess.run(
        [sys.executable, "-c", GIVEN, *commands], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "numba" in loaded
    assert not loaded & EXTRAS.keys() - {"scipy"}, "numba imports SciPy where it is installed"


def test_the_core_trains_and_asks_a_language_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three\n" * 20 + "two three four\n" * 20)
    commands = [
        *("--help", "align --help", f"lm train {text} --order 2 --out {tmp_path}/lm.mlm"),
        f"lm score {tmp_path}/lm.mlm {text}",
    ]
    done = run(["-c", GIVEN, *commands], "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 2
