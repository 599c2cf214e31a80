"""`megahour doctor`: checks this machine, and names the command that installs what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util

from megahour.core.extras import EXTRAS, install

CORE = ("numpy", "numba", "pyarrow", "fsspec", "pydantic", "yaml", "click", "rich", "psutil")
EXTRA_FOR = {
    "audio": "recordings, alignment, features, reports with sound",
    "text": "numbers and dates of transcripts as words, in several languages",
    "train": "training, and every stage that runs a model",
    "decode": "decoding with a language model",
    "generate": "speech from espeak-ng: the demo",
    "tts": "training voices and judging them",
    "mos": "the MOS that DNSMOS predicts",
    "http": "files of web servers, and megahour listen",
    "s3": "artifacts on S3",
    "spark": "the Spark engine",
    "ray": "the Ray engine",
    "onnx": "aligners from ONNX files",
    "export": "trained models as ONNX bundles",
    "kenlm": "models in KenLM's binary format",
    "tokenizers": "tokens of Hugging Face's tokenizer.json",
    "huggingface": "aligners from Hugging Face checkpoints",
    "tensorboard": "training curves in TensorBoard",
    "mlflow": "training curves in MLflow",
    "metrics": "metrics for Prometheus",
}
DISTRIBUTIONS = {"yaml": "PyYAML", "mlflow": "mlflow-skinny"}  # where it differs from the module's name
JAVA = 17


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    ok: bool
    required: bool
    detail: str


def examine() -> list[Finding]:
    """All findings, the required ones first."""
    version = ".".join(map(str, sys.version_info[:3]))
    findings = [Finding("python", sys.version_info >= (3, 11), True, f"{version} (3.11 or newer is needed)")]
    for package in CORE:
        ok = util.find_spec(package) is not None
        findings.append(Finding(package, ok, True, _version(package) if ok else "pip install megahour"))
    findings += [_extra(extra, what) for extra, what in EXTRA_FOR.items()]
    findings += [_gpus(), _java(), _chromium(), _machine()]
    return findings


def java_version() -> str | None:
    """The first line of `java -version`, or None without a working Java."""
    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin") if "JAVA_HOME" in os.environ else None
    java = java or shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stderr or done.stdout).splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def browser() -> str | None:
    """Path of a headless-capable Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _extra(extra: str, what: str) -> Finding:
    packages = [package for package, of in EXTRAS.items() if of == extra]
    lacking = [package for package in packages if util.find_spec(package) is None]
    if lacking:
        return Finding(f"[{extra}]", False, False, f"{what}: {install(extra)} ({', '.join(lacking)})")
    return Finding(f"[{extra}]", True, False, ", ".join(f"{package} {_version(package)}" for package in packages))


def java_is_new_enough(version: str | None) -> bool:
    """Whether the first line of `java -version` names Java 17 or newer, which Spark 4 needs."""
    match = re.search(r'version "(\d+)', version or "")
    return match is not None and int(match[1]) >= JAVA


def _java() -> Finding:
    version = java_version()
    ok = java_is_new_enough(version)
    remedy = f"install a Java {JAVA}+ runtime (Debian: apt install default-jre-headless), only for the Spark engine"
    return Finding("java", ok, False, str(version) if ok else f"{version}: {remedy}" if version else remedy)


def _gpus() -> Finding:
    """The GPUs that torch can use, or the reason why there are none."""
    if util.find_spec("torch") is None:
        return Finding("gpu", False, False, f"not checked, torch is missing: {install('train')}")
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Finding("gpu", True, False, f"{', '.join(names)} (torch {torch.__version__})")
    if torch.version.cuda is None and torch.version.hip is None:
        remedy = "this torch was built for CPUs only; docs/install.md has the index for GPUs"
        return Finding("gpu", False, False, f"torch {torch.__version__}: {remedy}")
    return Finding("gpu", False, False, "torch sees no GPU: is the driver installed, and CUDA_VISIBLE_DEVICES right?")


def _chromium() -> Finding:
    path = browser()
    return Finding("chromium", path is not None, False, path or "only for the report's tests: apt install chromium")


def _machine() -> Finding:
    import psutil

    memory = psutil.virtual_memory().total / 2**30
    free = shutil.disk_usage(".").free / 2**30
    ok = memory > 3.5 and free > 2
    detail = f"{os.cpu_count()} cores, {memory:.1f} GiB memory, {free:.0f} GiB free here (the demo needs 4 and 2)"
    return Finding("machine", ok, False, detail)


def _version(package: str) -> str:
    try:
        return metadata.version(DISTRIBUTIONS.get(package, package))
    except metadata.PackageNotFoundError:
        return "present"
