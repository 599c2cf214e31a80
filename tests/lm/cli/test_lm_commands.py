"""`megahour lm …` as users type it: outputs are complete or absent, and mistakes are named before any work."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import hears_ctrl_c
from lm_command import megahour
from models import SMALL, entries, estimate_text

from megahour.cli.main import app
from megahour.clock.language_models import measured_run
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import read_arpa
from megahour.lm.cli.commands import COMMANDS
from megahour.lm.params import parse_bytes
from megahour.lm.query.convert import read_model
from megahour.lm.query.mapped import open_mapped
from megahour.lm.query.mapped_import import to_arrays

HERE = Path(__file__).parents[1]
EXPECTED = HERE / "lmplz"


LIMITS: list[list[object]] = [["memory"], ["limit", "--memory", "1GB"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small.txt` trained to three forms."""
    folder = tmp_path_factory.mktemp("lm")
    for name in ("a.arpa", "a.arpa.gz", "a.mlm"):
        assert megahour("train", HERE / "small.txt", "--out", folder / name).exit_code == 0
    return folder


def test_help_lists_all_commands_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from megahour.cli.main import app;"
        "print(CliRunner().invoke(app, ['lm', '--help']).output);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'numba', 'pyarrow', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_there_under_its_name(name: str) -> None:
    assert megahour(name, "--help").exit_code == 0


def test_an_unknown_command_gets_the_nearest_name() -> None:
    result = megahour("trian")
    assert result.exit_code == 2
    assert '"train"' in result.output


def test_training_gives_one_model_in_every_form(folder: Path) -> None:
    text = entries(read_arpa(folder / "a.arpa"))
    assert text == entries(estimate_text(SMALL).model)
    assert gzip.decompress((folder / "a.arpa.gz").read_bytes()) == (folder / "a.arpa").read_bytes()
    mapped = entries(to_arrays(open_mapped(folder / "a.mlm")))
    assert mapped.keys() == text.keys()
    assert all(mapped[gram] == pytest.approx(text[gram], abs=1e-6) for gram in text)
    assert sorted(path.name for path in folder.iterdir()) == ["a.arpa", "a.arpa.gz", "a.mlm"]


