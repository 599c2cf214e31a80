"""Mistakes in a recipe are reported before anything runs: where, what, and the nearest valid name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_stages import RECIPE, TOY_STAGES, write_recipe

from megahour.cli import main as cli
from megahour.core.errors import ConfigError
from megahour.recipes import stage_table
from megahour.recipes.recipe import Recipe, load_recipe

# A change of the toy recipe (old text, new text), and what is said of it.
MISTAKES: dict[str, tuple[str, str, str]] = {
    # Keys that are given twice. YAML takes the last one and says nothing.
    "a parameter twice": (
        "shards: 3",
        "shards: 3\n    shards: 4",
        'duplicate key "shards", on lines 12 and',
    ),
    "a step twice": (
        "  numbers:\n",
        "  grouped: {{}}\n  numbers:\n",
        'duplicate key "grouped", on lines 7 and',
    ),
    "a section twice": ("seed: 10", "seed: 10\nsteps: {{}}", 'duplicate key "steps", on lines 4 and 7'),
    "a role twice": ("numbers: numbers", "numbers: numbers, numbers: a/b", 'duplicate key "numbers"'),
    "in a list": ("shards: 3", "weights: [{{a: 1, a: 2}}]", 'duplicate key "a", on lines 12 and 12'),
    "two merges": ("shards: 3", "<<: {{shards: 3}}\n    <<: {{rows: 2}}", "<<: [*one, *other]"),
    # Names.
    "unknown key": ("seed: 10", "sed: 10", 'unknown key "sed" – did you mean "seed"'),
    "unknown parameter": ("shards: 3", "shard: 3", 'unknown key "shard" – did you mean "shards"'),
    "unknown stage": ("toy-count", "toy-cuont", 'unknown stage "toy-cuont" – did you mean "toy-count"'),
    "unknown role": ("numbers: numbers", "number: numbers", 'has no input "number" – did you mean "numbers"'),
    "unknown step": ("numbers: numbers", "numbers: nmbers", 'unknown step "nmbers" – did you mean "numbers"'),
    "unknown variable": ("${{word}}", "${{wrod}}", 'no variable "wrod" – did you mean "word"'),
    "unknown variable with a hyphen": ("${{word}}", "${{my-word}}", 'no variable "my-word"'),
    "unknown engine key": ("workers: 1", "wrokers: 2", 'engine: unknown key "wrokers" – did you mean "workers"'),
    "unknown engine": (
        "workers: 1",
        "kind: sprak",
        "\"kind\" = 'sprak': it must be one of 'local', 'spark' or 'ray' – did you mean",
    ),
    "no role": ("    inputs: {{numbers: numbers}}\n", "", "step grouped: stage toy-parity needs the input numbers"),
    "a step called as a key": (
        "  numbers:\n",
        "  run: {{stage: toy-count}}\n  numbers:\n",
        '"run" is reserved: it is a key of recipes',
    ),
    "upper case": ("  numbers:\n", "  Numbers: {{stage: toy-count}}\n  numbers:\n", "use lower-case letters, digits"),
    "a name that no folder can have": (
        "  numbers:\n",
        f"  {'n' * 300}: {{{{stage: toy-count}}}}\n  numbers:\n",
        "has 300 characters, at most 200 fit",
    ),
    # Circles.
    "itself": ("numbers: numbers", "numbers: grouped", "steps depend on each other: grouped → grouped"),
    "three in a circle": (
        "inputs: {{numbers: numbers}}",
        "inputs: {{numbers: b}}\n  b: {{stage: toy-parity, inputs: {{numbers: c}}}}\n"
        "  c: {{stage: toy-parity, inputs: {{numbers: grouped}}}}",
        "grouped → c → b → grouped",
    ),
    # Text that is no YAML.
    "an open bracket": ("shards: 3", "shards: [3", "not valid YAML: while parsing a flow sequence"),
    "a tab": ("    shards: 3", "\tshards: 3", "indent with spaces, not with tabs"),
    "a variable in braces": ("{{numbers: numbers}}", "{{numbers: ${{word}}}}", 'put ${…} in quotes, "${…}"'),
    "a variable in brackets": ("shards: 3", "weights: [${{word}}]", "Remedy: within { } and [ ] put ${…} in quotes"),
    "no such anchor": ("shards: 3", "shards: *three", "toy.yaml:12: not valid YAML: found undefined alias 'three'"),
    "a list in itself": ("shards: 3", "weights: &w [*w]", "an alias contains itself"),
    "no such date": ("kind: ${{word}}", "kind: 2020-13-45", "month must be in 1..12"),
    "no such integer": ("kind: ${{word}}", "kind: !!int three", "a value cannot be read"),
    "a Python object": ("kind: ${{word}}", "kind: !!python/object:os.system {{}}", "could not determine a constructor"),
    "two documents": ("steps:", "---\nsteps:", "expected a single document"),
    "deep nesting": ("shards: 3", "weights: " + "[" * 3000 + "]" * 3000, "it nests too deeply"),
    # Wrong types.
    "vars is a list": ("vars: {{word: plain}}", "vars: [plain]", "`vars` is a list, not a mapping"),
    "an empty variable": ("{{word: plain}}", "{{word: }}", 'variable "word" is nothing, neither text nor a number'),
    "a list as variable": ("{{word: plain}}", "{{word: [a]}}", 'variable "word" is a list, neither text'),
    "steps is a list": ("steps:\n", "about: |\n", "no steps"),
    "no steps": ("steps:\n", "steps: []\nabout: |\n", "`steps` is a list, not a mapping"),
    "steps is empty text": ("steps:\n", "steps: ''\nabout: |\n", "`steps` is a text, not a mapping"),
    "a step is a list": ("  numbers:\n", "  other: [toy-count]\n  numbers:\n", "`other` is a list, not a mapping"),
    "a step called 3": (
        "  numbers:\n",
        "  3: {{stage: toy-count}}\n  numbers:\n",
        "YAML reads a key of `steps` as 3, not as text",
    ),
    "a key that is yes": ("seed: 10", "on: 10", "as True, not as text: put it in quotes"),
    "stage is a list": ("stage: toy-count", "stage: [toy-count]", "stage is a list, not a stage's name"),
    "stage is empty": ("stage: toy-count", "stage:", "stage is nothing, not a stage's name"),
    "inputs is a text": ("{{numbers: numbers}}", "numbers", "step grouped: `inputs` is a text, not a mapping"),
    "an empty input": (
        "{{numbers: numbers}}",
        "{{numbers: }}",
        "input numbers is nothing, not a path or a URL\nRemedy: name a step of this recipe, or the path or URL of",
    ),
    "an input is a list": ("{{numbers: numbers}}", "{{numbers: [numbers]}}", "input numbers is a list, not a path"),
    "engine is a list": ("{{workers: 1}}", "[]", "`engine` is a list, not a mapping"),
    "engine is a number": ("{{workers: 1}}", "2", "`engine` is a number, not a mapping"),
    "workers is a text": ("workers: 1", "workers: two", "\"workers\" = 'two': Input should be a valid integer"),
    "workers is yes": ("workers: 1", "workers: yes", '"workers" = True: yes or no is not a number'),
    "shards is yes": ("shards: 3", "shards: yes", '"shards" = True: yes or no is not a number'),
    "shards is a half": ("shards: 3", "shards: 2.5", '"shards" = 2.5: Input should be a valid integer'),
    "threads is a text": ("seed: 10", "threads: many", "threads = 'many' is not a whole number"),
    "threads is yes": ("seed: 10", "threads: yes", "threads = True is not a whole number"),
    "seed is a text": ("seed: 10", "seed: ten", "seed = 'ten' is not a whole number"),
    "about is a list": ("seed: 10", "about: [1]", "about is a list, not text"),
    "run is empty": ("run: {run}", "run:", "run is nothing, not a path or a URL"),
    "run is a list": ("run: {run}", "run: [a]", "run is a list, not a path or a URL"),
    "run is the root": ("run: {run}", "run: /", "run is '/', not a path"),
    "run has a zero byte": ("run: {run}", 'run: "a\\0b"', "not a path or a URL"),
}

# What a command line changes, and what is said of it.
OVERRIDES: dict[str, str] = {
    "nubmers.shards=1": 'unknown name "nubmers" – did you mean "numbers"',
    "steps.nubmers.shards=1": 'unknown name "nubmers" – did you mean "numbers"',
    "sed=3": 'unknown name "sed" – did you mean "seed"',
    "numbers.shrads=1": 'step numbers, stage toy-count: unknown key "shrads" – did you mean "shards"',
    "numbers.shards=x": "\"shards\" = 'x': Input should be a valid integer",
    "numbers.shards.first=1": '"numbers.shards" is a number, not a mapping with names',
    "numbers.weights=[1": "override numbers.weights:1: not valid YAML",
    "numbers.weights={a: 1, a: 2}": 'duplicate key "a"',
    "numbers.kind=*.wav": 'put text in "…"',
    "numbers.shards=": '"shards" = None: Input should be a valid integer',
    "numbers=3": "`numbers` is a number, not a mapping",
    "grouped.inputs.numbers=nmbers": 'unknown step "nmbers" – did you mean "numbers"',
    "grouped.inputs.nubmers=numbers": 'has no input "nubmers" – did you mean "numbers"',
    "grouped.stage=toy-cuont": 'unknown stage "toy-cuont" – did you mean "toy-count"',
    "engine.wrokers=2": 'unknown key "wrokers" – did you mean "workers"',
    "engine.workers=-1": '"workers" = -1: Input should be greater than or equal to 0',
    "engine=spark": "`engine` is a text, not a mapping",
    "vars.wrod=other": 'the recipe has no variable "wrod" – did you mean "word"',
    "seed.numbers=3": '"seed" is a number, not a mapping with names',
    "run=": "run is '', not a path or a URL",
    "shards": "is not key=value",
    "=3": "is not key=value",
    "numbers.=3": "is not key=value",
    "numbers..shards=3": "is not key=value",
}

# Files that are no recipe, and what is said of them.
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: (path.parent / "toys.yaml").touch(), 'no such recipe – did you mean "toys.yaml"'),
    "a folder": (lambda path: path.mkdir(), "it cannot be read: Is a directory"),
    "empty": (lambda path: path.write_text(""), "it is empty"),
    "comments only": (lambda path: path.write_text("# steps:\n"), "it is empty"),
    "a list": (lambda path: path.write_text("- steps\n"), "it holds a list"),
    "a text": (lambda path: path.write_text("steps\n"), "it holds a text"),
    "a number": (lambda path: path.write_text("3\n"), "it holds a number"),
    "Latin-1": (lambda path: path.write_bytes("about: Grüße".encode("latin-1")), "not UTF-8: byte 0xfc at 9"),
    "UTF-16": (lambda path: path.write_bytes("steps: {}".encode("utf-16")), "not UTF-8: byte 0xff at 0"),
    "binary": (lambda path: path.write_bytes(bytes(range(32)) * 9), "special characters are not allowed"),
}


@pytest.fixture(autouse=True)
def toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in TOY_STAGES.items():
        monkeypatch.setitem(stage_table.STAGES, name, entry)


def changed(folder: Path, old: str, new: str, text: str = RECIPE) -> Path:
    assert old in text
    return write_recipe(folder, text.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(changed(tmp_path, old, new))
    assert said in str(caught.value)
    assert str(tmp_path / "toy.yaml") in str(caught.value), "the place is named"


@pytest.mark.parametrize(("override", "said"), OVERRIDES.items(), ids=list(OVERRIDES))
def test_an_override_of_nothing_is_named(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(write_recipe(tmp_path), [override])
    assert said in str(caught.value)


@pytest.mark.parametrize(("make", "said"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    make(tmp_path / "toy.yaml")
    with pytest.raises(ConfigError) as caught:
        load_recipe(tmp_path / "toy.yaml")
    assert said in str(caught.value)


@pytest.mark.parametrize("command", ["run", "plan", "status", "verify"])
def test_every_command_refuses_before_anything_is_made(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(path: Path, *more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["megahour", command, str(path), *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1
        return capsys.readouterr().err

    assert "duplicate key" in said(changed(tmp_path, "shards: 3", "shards: 3\n    shards: 4"))
    assert "grouped → grouped" in said(changed(tmp_path, "numbers: numbers", "numbers: grouped"))
    recipe = write_recipe(tmp_path)
    assert 'did you mean "numbers"' in said(recipe, "nubmers.shards=1")
    assert "no such recipe" in said(tmp_path / "nowhere.yaml")
    if command == "run":
        assert 'no step "nubmers" – did you mean "numbers"' in said(recipe, "--until", "nubmers")
    assert not (tmp_path / "run").exists()


REAL = """
run: {run}
steps:
  raw: {{stage: synthesise, hours: 0.1}}
  recordings: {{stage: ingest, inputs: {{raw: raw}}}}
  utterances: {{stage: cut, inputs: {{recordings: recordings}}}}
  selection: {{stage: select, inputs: {{utterances: utterances}}, sets: [{{name: labelled}}]}}
  features: {{stage: features, inputs: {{selection: selection, utterances: utterances}}}}
  aligner: {{stage: train, criterion: ctc, inputs: {{features: features}}}}
  alignment: {{stage: align, inputs: {{recordings: recordings, aligner: aligner}}}}
  elsewhere: {{stage: import, format: kaldi, source: data, kind: recordings}}
