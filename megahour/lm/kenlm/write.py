"""Writer of KenLM's binary files, version 5: header, vocabulary, tables, and the words, each followed by a NUL.

`kenlm.Model`, `query` and all programs built on KenLM read them like files of its `build_binary`. The layout is in
lm/binary_format.cc of kpu/kenlm.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.read import Progress
from megahour.lm.kenlm import probing, trie
from megahour.lm.kenlm.closed import closed

KenlmForm = Literal["kenlm-probing", "kenlm-trie"]
TYPES = {"kenlm-probing": (0, 0), "kenlm-trie": (2, 1)}  # KenLM's numbers of the form and its version
MAGIC = b"mmap lm http://kheafield.com/code format version 5\n\0"
_SANITY = struct.Struct("<56s3f3IQ")  # known numbers, by which KenLM recognises files of other architectures
_FIXED = struct.Struct("<B3xfIB3xI")


def write_kenlm(model: NgramModel, path: Path, form: KenlmForm, progress: Progress = lambda *_: None) -> list[int]:
    """Write a model; return the numbers of n-grams by order, those that `closed` adds included.

    Raises MegahourError: the model has unigrams only, which KenLM does not support, or two n-grams have the same hash.
    """
    if model.order < 2:
        remedy = "estimate it with --order 2 or more, or keep ARPA"
        raise MegahourError(
            "KenLM's binary formats need order 2 or more, the model has 1", where=str(path), remedy=remedy
        )
    words = [word.encode("utf-8", "surrogateescape") for word in model.vocabulary.words]
    levels = closed(model)
    sizes = [len(level) for level in levels]
    made = trie.tables(levels, words) if form == "kenlm-trie" else probing.tables(levels, words)
    spelled = [words[i] for i in trie.numbering(words)] if form == "kenlm-trie" else words
    with path.open("wb") as file:
        file.write(_header(form, sizes))
        try:
            for done, table in enumerate(made):
                file.write(table.view(np.uint8).data)
                progress("write", done, len(levels) + 2)
        except probing.SameKey as same:
            remedy = "use --to kenlm-trie, which does not hash n-grams"
            raise MegahourError(f"two {same.order}-grams have the same hash", where=str(path), remedy=remedy) from None
        file.write(b"".join(word + b"\0" for word in spelled))
    return sizes


def _header(form: KenlmForm, sizes: list[int]) -> bytes:
    kind, version = TYPES[form]
    sanity = _SANITY.pack(MAGIC, 0.0, 1.0, -0.5, 1, (1 << 32) - 1, 0, 1)
    fixed = _FIXED.pack(len(sizes), probing.MULTIPLIER, kind, True, version)
    header = sanity + fixed + struct.pack(f"<{len(sizes)}Q", *sizes)
    return header.ljust((len(header) + 7) // 8 * 8, b"\0")
