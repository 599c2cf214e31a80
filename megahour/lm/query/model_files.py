"""Files of models: the format of a name or a file, how to open it, and outputs that appear only when complete."""

from __future__ import annotations

import glob
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from megahour.core.errors import ConfigError
from megahour.core.locks import MARKS, alone, check
from megahour.core.output import is_sink, open_sink
from megahour.core.surroundings import explaining
from megahour.core.transfer import Disk
from megahour.lm.arpa.read import Progress
from megahour.lm.query.mapped import SUFFIX, MappedModel, is_mapped, open_mapped
from megahour.lm.query.mapped_import import load_arpa
from megahour.lm.text.sources import STDIN, open_stream, text_of

if TYPE_CHECKING:
    from megahour.core.store import Artifact

FORMS = ("arpa", "arpa.gz", "arpa.xz", "arpa.zst", "mlm", "kenlm")
PACKED = (".gz", ".xz", ".zst")
MEMBER_BYTES = 1 << 22  # text in a member of a gzip file; threads compress members in parallel
LEVEL = 3  # of gzip; numbers hardly shrink at higher levels
_KENLM = b"mmap lm http://kheafield.com/code format version"
Form = Literal["arpa", "mapped", "kenlm"]


def form_of(path: str | Path) -> Form:
    """The format of a model's file, by its first bytes; a pipe, which can be read only once, is ARPA.

    Raises ConfigError: there is no such file.
    """
    path = Path(path)
    if path.is_fifo():
        return "arpa"
    if not path.is_file():
        what = "a directory" if path.is_dir() else "no such file"
        raise ConfigError(f"{what}", where=str(path), remedy=f"give a model: .arpa, .arpa.gz, {SUFFIX} or KenLM's")
    if is_mapped(path):
        return "mapped"
    with path.open("rb") as file:
        return "kenlm" if file.read(len(_KENLM)) == _KENLM else "arpa"


def form_to_write(path: str | Path) -> Form:
    """The format that the name of an output implies. Raises ConfigError: an unknown suffix, or no such directory."""
    path = Path(path)
    _check_target(path)
    name = path.name
    for packed in PACKED:
        name = name.removesuffix(packed)
    if name.endswith(".arpa"):
        return "arpa"
    if path.name.endswith(SUFFIX):
        return "mapped"
    raise ConfigError(
        f"{path.name!r} has no suffix of a model",
        where=str(path),
        remedy=f"use .arpa, .arpa.gz, .arpa.xz, .arpa.zst or {SUFFIX} (mapped); for KenLM's: megahour lm convert --to",
    )


