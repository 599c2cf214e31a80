"""`megahour listening-results`: evaluates the answers of a listening test."""

from __future__ import annotations

from pathlib import Path

import click

from megahour.core.errors import ConfigError
from megahour.runner import log


@click.command("listening-results")
@click.argument("test")
@click.argument("answers", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@log.logged
def command(test: str, answers: tuple[str, ...]) -> None:
    """Compute mean ratings with 95 % intervals. TEST is the artifact of `listening-test`, ANSWERS the listeners' files.

    \b
    megahour listening-results runs/voice-en/listening listening-*.json
    """
    from megahour.core.store import Artifact
    from megahour.tts.listening import one_of_each, opinions, read_answer

    artifact = Artifact(test)
    if not artifact.complete or ".key.json" not in artifact.receipt_of(0).files:
        raise ConfigError("not a listening test", where=test, remedy="give an artifact of stage `listening-test`")
    key = artifact.read_json(0, ".key.json")
    listeners = one_of_each([read_answer(Path(path).read_bytes(), path) for path in answers])
    if left := len(answers) - len(listeners):
        log.say("same-listener", f"left out: {left} files of listeners who saved another", {"files": left})
    found = opinions(key, listeners)
    click.echo(f"{key['kind']} of {len(listeners)} listeners")
    for each in found:
        line = f"{each.system:<12} {each.mean:6.2f}  ({each.low:.2f} … {each.high:.2f})  {each.ratings} ratings"
        log.say("opinion", line, vars(each))
