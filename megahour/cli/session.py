"""One session of `megahour run`: runs the steps and prints progress, the summary, and what is kept when stopped."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from megahour.cli.metrics import monitor_of
from megahour.core.store import Artifact
from megahour.recipes.recipe import Recipe
from megahour.recipes.run import StepPlan, check_needs, check_outside, chosen, execute, plan, resumable
from megahour.recipes.steps import Done, models_of, needs_model
from megahour.runner import log
from megahour.runner.console import count, duration, output_console
from megahour.runner.progress import StepPlace, TerminalMonitor, audio_seconds, summary_table

if TYPE_CHECKING:
    from megahour.metrics.run import RunBoard

DATA_SETS = ("cut", "import", "select")  # stages whose artifacts `megahour report ARTIFACT` shows with audio


class RunSession:
    """A run of `recipe`, up to the step `until` if given; `words` are the command line's words for the recipe.

    board: collects metrics of the run, if given.
    """

    def __init__(self, recipe: Recipe, words: Sequence[str], until: str = "", board: RunBoard | None = None) -> None:
        names = {step.name for step in chosen(recipe, until)}
        self.recipe, self.until, self._board = recipe, until, board
        self.words = shlex.join(words)
        self.again = f"megahour run {self.words}" + (f" --until {until}" if until else "")
        self.plans: list[StepPlan] = [each for each in plan(recipe) if each.step.name in names]
        self.done: list[Done] = []
        self._running: dict[str, TerminalMonitor] = {}
        self._started = time.monotonic()

    def run(self) -> None:
        """Run the unfinished steps. Ctrl-C prints what is kept and ends the process."""
        todo = [each for each in self.plans if each.state != "done"]
        home = self.recipe.run
        facts = {"recipe": self.recipe.name, "run": home, "steps": len(self.plans), "steps_to_run": len(todo)}
        text = f"{self.recipe.name}: {count(len(self.plans), 'step')}, {len(todo)} to run, in {home}"
        log.say("run-started", text, facts)
        if self._board is not None:
            self._board.steps = len(self.plans)
            for each in self.plans:
                self._board.known(each.step.name, each.step.stage.name, Artifact(each.step.output))
        refuse_blocked(self.recipe, self.plans)
        if any(needs_model(each.step) for each in todo):
            models_of(self.recipe.engine).check()
        with (
            resumable(home, self._kept, self.again),
            closing(execute(self.recipe, self.monitor, until=self.until)) as ended,
        ):
            for done in ended:
                monitor = self._running.pop(done.step.name)
                if done.seconds is None:
                    monitor.was_made(done.step.stage.name)
                self.done.append(done)
        self._say_end()

    def monitor(self, name: str) -> TerminalMonitor:
        index = next(index for index, each in enumerate(self.plans) if each.step.name == name)
        later_s = partial(self._others_s, name)
        position = StepPlace(index + 1, len(self.plans), self.plans[index].seconds, later_s, self.recipe.steps_at_once)
        self._running[name] = monitor_of(self._board, name, position)
        return self._running[name]

    def _others_s(self, name: str) -> list[float | None]:
        """Seconds left of the other steps that run, and those that each step still to run took last time."""
        running = self._running.copy()  # a bar asks from a thread of its own
        begun = {name, *running, *(done.step.name for done in self.done)}
        waiting = [each.seconds for each in self.plans if each.state != "done" and each.step.name not in begun]
        return [*(each.left_s() for other, each in running.items() if other != name), *waiting]

    def _kept(self) -> str:
        parts = [f"{each.kept()} of {each.step}" for each in self._running.values() if each.total]
        return ", ".join([f"{len(self.done)} of {count(len(self.plans), 'step')}", *parts])

    def _say_end(self) -> None:
        places = {each.step.name: place for place, each in enumerate(self.plans)}
        self.done.sort(key=lambda done: places[done.step.name])
        if not log.quiet():
            output_console().print(summary_table([_row(done) for done in self.done]))
            for text in (*tables_of(_outputs(self.done)), ""):
                click.echo(text)
        ran = sum(done.seconds is not None for done in self.done)
        finished = len(self.done) - ran
        counted = ", ".join(f"{n} {what}" for n, what in ((ran, "ran"), (finished, "up to date")) if n)
        wall_s, reports = time.monotonic() - self._started, _reports(self.done)
        text = f"Finished in {duration(wall_s)}: {count(len(self.done), 'step')} ({counted}) in {self.recipe.run}"
        facts = {
            "run": self.recipe.run, "steps": len(self.done), "steps_ran": ran,
            "seconds": round(wall_s, 3), "reports": reports,
        }  # fmt: skip
        log.say_last("; ".join([text, *(f"report: {path}" for path in reports)]), "run-finished", facts)
        log.say_next(self._next(reports))

    def _next(self, reports: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Files to open and likely next commands, each with its purpose."""
        for path in reports:
            yield "the report, for a browser", path
        yield "where each step stands", f"megahour status {self.words}"
        for done in [done for done in self.done if done.step.stage.name in DATA_SETS][-1:]:
            yield f"a page about {done.step.name}", f"megahour report {shlex.quote(done.step.output)}"
        if any(getattr(done.step.params, "kind", "") == "voice" for done in self.done):
            yield "speak with it", shlex.join(["megahour", "say", "TEXT", "--voice", self.recipe.run])
        if left := len(self.recipe.steps) - len(self.done):
            yield f"the other {count(left, 'step')}", f"megahour run {self.words}"


def refuse_blocked(recipe: Recipe, plans: Sequence[StepPlan]) -> None:
    """Raise StoreError or ConfigError, as a run does before its first step, for what is missing outside of it."""
    check_needs(recipe)
    check_outside(recipe, [each.step for each in plans if each.state == "blocked"], files=True)


def _row(done: Done) -> tuple[str, Any, float | None, float]:
    output = Artifact(done.step.output)
    wall_s = output.wall().get("seconds") or done.seconds or 1.0
    return done.step.name, done.manifest, done.seconds, sum(map(audio_seconds, output.each_receipt())) / wall_s


def _outputs(done: Sequence[Done]) -> list[Artifact]:
    return [Artifact(each.step.output) for each in done]


def _files(outputs: Sequence[Artifact], suffix: str) -> Iterator[tuple[Artifact, int]]:
    """Artifacts and shards that have a file of this suffix."""
    for output in outputs:
        for receipt in output.each_receipt():
            if suffix in receipt.files:
                yield output, receipt.shard


def tables_of(outputs: Sequence[Artifact]) -> list[str]:
    """The tables that scoring stages have written."""
    return [output.read_bytes(shard, ".md").decode() for output, shard in _files(outputs, ".md")]


def _reports(done: Sequence[Done]) -> list[str]:
    return [f"{output.url}/shards/{shard:05d}.html" for output, shard in _files(_outputs(done), ".html")]
