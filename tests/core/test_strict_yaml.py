"""YAML that hides nothing: what is wrong is named with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from megahour.core.errors import ConfigError
from megahour.core.strict_yaml import kind_name, parse_yaml, read_mapping


def refused(text: str) -> tuple[str, str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "r.yaml")
    return caught.value.where, caught.value.message, caught.value.remedy


def test_a_key_that_is_given_twice_is_named_with_both_lines() -> None:
    where, message, remedy = refused("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert (where, message) == ("r.yaml:5", 'duplicate key "c", on lines 3 and 5')
    assert remedy.startswith("keep one of them;")
    two = "x: &x {a: 1}\ny: &y {b: 2}\nz:\n  <<: *x\n  <<: *y\n"
    assert refused(two)[2].startswith("merge both as <<: [*one, *other];")
    assert parse_yaml("1: a\n'1': b\n", "r.yaml") == {1: "a", "1": "b"}, "a number and a text are two keys"


def test_a_section_may_change_what_an_anchor_brings_and_no_other_section_changes_with_it() -> None:
    found: Any = parse_yaml("x: &x {a: 1, b: [1]}\ny:\n  <<: *x\n  a: 2\nz: *x\n", "r.yaml")
    assert found == {"x": {"a": 1, "b": [1]}, "y": {"a": 2, "b": [1]}, "z": {"a": 1, "b": [1]}}
    found["z"]["b"].append(2)
    assert found["x"]["b"] == found["y"]["b"] == [1]


@pytest.mark.parametrize(
    ("text", "where", "message", "remedy"),
    [
        ("a:\n\t- 1\n", "r.yaml:2", "not valid YAML", "indent with spaces, not with tabs"),
        ("a: 1\nb: *gone\n", "r.yaml:2", "alias", "a value that begins with * is an alias"),
        ("a: 1\nb: !foo 1\n", "r.yaml:2", "the tag '!foo'", "a value that begins with ! is a tag"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2", "another document", "keep one document"),
        ("a: [1\nb: 2\n", "r.yaml:2", "while parsing a flow sequence", ""),
        ("a: !!int abc\n", "r.yaml", "a value cannot be read", ""),
        ("a: 2020-13-01\n", "r.yaml", "a value cannot be read", ""),
        ("a: &a [*a]\n", "r.yaml", "an alias contains itself", ""),
        ("a: \x01\n", "r.yaml", "not valid YAML", ""),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(text: str, where: str, message: str, remedy: str) -> None:
    found = refused(text)
    assert found[0] == where
    assert message in found[1]
    assert found[2].startswith(remedy)
    assert bool(found[2]) == bool(remedy)


@pytest.mark.parametrize(
    ("text", "read", "remedy"),
    [
        ("010", 8, 'write "010" for the text, or 10 for the number'),
        ("-0017", -15, 'write "-0017" for the text, or -17 for the number'),
        ("00", 0, 'write "00" for the text, or 0 for the number'),
        ("1:10", 70, 'write "1:10" for the text, or 70 for the number'),
        ("1:10.5", 70.5, 'write "1:10.5" for the text, or 70.5 for the number'),
    ],
)
def test_a_number_that_means_another_is_refused(text: str, read: float, remedy: str) -> None:
    """Of YAML 1.1: a room 010 became 8, and a time 1:10 became 70, without a word."""
    assert refused(f"a: 1\nb: [{text}]\n") == ("r.yaml:2", f"YAML reads {text} as the number {read}", remedy)
    assert refused(f"{text}: 1\n")[1:] == (f"YAML reads {text} as the number {read}", remedy)


def test_other_numbers_are_what_they_show() -> None:
    text = "[0, 10, -3, 0.5, 010.5, 0x10, 1_000, 1e-3, '010', \"1:10\", 0o10, 08, a:10]"
    assert parse_yaml(text, "r.yaml") == [0, 10, -3, 0.5, 10.5, 16, 1000, "1e-3", "010", "1:10", "0o10", "08", "a:10"]


@pytest.mark.parametrize(("first", "more"), [("[1, 2]", "[{}]"), ("{x: 1}", "{{<<: [{}]}}"), ("{x: 1}", "{{a: [{}]}}")])
def test_aliases_of_aliases_that_stand_for_billions_are_refused_at_once(first: str, more: str) -> None:
    lines = [f"n0: &n0 {first}"]
    lines += [f"n{i}: &n{i} {more.format(', '.join([f'*n{i - 1}'] * 9))}" for i in range(1, 10)]
    where, message, remedy = refused("\n".join(lines))
    assert where == "r.yaml"
    assert re.search(r"its aliases stand for \d,\d{3},\d{3},\d{3} values, at most 100,000 are read", message)
    assert remedy.startswith("use fewer aliases")


def test_a_long_file_may_use_an_alias_on_every_line() -> None:
    found: Any = parse_yaml("x: &x {a: 1, b: 2}\nall:\n" + "- *x\n" * 2000, "r.yaml")
    assert found["all"] == [{"a": 1, "b": 2}] * 2000


def test_a_file_that_is_no_mapping_is_refused_with_what_it_is(tmp_path: Path) -> None:
    def read(name: str, data: bytes) -> Any:
        (tmp_path / name).write_bytes(data)
        return read_mapping(tmp_path / name, "recipe", "write one")

    assert read("recipe.yaml", b"\xef\xbb\xbfa: 1\n") == {"a": 1}
    for data, words in [
        (b"", "a recipe is a mapping of names to values; it is empty"),
        (b"- 1\n", "it holds a list"),
        (b"a: \xff\n", "not UTF-8: byte 0xff at 3"),
    ]:
        with pytest.raises(ConfigError, match=words):
            read("other.yml", data)
    with pytest.raises(ConfigError, match=r'no such recipe – did you mean "recipe\.yaml"\?\nRemedy: write one'):
        read_mapping(tmp_path / "recpie.yaml", "recipe", "write one")
    with pytest.raises(ConfigError, match="it cannot be read: Is a directory"):
        read_mapping(tmp_path, "recipe", "write one")


def test_kinds_have_names() -> None:
    values: list[Any] = [{}, [], "x", True, None, 3, 0.5, {1}]
    named = ["a mapping", "a list", "a text", "yes or no", "nothing", "a number", "a number", "a set"]
    assert [kind_name(value) for value in values] == named
