"""Names the extra that installs a missing package: `torch is not installed: pip install "megahour[train]"`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from megahour.core.errors import ConfigError

EXTRAS = {
    **dict.fromkeys(("av", "scipy", "soundfile", "soxr"), "audio"),
    **dict.fromkeys(("num2words", "py3langid"), "text"),
    **dict.fromkeys(("safetensors", "sentencepiece", "torch"), "train"),
    **dict.fromkeys(("kaldi_decoder", "kaldifst"), "decode"),
    "espeakng_loader": "generate",
    **dict.fromkeys(("pyworld", "pesq", "pystoi"), "tts"),
    **dict.fromkeys(("librosa", "speechmos"), "mos"),
    "aiohttp": "http",
    "s3fs": "s3",
    "pyspark": "spark",
    "ray": "ray",
    "onnxruntime": "onnx",
    "onnx": "export",
    "sherpa_onnx": "dev",
    "kenlm": "kenlm",
    "tokenizers": "tokenizers",
    "transformers": "huggingface",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "prometheus_client": "metrics",
}
"""Top-level modules of the optional packages, and the extra of pyproject.toml that installs each."""


class MissingPackage(ConfigError):
    """An optional package is not installed. The message is one line without a location, wherever it happened."""

    def __str__(self) -> str:
        return self.message


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "megahour[{extra}]"'


def missing(error: BaseException) -> MissingPackage | None:
    """The MissingPackage for a failed import of an optional package; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return MissingPackage(f"{module} is not installed: {install(EXTRAS[module])}")


@contextmanager
def needing(*extras: str, install_as: str) -> Iterator[None]:
    """Name all that is lacking of `extras` at once where an import fails; else it would be one package after the other.

    install_as: the extra that brings them all. Raises MissingPackage; other errors pass through.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if missing(error) is None:
            raise
        first = str(error.name).partition(".")[0]
        lacking = [name for name, of in EXTRAS.items() if name == first or (of in extras and find_spec(name) is None)]
        wanted = list(dict.fromkeys(EXTRAS[name] for name in lacking))
        brought = [install_as] if len(set(wanted) & set(extras)) > 1 else []
        wanted = brought + [each for each in wanted if not brought or each not in extras]
        verb = "is" if len(lacking) == 1 else "are"
        raise MissingPackage(f"{', '.join(lacking)} {verb} not installed: {install(','.join(wanted))}") from error
