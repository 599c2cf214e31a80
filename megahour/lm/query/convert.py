"""Conversion of models between file formats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.arpa.model import NgramModel, read_arpa, write_arpa
from megahour.lm.arpa.read import Progress, read_arrays, read_tokenizer
from megahour.lm.arpa.write import comment
from megahour.lm.kenlm.write import KenlmForm, write_kenlm
from megahour.lm.query.mapped import open_mapped
from megahour.lm.query.mapped_import import TOKENS, arrays_of, build, facts_of, to_arrays
from megahour.lm.query.model_files import form_to_write, lm_file, packing, refuse_kenlm, replacing

if TYPE_CHECKING:
    from megahour.core.store import Artifact


def convert(
    source: str | Path,
    out: str | Path,
    threads: int = 1,
    progress: Progress = lambda phase, done, total: None,
    to: KenlmForm | None = None,
) -> list[int]:
    """Convert the model `source` to `out`; return the numbers of n-grams by order.

    to: kenlm-probing or kenlm-trie; None: the format that the name of `out` implies. A mapped file of an earlier
    version becomes one with minimised states (see `states`).

    Raises
    ------
    ConfigError: no such file or directory, or a format that cannot be read or written. MegahourError: a damaged file.
    """
    given = refuse_kenlm(source)
    if to:
        with replacing(out) as making:
            return write_kenlm(read_model(source, progress), making, to, progress)
    wanted = form_to_write(out)
    with replacing(out) as making:
        if wanted == "arpa":
            tokens = open_mapped(source).facts.get(TOKENS, "") if given == "mapped" else read_tokenizer(source)
            model = read_model(source, progress)
            _write(model, making, Path(out).name, threads, progress, comment(tokens))
            return model.sizes
        facts = {}
        if given == "mapped":
            mapped = open_mapped(source)
            mapped.verify()
            if mapped.minimised:
                shutil.copyfile(source, making)
                progress("copy", 1, 1)
                return mapped.sizes
            arrays, facts = arrays_of(to_arrays(mapped, progress)), mapped.facts
        else:
            arrays = read_arrays(source, progress)
            facts = facts_of(arrays)
        with ThreadedFile(making) as file:
            build(arrays, file, str(source), progress, facts)
        return [len(grams) for grams in arrays.grams]


def write_model(model: NgramModel, out: str | Path) -> None:
    """Write a model in the format that the name `out` implies. The file appears when it is complete.

    Raises ConfigError as `convert`.
    """
    wanted = form_to_write(out)
    with replacing(out) as making:
        if wanted == "arpa":
            _write(model, making, Path(out).name, 1, lambda phase, done, total: None)
            return
        plain = making.with_name(f"{making.name}.plain")
        try:
            with plain.open("wb") as file:
                write_arpa(model, file)
            with ThreadedFile(making) as mapped:
                build(read_arrays(plain), mapped, str(plain))
        finally:
            plain.unlink(missing_ok=True)


def read_model(source: str | Path, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """Read a mapped or an ARPA file to arrays. Raises MegahourError as `convert`."""
    mapped = refuse_kenlm(source) == "mapped"
    return to_arrays(open_mapped(source), progress) if mapped else read_arpa(source, progress)


def read_lm(artifact: Artifact) -> NgramModel:
    """Read the model of an *lm* artifact, in any format."""
    with lm_file(artifact) as path:
        return read_model(path)


def _write(model: NgramModel, making: Path, name: str, threads: int, progress: Progress, head: bytes = b"") -> None:
    with packing(making, name, threads, progress) as path, path.open("wb") as file:
        file.write(head)
        write_arpa(model, file, progress)
