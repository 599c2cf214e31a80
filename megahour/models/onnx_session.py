"""ONNX graphs in onnxruntime, with bounds on memory and time for files from outside.

A graph is a program. One of a few hundred bytes can ask for all memory, or loop for ever, so what comes from outside
runs `bounded`: its tensors have a share of memory, and each run has a time limit.
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
"""Of all bounded graphs of a process together, and at most half of the machine's memory."""
RUN_S, AUDIO_TIMES = 60.0, 10.0
"""A run may take this many seconds, and beside them this many times the length of its audio."""
FATAL = 4  # onnxruntime writes errors to stderr beside raising them


def open_session(data: bytes, *, threads: int = 1, device: str = "cpu", bounded: bool = False) -> Any:
    """The `onnxruntime.InferenceSession` of a graph, whose weights must be inside `data`.

    Raises ConfigError: onnxruntime is missing; and its own classes, which share no base: it cannot read the graph.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("ONNX models need onnxruntime", remedy=install("onnx")) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = max(1, threads), 1
    options.log_severity_level = FATAL
    # Weights in other files would be looked for in the current folder, where no checksum covers them.
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
    except Exception as error:  # onnxruntime raises classes of its own that share no base
        what = f"onnxruntime cannot read the model: {in_a_line(error)}"
        raise StoreError(what, where=where, remedy="get the model again, in one file with its weights") from error


@cache
def _bound_memory() -> None:
    """onnxruntime knows one bound a process, set before the first session that keeps to it."""
    import onnxruntime

    most = min(MAX_TENSOR_BYTES, psutil.virtual_memory().total // 2)
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(most, -1, -1, -1))


@contextmanager
def limited_run(audio_s: float = 0.0) -> Iterator[Any]:
    """Options of a run that ends with an error when it takes more than `RUN_S` and `AUDIO_TIMES` of `audio_s`."""
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
    """What onnxruntime says, without where in its sources."""
    return " ".join(str(error).split()).rpartition("Stream*) ")[2][:500]


class GraphFacts(NamedTuple):
    """inputs: axes of the float ones, numbers or names. lengths: names of the integer ones with one axis. notes: the
    metadata that its makers left."""

    inputs: dict[str, list[Any]]
    lengths: list[str]
    notes: dict[str, str]


def graph_facts(data: bytes, *, where: str) -> GraphFacts:
    """What a graph says of itself. Raises as `read_session`."""
    session = read_session(data, where=where)
    inputs = session.get_inputs()
    floats = {i.name: list(i.shape) for i in inputs if "float" in i.type}
    lengths = [i.name for i in inputs if "int" in i.type and len(i.shape) == 1]
    return GraphFacts(floats, lengths, dict(session.get_modelmeta().custom_metadata_map))