"""

# An input of the recipe above that is changed, and what is said of it.
KINDS: dict[str, tuple[str, str, str]] = {
    "features for a model": (
        "aligner: aligner",
        "aligner: features",
        'input aligner takes model, the step "features" makes features',
    ),
    "recordings for utterances": (
        "utterances: utterances}}}}",
        "utterances: recordings}}}}",
        'input utterances takes utterances, the step "recordings" makes recordings',
    ),
    "raw for recordings": ("recordings: recordings}}", "recordings: raw}}", "name one of recordings, elsewhere"),
    "a selection for features": ("features: features", "features: selection", "name one of features"),
    "imported recordings for utterances": (
        "utterances: utterances}}}}",
        "utterances: elsewhere}}}}",
        'the step "elsewhere" makes recordings',
    ),
    "nothing here makes it": (
        "aligner: aligner",
        "aligner: aligner, posteriors: raw",
        "Remedy: alignment is made by align",  # the step that lacks it makes one, but cannot read its own
    ),
    "no maker in the recipe": (
        "raw: raw",
        "raw: selection",
        "name one of raw",
    ),
}


@pytest.mark.parametrize(("old", "new", "said"), KINDS.values(), ids=KINDS)
def test_an_input_of_a_wrong_kind_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(changed(tmp_path, old, new, REAL))
    assert said in str(caught.value)


def test_the_stage_that_makes_a_kind_is_named_where_no_step_does(tmp_path: Path) -> None:
    text = "run: {run}\nsteps:\n  text: {{stage: sentences}}\n  scored: {{stage: align, inputs: {{recordings: text, "
    with pytest.raises(ConfigError, match="recordings is made by ingest or import with kind=recordings"):
        load_recipe(write_recipe(tmp_path, text + "aligner: a/b}}}}\n"))
    with pytest.raises(ConfigError, match="needs the input aligner\nRemedy: model is made by train or import-aligner"):
        load_recipe(write_recipe(tmp_path, text + "}}}}\n"))


def test_recordings_from_an_import_are_recordings(tmp_path: Path) -> None:
    assert load_recipe(changed(tmp_path, "recordings: recordings", "recordings: elsewhere", REAL)).steps
    with pytest.raises(ConfigError, match='"elsewhere" makes utterances'):
        load_recipe(
            changed(tmp_path, "recordings: recordings", "recordings: elsewhere", REAL), ["elsewhere.kind=utterances"]
        )


ANCHORS = """
run: {run}
steps:
  first: &count {{stage: toy-count, shards: 2, weights: [1]}}
  second: {{<<: *count, shards: 3}}
  third: *count
  grouped: {{<<: [{{stage: toy-parity}}, {{modulus: 2}}], inputs: {{numbers: second}}}}
