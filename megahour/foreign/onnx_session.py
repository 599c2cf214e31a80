"""Runs ONNX graphs in onnxruntime, with limits on memory and time for untrusted files.

A graph is a program: a few hundred bytes can allocate all memory or loop for ever. Untrusted graphs therefore run
`bounded`: their tensors share a memory limit, and each run has a time limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import psutil

from megahour.core.errors import ConfigError, StoreError
from megahour.core.extras import install

MAX_TENSOR_BYTES = 8 << 30
"""Memory limit of all bounded graphs of a process together. Half of the machine's memory, if that is less."""
RUN_S, AUDIO_TIMES = 60.0, 10.0
"""Time limit of a run: RUN_S seconds plus AUDIO_TIMES times the length of its audio."""
FRONT_END = "megahour_front_end"
"""Metadata of an exported graph that says which log-mel frames it takes, as JSON."""
FATAL = 4  # log level: onnxruntime would also write the errors that it raises to stderr


def open_session(data: bytes, *, threads: int = 1, device: str = "cpu", bounded: bool = False) -> Any:
    """The `onnxruntime.InferenceSession` of a graph, whose weights must be inside `data`.

    Raises
    ------
    ConfigError: onnxruntime is missing. Exception: onnxruntime cannot read the graph; its classes share no base.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("ONNX models need onnxruntime", remedy=install("onnx")) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = max(1, threads), 1
    options.log_severity_level = FATAL
    # onnxruntime would look for external weights in the current folder, where no checksum covers them.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    if bounded:
        _bound_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
    providers = ["CPUExecutionProvider"] if device == "cpu" else ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return onnxruntime.InferenceSession(data, options, providers=providers)


def read_session(data: bytes, *, where: str, **options: Any) -> Any:
    """`open_session` of a user's file. Raises StoreError: onnxruntime cannot read it. ConfigError: it is missing."""
    try:
        return open_session(data, **options)
    except ConfigError:
        raise
    except Exception as error:  # onnxruntime's classes share no base
        what = f"onnxruntime cannot read the model: {in_a_line(error)}"
        raise StoreError(what, where=where, remedy="get the model again, in one file with its weights") from error


@cache
def _bound_memory() -> None:
    """Set the memory limit of bounded sessions. onnxruntime allows one per process, before the first such session."""
    import onnxruntime

    most = min(MAX_TENSOR_BYTES, psutil.virtual_memory().total // 2)
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(most, -1, -1, -1))


@contextmanager
def limited_run(audio_s: float = 0.0) -> Iterator[Any]:
    """Options of a run that fails after `RUN_S` + `AUDIO_TIMES` · `audio_s` seconds."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = FATAL
    timer = threading.Timer(RUN_S + AUDIO_TIMES * audio_s, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def in_a_line(error: Exception) -> str:
    """onnxruntime's message in one line, without the place in its sources."""
    return " ".join(str(error).split()).rpartition("Stream*) ")[2][:500]


class GraphFacts(NamedTuple):
    """Facts about an ONNX graph.

    inputs: axes (numbers or names) of each float input. lengths: names of the integer inputs with one axis. notes:
    metadata.
    """

    inputs: dict[str, list[Any]]
    lengths: list[str]
    notes: dict[str, str]


def graph_facts(data: bytes, *, where: str) -> GraphFacts:
    """Inputs and metadata of a graph. Raises as `read_session`."""
    session = read_session(data, where=where)
    inputs = session.get_inputs()
    floats = {i.name: list(i.shape) for i in inputs if "float" in i.type}
    lengths = [i.name for i in inputs if "int" in i.type and len(i.shape) == 1]
    return GraphFacts(floats, lengths, dict(session.get_modelmeta().custom_metadata_map))