@pytest.mark.parametrize("options", [[], ["--memory", "300MB"]])
def test_text_comes_from_standard_input_too(options: list[str], folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megahour", "lm", "train", "-", "--out", tmp_path / "piped.arpa", *options]
    packed = gzip.compress((HERE / "small.txt").read_bytes())
    subprocess.run(command, input=packed, check=True, capture_output=True)
    assert (tmp_path / "piped.arpa").read_bytes() == (folder / "a.arpa").read_bytes()


def test_training_says_sizes_discounts_and_fallbacks(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\na b\n")
    result = megahour("train", tmp_path / "text.txt", "--out", tmp_path / "a.mlm", "--order", 2)
    assert "4 words, 2 types" in result.output
    assert "fallback: no 2-gram has an adjusted count of 1" in result.output.replace("\n", " ")


def test_quiet_leaves_the_last_line_and_the_file_has_the_phases(tmp_path: Path) -> None:
    out, log = tmp_path / "a.arpa", tmp_path / "log"
    talkative = megahour("train", HERE / "small.txt", "--out", out)
    assert talkative.stdout.splitlines()[-1].endswith(f"  megahour lm score {out} TEXT")
    options = ("--quiet", "--log-file", log, "--log-format", "json")
    for command in (("train", HERE / "small.txt", "--out", out), ("convert", out, tmp_path / "a.mlm")):
        quiet = megahour(*command, *options)
        (line,) = quiet.stdout.splitlines()
        assert " n-grams, " in line
        assert quiet.stderr == ""
    trained, made, converted, _ = map(json.loads, log.read_text().splitlines())
    assert (trained["event"], made["event"], converted["event"]) == ("phases", "finished", "phases")
    assert trained["phases"]["count"] >= 0
    assert trained["cpu_s"].keys() == trained["phases"].keys()
    assert (made["path"], made["bytes"]) == (str(out), out.stat().st_size)


def test_within_a_memory_limit_the_bytes_are_the_same(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.arpa"
    assert megahour("train", HERE / "small.txt", "--out", out, "--memory", "1GB", "--threads", 1).exit_code == 0
    assert out.read_bytes() == (folder / "a.arpa").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["a.arpa"]


def test_pruned_counts_are_reported_alike_in_memory_within_a_limit_and_by_info(tmp_path: Path) -> None:
    """Contexts with a wildcard entry, and what these entries hold."""
    cut = [HERE / "small.txt", "--order", 3, "--prune", "0,0,1", "--threads", 1]
    told = [megahour("train", *cut, "--out", tmp_path / f"{name}.arpa", *more).output for name, *more in LIMITS]
    told += [megahour("train", *cut, "--out", tmp_path / "a.mlm").output, megahour("info", tmp_path / "a.mlm").output]
    rows = [line.split() for line in told[0].splitlines() if line.startswith("│")]
    assert "cut off" in told[0]
    assert int(rows[2][11].replace(",", "")) > 0
    assert all([line.split() for line in each.splitlines() if line.startswith("│")] == rows for each in told)


@pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz", ".arpa.xz", ".arpa.zst", ".mlm"])
@pytest.mark.parametrize("source", ["a.arpa.gz", "a.mlm"])
def test_conversion_keeps_every_number(source: str, suffix: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / f"b{suffix}"
    assert megahour("convert", folder / source, out).exit_code == 0
    before, after = entries(read_model(folder / source)), entries(read_model(out))
    assert after.keys() == before.keys()
    assert all(after[gram] == pytest.approx(before[gram], abs=1e-6) for gram in before)


@pytest.mark.parametrize("name", ["a.arpa", "a.arpa.gz", "a.mlm"])
def test_perplexities_are_those_of_kenlms_query(name: str, folder: Path, tmp_path: Path) -> None:
    """Expected: `query -v summary` of kpu/kenlm."""
    (tmp_path / "text.txt").write_text("the captain saw the old house\n\nzzz boat\nthe the the\n")
    lines = megahour("score", folder / name, tmp_path / "text.txt").output.splitlines()
    values = dict(line.split("\t") for line in lines)
    assert float(values["Perplexity including OOVs:"]) == pytest.approx(18.084499269576124, rel=1e-6)
    assert float(values["Perplexity excluding OOVs:"]) == pytest.approx(14.799419073053697, rel=1e-6)
    assert (values["OOVs:"], values["Tokens:"]) == ("1", "15")


def test_scores_by_sentence_and_by_word(folder: Path) -> None:
    runner = CliRunner()
    options = ["lm", "score", str(folder / "a.mlm")]
    by_sentence = runner.invoke(app, [*options, "--sentences"], input="zzz  boat\n").output.splitlines()[0]
    by_word = runner.invoke(app, [*options, "--words"], input="zzz  boat\n").output.splitlines()[0]
    assert by_sentence.split("\t")[1:] == ["2", "1", "zzz  boat"]
    words = [field.split(" ") for field in by_word.split("\t")[:-1]]
    assert [word.split("=")[0] for word, _, _ in words] == ["zzz", "boat", "</s>"]
    assert [length for _, length, _ in words] == ["1", "1", "2"]
    assert sum(float(p) for _, _, p in words) == pytest.approx(float(by_sentence.split("\t")[0]), abs=1e-4)


def test_a_text_without_sentences_has_no_perplexity(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(MegahourError, match=r"text\.txt: no sentences to score.*\n.*an empty line is a sentence"):
        megahour("score", folder / "a.mlm", tmp_path / "text.txt")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_texts_are_scored_from_pipes_and_packed(folder: Path, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = b"zzz  boat\nthe boat\n"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(pack(text),))
    writer.start()
    of_pipe = megahour("score", folder / "a.mlm", tmp_path / "pipe").output
    writer.join()
    (tmp_path / "text").write_bytes(text)
    of_file = megahour("score", folder / "a.mlm", tmp_path / "text").output
    of_input = CliRunner().invoke(app, ["lm", "score", str(folder / "a.mlm")], input=pack(text)).output
    assert of_pipe == of_input == of_file


def test_what_is_no_text_is_not_scored(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes("a boat".encode("utf-16"))
    with pytest.raises(MegahourError, match=r"text\.txt: UTF-16.*not text\n.*iconv"):
        megahour("score", folder / "a.mlm", tmp_path / "text.txt")


def test_a_pipe_gets_the_model_and_stays(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "out.arpa")
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert f"{pipe}: 243 n-grams\n" in megahour("convert", folder / "a.mlm", pipe).output
        piped = reader.communicate()[0]
    megahour("convert", folder / "a.mlm", tmp_path / "file.arpa")
    assert piped == (tmp_path / "file.arpa").read_bytes()
    assert pipe.is_fifo()


def test_info_prints_sizes_and_discounts(folder: Path) -> None:
    output = megahour("info", folder / "a.mlm", "--verify").output
    assert "mapped, 243 n-grams" in output
    assert "0.3077" in output
    assert "all checksums are correct" in output
    assert "ARPA, 243 n-grams" in megahour("info", folder / "a.arpa.gz").output


def test_rescoring_sorts_by_the_sum(folder: Path, tmp_path: Path) -> None:
    hypotheses = [{"text": "boat the old", "score": -1.0}, {"text": "the old boat", "score": -1.5}]
    (tmp_path / "n.jsonl").write_text(json.dumps({"id": "u1", "nbest": hypotheses, "speaker": "s"}) + "\n")
    found = json.loads(megahour("rescore", folder / "a.mlm", tmp_path / "n.jsonl").output)
    assert [item["text"] for item in found["nbest"]] == ["the old boat", "boat the old"]
    assert found["speaker"] == "s"
    odd = {"text": "old\u00a0boat \n the", "score": 0}
    (tmp_path / "odd.jsonl").write_text(json.dumps({"id": "u1", "nbest": [odd]}))
    odd = json.loads(megahour("rescore", folder / "a.mlm", tmp_path / "odd.jsonl").output)["nbest"][0]
    assert (odd["words"], odd["oov"]) == (2, 1), "as in the training text"
    for item in found["nbest"]:
        assert item["total"] == pytest.approx(item["score"] + item["lm"], abs=1e-5)
    weak = json.loads(megahour("rescore", folder / "a.mlm", tmp_path / "n.jsonl", "--weight", 0).output)
    assert [item["text"] for item in weak["nbest"]] == ["boat the old", "the old boat"]


def test_a_word_penalty_prefers_fewer_words_and_best_writes_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("u-1-1 the old boat\nu-1-2 the\nu-2-1\n")
    (tmp_path / "costs").write_text("u-1-1 3.0\nu-1-2 4.0\nu-2-1 1.0\n")
    kaldi = ["rescore", folder / "a.mlm", tmp_path / "words", "--form", "kaldi", "--costs", tmp_path / "costs"]
    kaldi += ["--best", "--weight", 0]
    assert megahour(*kaldi).output == "u-1 the old boat\nu-2 \n"
    out = tmp_path / "best"
    assert megahour(*kaldi, "--penalty", -1, "--out", out).exit_code == 0
    assert out.read_text() == "u-1 the\nu-2 \n"
    for option in ("--weight", "--penalty"):
        assert "nan is not a finite number" in megahour(*kaldi, option, "nan").output
    with (tmp_path / "costs").open("a") as file:
        file.write("u-3-1 2.0\n")
    with pytest.raises(MegahourError, match=r"costs:3: a cost without a text: 'u-3-1 2\.0'"):
        megahour(*kaldi)


@pytest.mark.parametrize(
    ("name", "text", "form", "message"),
    [
        ("n.jsonl", '{"id": "a", "nbest": [{"score": 1}]}\n', "jsonl", "n.jsonl:1: no key 'text'"),
        ("n.jsonl", '{"id": "a", "nbest": [{"text": "b", "am": 1}]}\n', "jsonl", "n.jsonl:1: no key 'score'"),
        (
            "n.jsonl",
            '{"id": "a", "nbest": [{"text": "\\ud800", "score": 1}]}\n',
            "jsonl",
            "n.jsonl:1: UnicodeEncodeError",
        ),
        ("n.jsonl", '{"id": "a", "nbest": []}\nnot json\n', "jsonl", "n.jsonl:2: JSONDecodeError"),
        ("n.jsonl", '{"id": "a", "nbest": [{"text": "b", "score": NaN}]}\n', "jsonl", "not a finite number"),
        ("words", "utterance the boat\n", "kaldi", "'utterance' is not UTTERANCE-N"),
    ],
)
def test_wrong_nbest_lists_are_refused_with_the_line(
    name: str, text: str, form: str, message: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    with pytest.raises(MegahourError, match=message):
        megahour("rescore", folder / "a.mlm", tmp_path / name, "--form", form, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "gone/*.txt", "--out", "OUT/a.arpa"], "no file matches 'gone/"),
        (["train", HERE / "small.txt", "--out", "OUT/gone/a.arpa"], "no such directory"),
        (["train", HERE / "small.txt", "--out", "OUT/a.bin"], "has no suffix of a model"),
        (["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--prune", "1,2"], "must begin with 0"),
        (["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--prune", "x"], "valid integer"),
        (["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--prune", "0,0,0,1"], "is for orders 1 to 4"),
        (["cluster", HERE / "small.txt", "--out", "OUT/c", "--prune", "0,2,1"], "must begin with 0 and not decrease"),
        (["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--memory", "much"], "'much' is not a size"),
        (["train", HERE / "small.txt", "--out", "OUT/a.mlm", "--memory", "1GB"], "--memory writes ARPA files only"),
        (
            ["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--smoothing", "stupid", "--memory", "1GB"],
            "--smoothing stupid holds the text in memory",
        ),
        (
            ["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--limit-vocabulary", "w", "--memory", "1GB"],
            "--limit-vocabulary does not go with --memory",
        ),
        (["train", HERE / "small.txt", "--out", "OUT/a.mlm", "--smoothing", "good-turing"], "writes ARPA files only"),
        (["train", HERE / "small.txt", "--out", "OUT/a.arpa", "--scratch", "OUT/gone"], "no such directory"),
        (["score", "OUT/gone.arpa"], "no such file"),
        (["score", "OUT"], "a directory"),
        (["score", EXPECTED / "order3.arpa", "OUT/gone.txt"], "no such file"),
        (["score", EXPECTED / "order3.arpa", "OUT"], "a folder, not a file"),
        (["train", "OUT", "--out", "OUT/a.arpa"], r"a folder, not a file\nRemedy: name its files: .*/\*\.txt"),
        (["convert", EXPECTED / "order3.arpa", "OUT/a.trie"], "for KenLM's: megahour lm convert --to"),
    ],
)
def test_mistakes_are_named_before_any_work(arguments: list[object], message: str, tmp_path: Path) -> None:
    with pytest.raises(MegahourError, match=message):
        megahour(*(str(argument).replace("OUT", str(tmp_path)) for argument in arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [[], ["--memory", "1GB"]])
def test_a_text_without_words_is_named(memory: list[object], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(MegahourError, match=r"empty\.txt: the text has no words"):
        megahour("train", tmp_path / "empty.txt", "--out", tmp_path / "a.arpa", *memory)
    assert not (tmp_path / "a.arpa").exists()


def test_bounded_memory_takes_a_vocabulary_cut_by_count_and_shows_what_was_cut_off(tmp_path: Path) -> None:
    options = [HERE / "small.txt", "--order", "3", "--vocabulary", "40", "--min-count", "2", "--prune", "0,0,1"]
    assert megahour("train", *options, "--out", tmp_path / "held.arpa")
    said = megahour("train", *options, "--memory", "1GB", "--out", tmp_path / "bounded.arpa").output
    assert (tmp_path / "bounded.arpa").read_bytes() == (tmp_path / "held.arpa").read_bytes()
    assert "positions in memory, 1 shards in 1 round(s)" in said
    assert "*-entries" in said


@pytest.mark.parametrize("name", ["a.arpa", "a.mlm"])
def test_limiting_the_vocabulary_gives_lmplzs_n_grams(name: str, tmp_path: Path) -> None:
    """Expected: `lmplz -o 4 --limit_vocab_file limited.words.txt`."""
    options = ["--order", "4", "--limit-vocabulary", EXPECTED / "limited.words.txt", "--out", tmp_path / name]
    assert megahour("train", HERE / "small.txt", *options).exit_code == 0
    found, expected = entries(read_model(tmp_path / name)), entries(read_arpa(EXPECTED / "order4-limited.arpa"))
    assert found.keys() == expected.keys()
    assert all(found[gram] == pytest.approx(expected[gram], abs=1e-5) for gram in expected)


def test_a_model_on_a_store_is_named_by_its_address_and_one_here_by_its_path(tmp_path: Path) -> None:
    """The first was named without the store's scheme, as a file that is not there; the second by what no command reads
    as a path."""
    for out, named in (("memory://clustered", "memory://clustered"), (f"file://{tmp_path}/run", f"{tmp_path}/run")):
        said = megahour("cluster", HERE / "small.txt", "--workers", 1, "--out", out).output
        assert f"\n{named}/arpa/shards/00000.arpa: " in said


def test_the_cluster_command_makes_the_same_file_and_says_what_each_stage_took(tmp_path: Path) -> None:
    assert megahour("train", HERE / "small.txt", "--out", tmp_path / "held.arpa").exit_code == 0
    given = "cluster", HERE / "small.txt", "--workers", 1, "--shard-rows", 9, "--out", tmp_path / "run"
    said = megahour(*given).output
    assert "shards have up to 32,768 positions, not 9: fewer than" in said
    assert (tmp_path / "run/arpa/shards/00000.arpa").read_bytes() == (tmp_path / "held.arpa").read_bytes()
    assert "reserved CPU s" in said
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if any(path.iterdir())) == ["arpa"]
    steps = {step.name: step for step in measured_run(str(tmp_path / "run"))}
    assert {name: round(1e6 * step.hours) for name, step in steps.items()} == {
        "words": 201,
        "vocabulary": 32,
        "arpa": 243,
    }
    assert steps["words"].quantities["written_bytes"] > 4 * 201, "scratch files"
    assert steps["arpa"].quantities["written_bytes"] > (tmp_path / "held.arpa").stat().st_size
    assert all(steps[name].quantities["cpu_s"] > 0 for name in ("words", "arpa"))
    (tmp_path / "run/arpa/timings/counted.json").unlink()
    with pytest.raises(MegahourError, match="no timings of its parts: an interrupted run"):
        measured_run(str(tmp_path / "run"))
    assert "tally" in megahour(*given, "--stages").output
    assert (tmp_path / "run/arpa/shards/00000.arpa").read_bytes() == (tmp_path / "held.arpa").read_bytes()
    steps = {step.name: step for step in measured_run(str(tmp_path / "run"))}
    assert [*steps] == ["words", "vocabulary", "round1", "tally", "lines", "arpa"]
    assert [round(1e6 * steps[name].hours) for name in ("words", "vocabulary", "lines")] == [201, 32, 243]
    assert steps["arpa"].inputs[-1] == "lines"
    assert all(step.quantities["beside_cpu_s"] >= 0 for step in steps.values())
    assert min(step.quantities["peak_bytes"] for step in steps.values()) > 50e6
    with pytest.raises(MegahourError, match="the runs have the same size of words"):
        megahour("plan", "--words", 1e6, *["--from", tmp_path / "run"] * 2)


@pytest.mark.parametrize(("smoothing", "columns"), [("good-turing", "d(5)"), ("stupid", "n-grams")])
def test_other_smoothings_are_an_option(tmp_path: Path, smoothing: str, columns: str) -> None:
    said = megahour("train", HERE / "small.txt", "--smoothing", smoothing, "--out", tmp_path / "a.arpa").output
    assert columns in said
    assert "Perplexity" in megahour("score", tmp_path / "a.arpa", HERE / "small.txt").output


def test_text_beyond_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2**42)  # sparse
    with pytest.raises(MegahourError, match=r"4398\.0 GB of text needs up to .* GB are free\nRemedy: give --memory"):
        megahour("train", tmp_path / "large.txt", "--out", tmp_path / "a.arpa")
    assert [path.name for path in tmp_path.iterdir()] == ["large.txt"]


def test_text_that_turns_out_to_be_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a b\n" * 1_000_000))  # 4 kB, and 4 MB when it is unpacked
    monkeypatch.setattr("megahour.lm.train.BYTES_PER_WORD", 10**6)
    with pytest.raises(MegahourError, match=r"of text needs up to .* GB are free\nRemedy: give --memory"):
        megahour("train", tmp_path / "text.gz", "--out", tmp_path / "a.arpa")
    assert [path.name for path in tmp_path.iterdir()] == ["text.gz"]


@pytest.mark.parametrize(("text", "size"), [("4GB", 4 * 10**9), ("500mb", 5 * 10**8), ("1.5G", 3 * 2**29), ("7", 7)])
def test_sizes_are_written_as_people_do(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_a_damaged_model_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "cut.arpa").write_bytes((EXPECTED / "order3.arpa").read_bytes()[:3000].rpartition(b"\n")[0])
    with pytest.raises(MegahourError, match=r"cut\.arpa:\d+: .*ends early"):
        megahour("convert", tmp_path / "cut.arpa", tmp_path / "b.mlm")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.arpa"]


def test_of_two_trainings_to_one_file_one_is_refused(tmp_path: Path) -> None:
    """Both used to write to the same temporary name, and the model mixed both."""
    words = np.random.Generator(np.random.PCG64(1)).zipf(1.3, (100_000, 10)) % 50_000
    (tmp_path / "text").write_text("".join(" ".join(map(str, line)) + "\n" for line in words.tolist()))
    (tmp_path / "small").write_text("a b c\n" * 10)
    out, orders = tmp_path / "a.arpa", {"text": "7", "small": "3"}
    command = [sys.executable, "-m", "megahour", "lm", "train", "--out", str(out), "--order"]
    first = subprocess.Popen([*command, orders["text"], tmp_path / "text"], stdout=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".a.arpa.*.making")):
        assert first.poll() is None, "training was over before another could begin"
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)  # it takes as long as the second needs to see it
    second = [*command, orders["small"], str(tmp_path / "small")]
    refused = subprocess.run(second, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"a.arpa: another process writes here: process {first.pid} on" in refused.stderr
    assert not out.exists()
    first.kill()
    first.wait()
    done = subprocess.run(second, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_arpa(out).order == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arpa", "small", "text"], "of the killed one too"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_control_c_and_sigterm_leave_the_old_output_and_nothing_half(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    words = np.random.Generator(np.random.PCG64(1)).zipf(1.3, (200_000, 10)) % 50_000
    (tmp_path / "text").write_text("".join(" ".join(map(str, line)) + "\n" for line in words.tolist()))
    out = tmp_path / "a.arpa"
    out.write_text("the old model")
    command = [sys.executable, "-m", "megahour", "lm", "train", tmp_path / "text", "--out", out, "--order", "7"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c
    )
    while not list(tmp_path.glob(".a.arpa.*.making")):
        assert process.poll() is None, "training was over before it could be stopped"
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=240)
    assert process.returncode == code
    by = " by SIGTERM" if number == signal.SIGTERM else ""
    assert f"Stopped{by}. The output was not written; no partial file is left." in said
    assert out.read_text() == "the old model"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arpa", "text"]
