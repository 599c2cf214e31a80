"""`megahour report ARTIFACT`: the explorer on the command line."""

from __future__ import annotations

from pathlib import Path

import click

from megahour.runner import log


@click.command("report")
@click.argument("artifact")
@click.option("--out", default="", metavar="FILE", help="the page; default: ARTIFACT's name with .html, here")
@click.option("--recordings", default="", metavar="URL", help="where dropped speech is heard; default: beside ARTIFACT")
@click.option("--title", default="", help="heading; default: ARTIFACT's name")
@click.option(
    "--rows", type=click.IntRange(0, 100_000), default=2000, show_default=True, help="utterances in the table"
)
@click.option("--clips", type=click.IntRange(0, 10_000), default=200, show_default=True, help="of them with sound")
@click.option("--longest-s", type=click.FloatRange(0.1), default=15.0, show_default=True, help="longest sound, seconds")
@click.option("--examples", type=click.IntRange(0, 100), default=5, show_default=True, help="examples of each reason")
@click.option("--top", type=click.IntRange(1, 1000), default=12, show_default=True, help="names in a table of hours")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the sample")
@click.option(
    "--audio", type=click.Choice(["mp3", "flac"]), default="mp3", show_default=True, help="coding of the sound"
)
@log.logged
def explorer(
    artifact: str,
    out: str,
    recordings: str,
    title: str,
    rows: int,
    clips: int,
    longest_s: float,
    examples: int,
    top: int,
    seed: int,
    audio: str,
) -> None:
    """One page about one data set: hours, distributions, what was left out, and utterances to sort, hear and follow.

    ARTIFACT comes first, options behind it. Of an artifact without audio the page tells what its manifest says.
    Without an ARTIFACT, `report` is the stage that makes the page about a run.
    """
    from fsspec.implementations.local import LocalFileSystem

    from megahour.core.store import Artifact
    from megahour.core.surroundings import explaining
    from megahour.core.transfer import publish_text
    from megahour.report.explorer import Choice, explore
    from megahour.report.tables import size
    from megahour.runner.progress import TerminalMonitor

    made = Artifact(artifact)
    monitor = TerminalMonitor(step="report")
    choice = Choice(title, rows, clips, longest_s, examples, top, seed, "flac" if audio == "flac" else "mp3")
    monitor.started("report", made.manifest.shards, 0)
    try:
        page = explore(
            made,
            Artifact(recordings) if recordings else None,
            choice,
            lambda done, shards: monitor.progress(done, shards, "shards"),
        )
    finally:
        monitor.stopped()
    path = Path(out or f"{made.url.rsplit('/', 1)[-1]}.html")
    with explaining(path, path.parent):
        publish_text(LocalFileSystem(), str(path), page)
    log.say_last(f"{path}: {size(len(page.encode()))}", facts={"path": str(path)})
    log.say_next([("the page, for a browser", str(path))])
