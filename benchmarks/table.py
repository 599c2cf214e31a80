"""All results on one page, a number a row: `python benchmarks/table.py` writes benchmarks/README.md.

table.tsv names the rows: a result page, what the number is, and the pattern that finds it in the page, or `=NUMBER`
where no page holds it. tests/test_pages.py keeps the table equal to the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """\
# Measured

Made by `python benchmarks/table.py` from the pages that the scripts of this folder write (`make bench`); do not edit.
Each page has its command, machine and day. Unless a row says otherwise: two cores of x86_64, November 2026, goals and
noise in the page. Ratios are above 1 where megahour is better, `to` names what it is compared with.
"""


def number(page: str, pattern: str) -> str:
    """The number that a row's pattern finds in its page. Raises ValueError when it finds none."""
    if pattern.startswith("="):
        return pattern[1:]
    found = re.search(pattern, (HERE / page).read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{page}: nothing matches {pattern}")
    return found[1]


def lines() -> Iterator[str]:
    for row in (HERE / "table.tsv").read_text("utf-8").splitlines():
        if row.startswith("# "):
            yield from ("", f"## {row[2:]}", "", "| what | number | from |", "| --- | ---: | --- |")
            continue
        page, what, pattern = row.split("\t")
        name = "`make demo`" if page == "-" else f"[{Path(page).stem}]({page})"
        yield f"| {what} | {number(page, pattern)} | {name} |"


def table() -> str:
    """The whole page."""
    return HEAD + "\n".join(lines()) + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(table(), encoding="utf-8")
