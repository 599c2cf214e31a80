"""What the README, the pages and the table of measurements have to keep."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")
REFERENCE = {"stages.md", "architecture.md"}
"""Pages that are looked things up in: no first command, nothing to look at next."""
BACKGROUND = {"real-speech.md", "peoples-speech.md", "petabyte-acoustic-models.md"}
"""Pages about data and papers that do not come with the package: they begin with what they are about."""
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def table() -> str:
    spec = importlib.util.spec_from_file_location("table", ROOT / "benchmarks" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.table())


def test_the_table_of_measurements_is_what_the_result_files_say() -> None:
    assert (ROOT / "benchmarks" / "README.md").read_text("utf-8") == table(), "run python benchmarks/table.py"


def test_the_readme_quotes_five_numbers_of_the_table() -> None:
    rows = [line.replace("](benchmarks/", "](") for line in README.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 5
    assert set(rows) <= set(table().splitlines())


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 120


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r": (\S+\.md)$", text, re.MULTILINE)
    assert set(PAGES) <= set(listed)
    assert yaml.safe_load(text)["hooks"] == ["docs/hooks.py"]


@pytest.mark.parametrize("page", sorted(set(PAGES) - REFERENCE - BACKGROUND))
def test_a_page_begins_with_a_command(page: str) -> None:
    title, blank, fence, command = (DOCS / page).read_text("utf-8").splitlines()[:4]
    assert title.startswith("# ")
    assert (blank, fence) == ("", "```")
    assert re.match(r"(megahour|make|pip install|torchrun|git clone|sbatch|kubectl) ", command), command


@pytest.mark.parametrize("page", sorted(set(PAGES) - REFERENCE))
def test_a_page_ends_with_what_to_look_at_next(page: str) -> None:
    last = (DOCS / page).read_text("utf-8").rpartition("\n## ")[2]
    assert last.startswith(("What to look at next\n",))


def test_links_lead_to_files_and_headings() -> None:
    """Those of the README and of files beside docs/, too, which the site's own check does not see on GitHub."""
    wrong = []
    for path in [page for folder in (".", "docs", "benchmarks", "examples") for page in (ROOT / folder).glob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
            target, _, anchor = link.partition("#")
            if "://" in link:
                continue
            other = path.parent / target if target else path
            if not other.exists() or (anchor and anchor not in anchors(other)):
                wrong.append(f"{path.relative_to(ROOT)}: {link}")
    assert not wrong


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
