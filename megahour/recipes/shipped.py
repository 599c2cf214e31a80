"""The recipes that come with the package, by name: `megahour run demo`, `megahour recipes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import megahour
from megahour.core.errors import ConfigError, nearest
from megahour.core.store import RESOLVED

FOLDER = Path(megahour.__file__).parent / "recipes"


def names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_recipe(text: str | Path, *, shipped_first: bool = False) -> Path:
    """The file of a recipe given as a path or by name: an existing file or a run's folder, else `demo` or
    `recipes/demo.yaml`.

    shipped_first: `demo` is the shipped recipe, even if there is a run's folder of this name.

    Raises ConfigError for a name without a file, with the nearest known one, and for a URL.
    """
    if "://" in str(text):
        remedy = f"a run in a store goes on with its recipe and run={text}"
        raise ConfigError("a recipe is a file of this machine, or the folder of a run", where=str(text), remedy=remedy)
    path = Path(text)
    if path.is_file():
        return path
    if (path / RESOLVED).is_file() and not (shipped_first and str(text) in names()):
        return path / RESOLVED
    if str(path.parent) in (".", "recipes") and path.suffix in ("", ".yaml") and path.stem in names():
        return FOLDER / f"{path.stem}.yaml"
    if str(path) == path.stem and not path.exists():
        raise ConfigError(
            f"no such recipe{nearest(path.stem, names())}",
            where=str(text),
            remedy=f"give the path of a YAML file with `steps`, or one of {', '.join(names())}",
        )
    return path


def summaries() -> Iterator[tuple[str, str]]:
    """(name, `about`) of each shipped recipe."""
    import yaml

    for name in names():
        yield name, str(yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))["about"])


def copy(name: str, folder: Path) -> Path:
    """Write a shipped recipe to `folder`, to edit. Raises ConfigError: unknown name, or the file exists."""
    source, target = find_recipe(name, shipped_first=True), folder / f"{name}.yaml"
    try:
        with target.open("xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise ConfigError("the file already exists", where=str(target), remedy="rename or remove it first") from None
    return target
