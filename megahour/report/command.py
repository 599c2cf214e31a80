"""`megahour report ARTIFACT`: the explorer on the command line."""

from __future__ import annotations

import click

from megahour.runner import log


@click.command("report")
@click.argument("artifact")
@click.option(
    "--out", default="", metavar="FILE", help="The page. Default: ARTIFACT's name with .html, in the working directory."
)
@click.option(
    "--recordings",
    default="",
    metavar="URL",
    help="Recordings with the audio of dropped speech. Default: beside ARTIFACT.",
)
@click.option("--title", default="", help="Heading of the page. Default: ARTIFACT's name.")
@click.option(
    "--rows", type=click.IntRange(0, 100_000), default=2000, show_default=True, help="Utterances in the table."
)
@click.option("--clips", type=click.IntRange(0, 10_000), default=200, show_default=True, help="Utterances with sound.")
@click.option(
    "--longest-s",
    type=click.FloatRange(0.1),
    default=15.0,
    show_default=True,
    help="Longest utterance with sound, in seconds.",
)
@click.option(
    "--examples", type=click.IntRange(0, 100), default=5, show_default=True, help="Examples shown per reason."
)
@click.option("--top", type=click.IntRange(1, 1000), default=12, show_default=True, help="Rows in a table of hours.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the sample.")
@click.option(
    "--audio", type=click.Choice(["mp3", "flac"]), default="mp3", show_default=True, help="Encoding of the sound."
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
    """Make a page about one data set: hours, distributions, what was left out, and utterances to sort and hear.

    ARTIFACT comes first, options behind it. Of an artifact without audio the page tells what its manifest says.
    Without an ARTIFACT, `report` is the stage that makes the page about a run.
    """
    from megahour.core.output import is_sink, write_output
    from megahour.core.store import Artifact
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
    path = out or f"{made.url.rsplit('/', 1)[-1]}.html"
    write_output(path, page)
    log.say_last(f"{path}: {size(len(page.encode()))}", facts={"path": path})
    log.say_next([("the page, for a browser", path)] if not is_sink(path) else [])
