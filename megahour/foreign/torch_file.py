"""Reads files of tensors: of `torch.save`, where no pickled code runs and none unpacks to more than it says, and the
safetensors files that imports are stored in."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

from megahour.core.errors import StoreError

if TYPE_CHECKING:
    import torch

SMALL_BYTES, MOST_RATIO = 1 << 20, 20  # compressed weights take at least half of their size, and text a tenth


def read_tensors(data: bytes, what: str, url: str, remedy: str = "get the model again") -> dict[str, torch.Tensor]:
    """The tensors of a file of `torch.save`, by name. torch's restricted unpickler makes them, and runs no code.

    Raises StoreError: the file is damaged, or holds anything else, or its tensors are larger than the file.
    """
    import torch

    check_unpacked(data, what, url)
    try:
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may raise anything
        said = f"{what} does not hold tensors only: {str(error).splitlines()[0] if str(error) else error!r}"
        again = "copy it again; files that need a full unpickler are not supported"
        raise StoreError(said, where=url, remedy=again) from None
    if not isinstance(tensors, dict) or not all(_is_weight(*item) for item in tensors.items()):
        raise StoreError(f"{what} is not a map from names to dense tensors", where=url, remedy=remedy)
    if (claimed := sum(each.numel() * each.element_size() for each in tensors.values())) > 2 * len(data):
        said = f"{what} has {len(data)} bytes, but its tensors claim {claimed}"  # expanded from few numbers
        raise StoreError(said, where=url, remedy="get the model again")
    # safetensors refuses tensors that share memory, so each is copied.
    return {name: each.clone(memory_format=torch.contiguous_format) for name, each in tensors.items()}


def stored_tensors(data: bytes, where: str) -> dict[str, torch.Tensor]:
    """The tensors of a model artifact's safetensors file, by name. Raises StoreError: they cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise StoreError(f"the weights cannot be read: {error}", where=where, remedy="copy them again") from None


def check_ratio(unpacked: int, stored: int, what: str, where: str) -> None:
    """Check that `what`, a file of weights or settings in an archive, is not stored in far fewer bytes than it has.

    Raises StoreError: it is, and could fill the memory.
    """
    if unpacked > SMALL_BYTES + MOST_RATIO * stored:
        message = f"{what} has {stored} bytes, but would unpack to {unpacked}"
        raise StoreError(message, where=where, remedy="get the model again")


def check_unpacked(data: bytes, what: str, where: str, *, spare: int = 0) -> None:
    """Check that a zip file of torch unpacks to at most twice its size and `spare` bytes: weights are stored as they
    are, and a compressed file could unpack to any size.

    Raises StoreError: it would unpack to more.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            claimed = sum(member.file_size for member in file.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):  # torch names the damage, or reads its older format
        return
    if claimed > 2 * len(data) + spare:
        message = f"{what} has {len(data)} bytes, but would unpack to {claimed}"
        raise StoreError(message, where=where, remedy="get the model again")


def _is_weight(name: object, value: object) -> bool:
    import torch

    return isinstance(name, str) and isinstance(value, torch.Tensor) and value.layout is torch.strided