"""


def loaded(recipe: Recipe) -> dict[str, dict[str, object]]:
    return {step.name: step.params.identity() for step in recipe.steps}


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    steps = loaded(load_recipe(write_recipe(tmp_path, ANCHORS)))
    assert [steps[name]["shards"] for name in ("first", "second", "third")] == [2, 3, 2]
    assert steps["grouped"]["modulus"] == 2


def test_an_override_changes_the_step_that_it_names_and_no_alias_of_it(tmp_path: Path) -> None:
    """YAML makes an anchor and its aliases one object, so changing one used to change all."""
    steps = loaded(load_recipe(write_recipe(tmp_path, ANCHORS), ["first.shards=7", "first.weights=[2]"]))
    assert [steps[name]["shards"] for name in ("first", "second", "third")] == [7, 3, 2]
    assert [steps[name]["weights"] for name in ("first", "second", "third")] == [[2.0], [1.0], [1.0]]


def test_sections_that_the_recipe_leaves_out_can_be_overridden(tmp_path: Path) -> None:
    bare = write_recipe(tmp_path, "run: {run}\nsteps:\n  numbers: {{stage: toy-count}}\n  toy-count:\n")
    recipe = load_recipe(bare, ["engine.workers=3", "toy-count.shards=1", "seed=4", "steps.numbers.rows=2"])
    assert recipe.engine.workers == 3
    assert loaded(recipe)["toy-count"]["shards"] == 1
    assert loaded(recipe)["numbers"]["rows"] == 2
    assert loaded(recipe)["numbers"]["seed"] == 4
    assert load_recipe(bare, [f"run={tmp_path}/2024"]).run == f"{tmp_path}/2024"
    assert [load_recipe(bare, [f"run={name}"]).run for name in ("010", "1:10", "2024")] == ["010", "1:10", "2024"]
    assert load_recipe(bare, ["run=0123"]).run == "0123"


def test_a_variable_of_the_shell_is_no_folder(tmp_path: Path) -> None:
    """`run: $HOME/r` made a folder named $HOME."""
    text = "run: {place}/r\nsteps:\n  toy-count:\n"
    for place in ("$HOME", "s3://$BUCKET/a", "a/$USER"):
        (path := tmp_path / "recipe.yaml").write_text(text.format(place=place), "utf-8")
        with pytest.raises(ConfigError, match=r"run is .*: recipes do not replace \$[A-Z]+") as caught:
            load_recipe(path)
        assert caught.value.remedy.startswith("give run=… on the command line")
        assert load_recipe(path, ["run=/home/me/r"]).run == "/home/me/r"
    for place in ("a$b", "$", "price$/a", "$RECYCLE.BIN"):
        path.write_text(text.format(place=place), "utf-8")
        assert load_recipe(path).run == f"{place}/r"
    path.write_text("run: r\nsteps:\n  toy-parity: {inputs: {numbers: $DATA/numbers}}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"input numbers is .*: recipes do not replace \$DATA") as caught:
        load_recipe(path)
    assert "write ${DATA}, add DATA to `vars`, and give vars.DATA=…" in caught.value.remedy


def test_a_variable_may_use_those_above_it(tmp_path: Path) -> None:
    text = RECIPE.replace("{{word: plain}}", "{{home: a/b, word: '${{home}}/c'}}")
    assert loaded(load_recipe(write_recipe(tmp_path, text)))["numbers"]["kind"] == "a/b/c"
    with pytest.raises(ConfigError, match='no variable "word"'):
        load_recipe(write_recipe(tmp_path, text.replace("${{home}}", "${{word}}")))


def test_variables_of_variables_that_stand_for_gigabytes_are_refused(tmp_path: Path) -> None:
    lines = ["vars:", f"  v0: {'x' * 10}", *(f"  v{i}: {f'${{v{i - 1}}}' * 10}" for i in range(1, 10))]
    recipe = tmp_path / "r.yaml"
    recipe.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="its variables stand for more than 1,048,576 characters"):
        load_recipe(recipe)


def test_the_folder_of_a_step_is_that_step(tmp_path: Path) -> None:
    """An input given as a path used to be made after the step that reads it."""
    recipe = load_recipe(changed(tmp_path, "numbers: numbers", "numbers: {run}/numbers"))
    assert [step.name for step in recipe.steps] == ["numbers", "grouped"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load_recipe(path).steps) == 2