def _check_target(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError("no such directory", where=str(path.parent), remedy="create it first")
    if path.is_dir():
        raise ConfigError("a directory", where=str(path), remedy="give the name of a file")


def refuse_kenlm(path: str | Path) -> Form:
    """The format of a model whose n-grams will be read. Raises ConfigError as `form_of`, or for KenLM's format."""
    if (form := form_of(path)) == "kenlm":
        remedy = "give the ARPA file that it was made from"
        raise ConfigError("the n-grams of KenLM's binary format cannot be listed", where=str(path), remedy=remedy)
    return form


def open_model(path: str | Path, progress: Progress = lambda phase, done, total: None) -> MappedModel:
    """Open a model for scoring: mapped files at once, ARPA files by reading them.

    Raises ConfigError: no such file, or KenLM's format. MegahourError: a damaged file.
    """
    return open_mapped(path) if refuse_kenlm(path) == "mapped" else load_arpa(path, progress)


@contextmanager
def lm_file(artifact: Artifact) -> Iterator[Path]:
    """A local path of the model of an *lm* artifact, in any format."""
    files = next(receipt.files for receipt in artifact.each_receipt())
    suffix = next((f".{form}" for form in FORMS if f".{form}" in files), ".arpa")
    with artifact.local(0, suffix) as path:
        yield path


@contextmanager
def replacing(path: str | Path, scratch: Path | None = None) -> Iterator[Path]:
    """A temporary name beside `path` to write to. It is renamed at the end, or removed after an error.

    A pipe or device gets a copy at the end; the temporary name is then in the folder `scratch`.

    Raises StoreError: another process writes the same file, or the disk is full. ConfigError: `path` cannot be a file.
    """
    path = Path(path)
    if is_sink(path):
        with open_sink(path) as out, tempfile.TemporaryDirectory(prefix="megahour-", dir=scratch) as folder:
            making = Path(folder) / path.name
            yield making
            with making.open("rb") as file:
                shutil.copyfileobj(file, out, MEMBER_BYTES)
        return
    place: dict[str, Any] = {"folder": path.parent, "marks": f".{path.name}{MARKS}", "where": str(path)}
    files = Disk()
    _check_target(path)
    with explaining(path, path.parent, resumes=False), alone(files, **place) as token:
        # Of killed processes; a live one may write lm.arpa.gz beside lm.arpa.
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'?' * len(token)}.making*"):
            left.unlink(missing_ok=True)
        making = path.with_name(f".{path.name}.{token}.making")
        try:
            yield making
            check(files, token=token, fresh=True, **place)
            making.replace(path)
        finally:
            making.unlink(missing_ok=True)


@contextmanager
def packing(making: Path, name: str, threads: int, progress: Progress) -> Iterator[Path]:
    """The path to write to: `making`, or a file that is then compressed to it, if the suffix of `name` says so."""
    if not name.endswith(PACKED):
        yield making
        return
    plain = making.with_name(f"{making.name}.plain")
    try:
        yield plain
        progress("compress", 0, 1)
        pack(plain, making, name, threads)
        progress("compress", 1, 1)
    finally:
        plain.unlink(missing_ok=True)


def pack(source: Path, target: Path, name: str, threads: int = 1) -> None:
    """Compress a file by the suffix of `name`. The bytes do not depend on `threads`."""
    with source.open("rb") as file, target.open("wb") as out:
        if name.endswith(".gz"):
            _gzip(file, out, threads)
        elif name.endswith(".xz"):
            with lzma.LZMAFile(out, "wb", preset=1) as packed:
                _copy(file, packed)
        elif name.endswith(".zst"):
            import pyarrow as pa

            with pa.CompressedOutputStream(pa.PythonFile(out, "w"), "zstd") as packed:
                _copy(file, packed)
        else:
            raise ValueError(f"{name!r} does not end in one of {PACKED}")


def _copy(file: BinaryIO, out: object) -> None:
    while data := file.read(MEMBER_BYTES):
        out.write(data)  # type: ignore[attr-defined]


def _gzip(file: BinaryIO, out: BinaryIO, threads: int) -> None:
    def member(data: bytes) -> bytes:
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)  # 31: a gzip header without a time
        return packer.compress(data) + packer.flush()

    with ThreadPoolExecutor(threads) as pool:
        while data := [part for part in (file.read(MEMBER_BYTES) for _ in range(2 * threads)) if part]:
            for packed in pool.map(member, data):
                out.write(packed)


def lines_of(path: str, chunk_bytes: int = 1 << 22) -> Iterator[list[bytes]]:
    """Lists of lines of a text, packed or not, with their line breaks; `-` is standard input.

    Raises ConfigError: there is no such file, or it is no text, such as a zip archive or UTF-16.
    """
    if path != STDIN and (Path(path).is_dir() or not Path(path).exists()):
        raise ConfigError(
            "a folder, not a file" if Path(path).is_dir() else "no such file",
            where=path,
            remedy="give a text, one sentence per line, or - for standard input",
        )
    name = "standard input" if path == STDIN else path
    with open_stream(path) as raw, text_of(raw, name) as file:
        while lines := cast(BinaryIO, file).readlines(chunk_bytes):
            yield lines
