"""What commands say while they work, on one path: Python's logging, to standard error and to a file.

Results go to standard output and do not pass here. `begin` is called when a command starts; a library user who does not
call it hears warnings and errors only, as from any library.
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

LOG = logging.getLogger("megahour")
EVENTS = logging.getLogger("megahour.events")
COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--quiet", "log__quiet", {"is_flag": True, "help": "only warnings, errors and the last line"}),
    ("--log-file", "log__file", {"default": "", "metavar": "PATH", "help": "append all lines, with time and level"}),
    (
        "--log-format",
        "log__format",
        {
            "type": click.Choice(["text", "json"]),
            "default": "text",
            "help": "of the log file, or of standard error without one; json: an object a line",
        },
    ),
)
Command = TypeVar("Command", bound=Callable[..., Any])


class _State:
    """How this process talks; `begin` sets it."""

    quiet = False
    bars = True


def say(
    event: str,
    message: str,
    facts: Mapping[str, Any] | None = None,
    *,
    level: int = logging.INFO,
    shown: bool = False,
) -> None:
    """A line of progress: text for people, `event` and `facts` for programs (docs/operations.md lists them).

    shown: it stands on the terminal already, as a bar or on standard output; the log file and JSON get it all the same.
    """
    EVENTS.log(level, "%s", message, extra={"event": event, "facts": facts or {}, "shown": shown})


def say_last(message: str, event: str = "finished", facts: Mapping[str, Any] | None = None) -> None:
    """The last line of a command: on standard output also when quiet."""
    click.echo(message)
    say(event, message, facts, shown=True)


def say_next(rows: Iterable[tuple[str, str]]) -> None:
    """What to open or which command to give next, behind what it is for; for people, so not when quiet."""
    known = list(rows)
    if quiet() or not known:
        return
    width = max(len(why) for why, _ in known)
    click.echo("Next:")
    for why, what in known:
        click.echo(f"  {why:<{width}}  {what}")


def quiet() -> bool:
    """Standard output gets the last line only."""
    return _State.quiet


def bars() -> bool:
    """A live bar may be drawn, if standard error is a terminal."""
    return _State.bars


def begin(*, quiet: bool = False, file: str = "", form: str = "text") -> None:
    """Set up logging for a command; the handlers of an earlier call go. Raises ConfigError: `file` cannot be written.

    Lines of libraries and of threads are logged from warnings on; the log file gets all that megahour says.
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


def options() -> list[click.Option]:
    """`--quiet`, `--log-file` and `--log-format`, whose values `begin_by` takes."""
    return [click.Option([flag, name], **how) for flag, name, how in OPTIONS]


def begin_by(values: dict[str, Any]) -> None:
    """`begin` as the command line asks; takes the options of logging out of `values`."""
    begin(quiet=values.pop("log__quiet"), file=values.pop("log__file"), form=values.pop("log__format"))


def logged(command: Command) -> Command:
    """Gives a command's function the options, and begins with them."""

    @functools.wraps(command)
    def begun(**values: Any) -> Any:
        begin_by(values)
        return command(**values)

    made: Any = begun
    for flag, name, how in reversed(OPTIONS):
        made = click.option(flag, name, **how)(made)
    return made  # type: ignore[no-any-return]


class _Console(logging.StreamHandler[Any]):
    """Standard error as it is at the moment: a live bar puts itself in its place, to stay below the lines."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> IO[str]:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None: ...

    def filter(self, record: logging.LogRecord) -> Any:
        """Of lines for the file, such as a library's remarks, none; of those that are shown otherwise, JSON only."""
        meant = record.levelno >= logging.WARNING or hasattr(record, "event")
        if isinstance(self.formatter, _Plain) and (getattr(record, "shown", False) or _prints_itself(record.name)):
            return False
        return meant and super().filter(record)


def _prints_itself(name: str) -> bool:
    """Whether a library, such as torch, has given its loggers handlers of their own."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if logger.handlers:
            return True
        logger = logger.parent
    return False


class _File(logging.FileHandler):
    """Flushed line by line. A full disk is reported once and does not end the work."""

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
        return _File(path, encoding="utf-8")
    except OSError as error:
        folder = Path(path).parent
        remedy = f"make the folder first: mkdir -p {folder}" if not folder.exists() else "choose a file to write to"
        raise ConfigError(f"--log-file: {error.strerror or error}", where=path, remedy=remedy) from None


class _Plain(logging.Formatter):
    """The message; errors and a library's warnings begin with their level. In colour on a terminal without NO_COLOR."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno >= logging.WARNING and getattr(record, "event", "error") == "error":
            text = f"{record.levelname.lower()}: {text}"
        coloured = record.levelname in COLOURS and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        return click.style(text, fg=COLOURS[record.levelname]) if coloured else text


class _Stamped(logging.Formatter):
    """Time (UTC), level and message."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname:<7} {super().format(record)}"


class _Json(logging.Formatter):
    """An object a line; keys that are there always come first."""

    def format(self, record: logging.LogRecord) -> str:
        known: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
        }
        facts: Mapping[str, Any] = getattr(record, "facts", {"logger": record.name})
        if record.exc_info:
            known["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_finite(known | dict(facts)), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
