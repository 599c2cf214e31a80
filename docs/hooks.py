"""Pages that lie beside docs/ in the repository, such as benchmarks/align.md, are pages of the site too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BESIDE = ("benchmarks/*.md", "examples/*", "*.md")


def on_files(files: Files, config: Any) -> Files:
    """Add them under their own paths."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and name != "README.md":
                files.append(File.generated(config, name, content=path.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between docs/ and the folders beside it, as they are in the repository, made those of the site."""
    source = page.file.src_uri
    if (ROOT / "docs" / source).is_file():
        return markdown.replace("](../", "](")
    return markdown.replace("](../docs/", "](../").replace("](docs/", "](")
