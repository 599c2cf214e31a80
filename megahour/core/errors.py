"""Errors that name the value, the limit and the remedy."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

SHOWN = 20  # names in a message


class MegahourError(Exception):
    """Base of all errors that a user should read: what happened, where, and what to do next."""

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.remedy:
            parts.append(f"Remedy: {self.remedy}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own reduction would lose the keyword arguments on the way back from a worker process.
        return _rebuild, (type(self), dict(self.__dict__))


class ConfigError(MegahourError):
    """A parameter, recipe key or input role is wrong."""


class StoreError(MegahourError):
    """An artifact is missing, incomplete or damaged."""


class DamagedError(StoreError):
    """An artifact exists, but its manifest or its receipts cannot be read."""


class StageError(MegahourError):
    """A stage cannot go on."""


class TooManyBad(StageError):
    """More records were quarantined than the stage's `max_bad` allows."""


class NothingKept(StageError):
    """A stage kept none of its records, so later stages would have no input."""


class BadRecord(MegahourError):
    """One record cannot be used; it goes to quarantine and the run continues.

    Parameters
    ----------
    reason: a lower-case slug to count by, such as ``truncated-audio``.
    detail: the problem, with numbers.
    record: the record's name or key.
    """

    def __init__(self, reason: str, detail: str = "", *, record: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason, where=record)
        self.reason = reason
        self.detail = detail
        self.record = record


RECORD_FAULTS = (BadRecord, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that one record's data may raise in a reader; errors of disks, stores or memory are not among them."""


def bad_record(error: Exception, record: str = "") -> BadRecord:
    """One of `RECORD_FAULTS` as a BadRecord: itself if it is one, else ``unexpected-error``, a bug in the program.

    Either way the record goes to quarantine, a bug with its file and line, and the stage continues.
    """
    if not isinstance(error, BadRecord):
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        error = BadRecord("unexpected-error", f"{type(error).__name__}: {str(error)[:300]}{place}; please report it")
    error.record = error.record or record
    return error


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean "epochs"?`, or an empty string.

    >>> nearest("epoch", ["epochs", "layers"])
    ' – did you mean "epochs"?'
    """
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' – did you mean "{close[0]}"?' if close else ""


def absent(option: str, asked: Iterable[str], present: Iterable[str]) -> str:
    """That no utterance has some of the `asked` names, and which are `present`; "" if all are.

    >>> print(absent("splits", ["train", "tset"], ["", "test", "train"]))
    --splits: no utterance has ['tset'] – did you mean "test"?; the splits here are ['test', 'train']
    """
    known = {name for name in present if name}  # "" is unknown
    if not (lacking := sorted({*asked} - {*present})):
        return ""
    some = f"{sorted(known)[:SHOWN]}{' and more' if len(known) > SHOWN else ''}"
    here = f"the {option} here are {some}" if known else f"the utterances here have no {option}"
    return f"--{option}: no utterance has {lacking}{nearest(lacking[0], known)}; {here}"


def _rebuild(kind: type[MegahourError], state: dict[str, object]) -> MegahourError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["message"])
    error.__dict__.update(state)
    return error
