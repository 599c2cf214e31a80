"""Models of ESPnet and NeMo in compressed archives are read, or refused if damaged or too large unpacked."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from imported_aligners import imported

from megahour.core.errors import StoreError
from megahour.foreign.nemo import CONFIG, WEIGHTS, _members

META = b"""files: {asr_model_file: ./exp/valid.pth}
yaml_files: {asr_train_config: exp/config.yaml}
"""


def stored(values: torch.Tensor) -> bytes:
    data = io.BytesIO()
    torch.save({"ctc.ctc_lo.weight": values}, data)
    return data.getvalue()


def espnet(path: Path, weights: bytes) -> Path:
    config = b"{encoder: conformer, token_list: [<blank>, a]}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in (("meta.yaml", META), ("exp/config.yaml", config), ("exp/valid.pth", weights)):
            packed.writestr(name, data)
    return path


def nemo(path: Path, weights: bytes) -> Path:
    """Compressed, as NeMo's files were until 2024."""
    with tarfile.open(path, "w:gz") as packed:
        for name, data in ((CONFIG, b"{encoder: {}, decoder: {}}"), (WEIGHTS, weights)):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return path


MAKERS = [espnet, nemo]


@pytest.mark.parametrize("make", MAKERS)
def test_weights_that_would_unpack_to_much_more_are_refused(tmp_path: Path, make: Any) -> None:
    """16 MB of such a file could become 16 GB in memory."""
    path = tmp_path / f"model.{'zip' if make is espnet else 'nemo'}"
    make(path, stored(torch.zeros(1 << 20)))
    with pytest.raises(StoreError, match=r"(valid\.pth|ckpt) has \d+ bytes, but would unpack to 419\d+"):
        imported(tmp_path / "none", model=path)


@pytest.mark.parametrize("make", MAKERS)
def test_damaged_compression_is_named(tmp_path: Path, make: Any) -> None:
    path = tmp_path / f"model.{'zip' if make is espnet else 'nemo'}"
    make(path, stored(torch.randint(0, 256, (1 << 18,)).float()))
    data = bytearray(path.read_bytes())
    data[100_000:120_000] = b"\xff" * 20_000
    path.write_bytes(data)
    with pytest.raises(StoreError, match="copy it again"):
        imported(tmp_path / "none", model=path)


def test_compressed_members_are_read(tmp_path: Path) -> None:
    weights = stored(torch.rand(1 << 16))
    path = nemo(tmp_path / "model.nemo", weights)
    assert gzip.decompress(path.read_bytes())
    assert _members(str(path))[WEIGHTS] == weights
