"""Defaults in help texts are YAML that parses back to them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from megahour.runner.options import yaml_text

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -3,
    0.1,
    2.0,
    -0.5,
    1e-8,
    1e22,
    float("inf"),
    "",
    "no",
    "null",
    "on",
    "fixed-width",
    "a b",
)
MORE: tuple[Any, ...] = (
    "true",
    "12",
    "1e3",
    "é",
    "~",
    "-",
    "n",
    [],
    [1, 2],
    [1.5],
    ["a"],
    [True],
    {"a": 1},
    "x_y",
    "2024-01-01",
    "a\nb",
)


@pytest.mark.parametrize("value", VALUES + MORE, ids=repr)
def test_a_default_parses_back_to_itself_and_is_spelled_as_pyyaml_spells_it(value: Any) -> None:
    text = yaml_text(value)
    assert yaml.safe_load(text) == value
    assert text == yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()


def test_lm_train_starts_without_yaml_fsspec_and_psutil(tmp_path: Any) -> None:
    (tmp_path / "text.txt").write_text("a b\nb a\n")
    train = ["lm", "train", f"{tmp_path}/text.txt", "--order", "2", "--out", f"{tmp_path}/lm.arpa", "--quiet"]
    code = (
        "import sys; from megahour.cli.main import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        "print(sorted({'numba', 'yaml', 'fsspec', 'psutil', 'pyarrow'} & set(sys.modules)))"
    )
    for _ in range(2):  # the first run may have to compile
        done = subprocess.run([sys.executable, "-c", code, *train], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
