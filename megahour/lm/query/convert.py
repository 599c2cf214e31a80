"""A model's file in another form."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.lm.arpa.model import NgramModel, read_arpa, write_arpa
from megahour.lm.arpa.read import Progress, read_arrays
from megahour.lm.query.mapped import open_mapped
from megahour.lm.query.mapped_import import build, to_arrays
from megahour.lm.query.model_files import PACKED, form_of, form_to_write, lm_file, pack, replacing
from megahour.lm.query.output import DiskFile

if TYPE_CHECKING:
    from megahour.core.store import Artifact


def convert(
    source: str | Path, out: str | Path, threads: int = 1, progress: Progress = lambda phase, done, total: None
) -> list[int]:
    """Write the model `source` to `out` in the form that its name says; the numbers of n-grams by order.

    Raises
    ------
    ConfigError: no such file or directory, a form that cannot be read or written. MegahourError: damaged.
    """
    given, wanted = form_of(source), form_to_write(out)
    _no_kenlm(source)
    with replacing(out) as making:
        if wanted == "arpa":
            model = read_model(source, progress)
            _write(model, making, Path(out).name, threads, progress)
            return model.sizes
        if given == "mapped":
            mapped = open_mapped(source)
            mapped.verify()
            shutil.copyfile(source, making)
            progress("copy", 1, 1)
            return mapped.sizes
        arrays = read_arrays(source, progress)
        with DiskFile(making) as file:
            build(arrays, file, str(source), progress)
        return [len(grams) for grams in arrays.grams]


def write_model(model: NgramModel, out: str | Path, threads: int = 1) -> None:
    """Write a model to `out` in the form that its name says; there when whole. Raises ConfigError as `convert`."""
    wanted = form_to_write(out)
    with replacing(out) as making:
        if wanted == "arpa":
            _write(model, making, Path(out).name, threads, lambda phase, done, total: None)
            return
        plain = making.with_name(f"{making.name}.plain")
        try:
            with plain.open("wb") as file:
                write_arpa(model, file)
            with DiskFile(making) as mapped:
                build(read_arrays(plain), mapped, str(plain))
        finally:
            plain.unlink(missing_ok=True)


def _no_kenlm(source: str | Path) -> None:
    if form_of(source) == "kenlm":
        raise ConfigError(
            "KenLM's binary form cannot be taken apart", where=str(source), remedy="give the ARPA file it was made of"
        )


def read_model(source: str | Path, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """A model's n-grams as arrays, from the mapped form or an ARPA file. Raises MegahourError as `convert`."""
    _no_kenlm(source)
    return to_arrays(open_mapped(source), progress) if form_of(source) == "mapped" else read_arpa(source, progress)


def read_lm(artifact: Artifact) -> NgramModel:
    """The model of an *lm* artifact, in whichever form it is."""
    with lm_file(artifact) as path:
        return read_model(path)


def _write(model: NgramModel, making: Path, name: str, threads: int, progress: Progress) -> None:
    if not name.endswith(PACKED):
        with making.open("wb") as file:
            write_arpa(model, file, progress)
        return
    plain = making.with_name(f"{making.name}.plain")
    try:
        with plain.open("wb") as file:
            write_arpa(model, file, progress)
        progress("compress", 0, 1)
        pack(plain, making, name, threads)
        progress("compress", 1, 1)
    finally:
        plain.unlink(missing_ok=True)
