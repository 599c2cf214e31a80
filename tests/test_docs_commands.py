"""Every `megahour …` in README and docs is an existing command with valid options and values."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from megahour.cli.main import app
from megahour.core.config import parse
from megahour.core.errors import MegahourError
from megahour.recipes.recipe import load_recipe, load_stage
from megahour.recipes.shipped import names as shipped

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SPAN = re.compile(r"(?<!`)`(megahour [^`]+)`(?!`)")
LINE = re.compile(r"^\s*(?:\$ )?(megahour .*)$")
NAMED = re.compile(r"\bmegahour (?:lm [a-z]+(?:-[a-z]+)*|(?!lm\b)[a-z]+(?:-[a-z]+)*)\b(?![=.])")
RECIPE_COMMANDS = ("run", "plan", "status", "verify")


def shown(page: Path) -> Iterator[str]:
    """Commands of a page: lines of code that begin with one, with continuation lines joined, and inline code."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if match := LINE.match(line):
            command = match[1]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            yield command
        else:
            yield from SPAN.findall(line)


COMMANDS = [
    pytest.param(command, id=f"{page.name}: {command}")
    for page in PAGES
    for command in shown(page)
    if not command.split()[1].isupper()  # STAGE, any of them
]


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


def leaf(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that `words` name, and the remaining words."""
    command: click.Command = app
    context = click.Context(app, info_name="megahour")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"there is no {context.command_path} {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command, context, words


def check(command: str) -> None:
    """Raises AssertionError, ClickException or MegahourError if the command is invalid."""
    words = words_of(command)
    if "|" in words:  # the names of several commands of a group
        group, *names = (word for word in words if word != "|")
        for name in names:
            leaf([group, name])
        return
    found, context, given = leaf(words)
    if isinstance(found, click.Group) or not given:
        return
    flags = {word.partition("=")[0] for word in given if word.startswith("--")}
    first = [word for word in given[:1] if not word.startswith("-")]  # `plan train` has options of its own,
    first += ["--hours", "1"] if "--hours" in given else []  # and so has a plan of hours
    helped = parsed(found, context, [*first, "--help"]).command
    known = {flag for p in helped.params for flag in (*p.opts, *p.secondary_opts)}
    assert flags <= known | {"--help"}, f"{sorted(flags - known)}: not among {sorted(known)}"
    if "…" in command or "[" in command.partition("--")[0] or "--help" in flags:
        return  # the general form
    made = parsed(found, context, given)
    if any(parameter.name == "run__out" for parameter in made.command.params):
        check_stage(words[0], made)
    if words[0] in RECIPE_COMMANDS and Path(given[0]).stem in shipped():
        load_recipe(given[0], [word for word in given[1:] if "=" in word])


def parsed(command: click.Command, own: click.Context, words: list[str]) -> click.Context:
    """Parses with the command's own parser, except that files mentioned by a page need not exist."""
    try:
        return command.make_context(command.name, list(words), own.parent, resilient_parsing="--help" in words)
    except click.BadParameter as error:
        if "does not exist" not in error.message:
            raise
        return click.Context(command)


def check_stage(name: str, made: click.Context) -> None:
    fields = load_stage(name).params.model_fields
    values = {key: value for key, value in made.params.items() if key in fields and value is not None}
    parse(load_stage(name).params, values, where=name)


def named_in_messages() -> set[str]:
    """`megahour WORD [WORD]` in the strings of the package: the commands that messages and help texts recommend."""
    modules = (path.read_text() for path in (ROOT / "megahour").rglob("*.py"))
    strings = (
        node.value
        for module in modules
        if "megahour " in module  # a few of them: reading all as trees takes a second and a half
        for node in ast.walk(ast.parse(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {match[0] for text in strings for match in NAMED.finditer(text)}


def test_a_command_that_a_message_names_exists() -> None:
    """ "megahour stages lists them all" sent people to a command that never was."""
    named = named_in_messages()
    assert len(named) > 10
    for command in sorted(named):
        group, *rest = command.split()[1:]
        leaf([group, *rest] if group == "lm" else [group])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_shown_can_be_given(command: str) -> None:
    check(command)


def test_commands_are_found_in_lines_and_in_the_text() -> None:
    assert len(COMMANDS) > 30
    (page,) = [page for page in PAGES if page.name == "operations.md"]
    assert any("[key=value" in command for command in shown(page))


@pytest.mark.parametrize(
    "wrong",
    [
        "megahour allign --out x",
        "megahour align --recordings a --aligner b --out c --no-such-option 1",
        "megahour align --recordings a --out c",
        "megahour align --recordings a --aligner b --out c --window-s soon",
        "megahour cut --recordings a --out b --min-s 20",
        "megahour run demo raw.ours=20",
        "megahour lm train | hum",
        "megahour lm score … --beam 3",
    ],
)
def test_a_wrong_one_would_be_seen(wrong: str) -> None:
    with pytest.raises((AssertionError, click.ClickException, MegahourError)):
        check(wrong)
