"""Progress, warnings and errors of commands, all through Python's logging: to standard error and to a log file.

Results go to standard output, not through here. Commands call `begin` when they start; library users who do not call
it get warnings and errors only, as from any library.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from megahour.core.errors import ConfigError
from megahour.core.unicode import printable

LOG = logging.getLogger("megahour")
EVENTS = logging.getLogger("megahour.events")
COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--quiet", "log__quiet", {"is_flag": True, "help": "Print only warnings, errors and the last line."}),
    (
        "--log-file",
        "log__file",
        {"default": "", "metavar": "PATH", "help": "Append all lines to this file, with time and level."},
    ),
    (
        "--log-format",
        "log__format",
        {
            "type": click.Choice(["text", "json"]),
            "default": "text",
            "help": "Format of the log file, or of standard error without one. json: one object per line.",
        },
    ),
)
Command = TypeVar("Command", bound=Callable[..., Any])


class _State:
    """How much this process prints; set by `begin`."""

    quiet = False
    bars = True
    begun: Mapping[str, Any] = {}
    step = ""


def say(
    event: str,
    message: str,
    facts: Mapping[str, Any] | None = None,
    *,
    level: int = logging.INFO,
    shown: bool = False,
) -> None:
    """Log a line of progress: text for people, `event` and `facts` for programs (docs/operations.md lists them).

    shown: the terminal shows it already, as a bar or on standard output; it still goes to the log file and to JSON.
    """
    EVENTS.log(level, "%s", message, extra={"event": event, "facts": facts or {}, "shown": shown})


def say_last(message: str, event: str = "finished", facts: Mapping[str, Any] | None = None) -> None:
    """Print the last line of a command on standard output, even when quiet; if the output went there, only log it.

    facts: `path` is the output.
    """
    from megahour.core.output import STDOUTS

    shown = (facts or {}).get("path") not in STDOUTS
    if shown:
        click.echo(printable(message))
    say(event, message, facts, shown=shown)


def say_next(rows: Iterable[tuple[str, str]]) -> None:
    """Print (purpose, what to open or run) pairs as suggestions for people; nothing when quiet."""
    known = list(rows)
    if quiet() or not known:
        return
    width = max(len(why) for why, _ in known)
    click.echo("Next:")
    for why, what in known:
        click.echo(f"  {why:<{width}}  {what}")


def quiet() -> bool:
    """Whether standard output gets only the last line."""
    return _State.quiet


def bars() -> bool:
    """Whether a live bar may be drawn if standard error is a terminal."""
    return _State.bars


def begin(*, quiet: bool = False, file: str = "", form: str = "text") -> None:
    """Set up logging for a command, replacing the handlers of an earlier call.

    Libraries and threads are logged from level warning; the log file gets every line of megahour.
    Raises ConfigError: `file` cannot be written.
    """
    console = _Console()
    handlers: list[_Console | _File] = [console]
    console.setFormatter(_Json() if form == "json" and not file else _Plain())
    console.setLevel(logging.WARNING if quiet else logging.INFO)
    if file:
        handlers.append(_opened(file))
        handlers[-1].setFormatter(_Json() if form == "json" else _Stamped())
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Console | _File)]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    LOG.setLevel(logging.INFO)
    _State.quiet, _State.bars = quiet, not quiet and isinstance(console.formatter, _Plain)
    _State.begun = {"quiet": quiet, "file": file, "form": form}


def begun() -> dict[str, Any]:
    """What `begin` was called with, for another process that logs to the same places; empty without a call."""
    return dict(_State.begun)


def of_step(step: str) -> None:
    """Name the step in all lines of this process from now on, since those of others come between."""
    _State.step = step


def options() -> list[click.Option]:
    """`--quiet`, `--log-file` and `--log-format`, whose values `begin_by` takes."""
    return [click.Option([flag, name], **how) for flag, name, how in OPTIONS]


def begin_by(values: dict[str, Any]) -> None:
    """Call `begin` with the logging options of the command line, removing them from `values`."""
    begin(quiet=values.pop("log__quiet"), file=values.pop("log__file"), form=values.pop("log__format"))


def logged(command: Command) -> Command:
    """Decorator: adds the logging options to a command's function and calls `begin` with them."""

    @functools.wraps(command)
    def begun(**values: Any) -> Any:
        begin_by(values)
        return command(**values)

    decorated: Any = begun
    for flag, name, how in reversed(OPTIONS):
        decorated = click.option(flag, name, **how)(decorated)
    return decorated  # type: ignore[no-any-return]


class _Console(logging.StreamHandler[Any]):
    """Logs to the current `sys.stderr`, which a live bar replaces so that it stays below the lines."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> IO[str]:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None: ...

    def filter(self, record: logging.LogRecord) -> Any:
        """Skip lines meant for the file only, such as libraries' remarks; pass lines shown elsewhere only as JSON."""
        for_console = record.levelno >= logging.WARNING or hasattr(record, "event")
        if isinstance(self.formatter, _Plain) and (getattr(record, "shown", False) or _prints_itself(record.name)):
            return False
        return for_console and super().filter(record)


def _prints_itself(name: str) -> bool:
    """Whether a library, such as torch, has its own handlers on its loggers."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if logger.handlers:
            return True
        logger = logger.parent
    return False


class _File(logging.FileHandler):
    """A file handler that flushes each line; a full disk is reported once and does not stop the work."""

    failed = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        if not self.failed:
            self.failed = True
            click.echo(f"warning: {self.baseFilename}: lines are missing: {sys.exc_info()[1]}", err=True)


def _opened(path: str) -> _File:
    try:
        return _File(path, encoding="utf-8", errors="backslashreplace")  # names of files may be any bytes
    except OSError as error:
        folder = Path(path).parent
        remedy = f"make the folder first: mkdir -p {folder}" if not folder.exists() else "choose a writable file"
        raise ConfigError(f"--log-file: {error.strerror or error}", where=path, remedy=remedy) from None


class _Plain(logging.Formatter):
    """Plain text: errors and libraries' warnings begin with their level; coloured on a terminal without NO_COLOR."""

    def format(self, record: logging.LogRecord) -> str:
        text = _of_its_step(printable(super().format(record)))
        if record.levelno >= logging.WARNING and getattr(record, "event", "error") == "error":
            text = f"{record.levelname.lower()}: {text}"
        coloured = record.levelname in COLOURS and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        return click.style(text, fg=COLOURS[record.levelname]) if coloured else text


def _of_its_step(text: str) -> str:
    return f"{_State.step}: {text}" if _State.step else text


class _Stamped(logging.Formatter):
    """Time (UTC), level and message."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname:<7} {_of_its_step(printable(super().format(record)))}"


class _Json(logging.Formatter):
    """One JSON object a line; keys that every line has come first."""

    def format(self, record: logging.LogRecord) -> str:
        known: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
        }
        if _State.step:
            known["step"] = _State.step
        facts: Mapping[str, Any] = getattr(record, "facts", {"logger": record.name})
        if record.exc_info:
            known["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_finite(known | dict(facts)), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
