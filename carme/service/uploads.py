"""ONNX files that users send, read in a separate process: a hostile file cannot end the service."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from carme.errors import CarmeError, InputError, MissingError, UnavailableError
from carme.library.onnx import from_model
from carme.simulator.workload import Workload

T = TypeVar("T")
SECONDS = 30
TIMEOUT_SECONDS = 5.0
"""Longest wait for the previous call: a waiting request holds a thread of the server."""
_MAX_DEPTH = 20
"""Nested graphs (branches, loops) that are followed."""


class SandboxProcess:
    """A process for calls that may hang or crash: one call at a time. The first call starts it;
    a call that fails kills it, and the next one starts a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: tuple[BaseProcess, Connection] | None = None

    def call(self, function: Callable[..., T], *arguments: Any, seconds: int) -> T:
        """The function's result. UnavailableError while another call goes on, TimeoutError if this
        one takes too long, EOFError or OSError if the process dies."""
        if not self._lock.acquire(timeout=TIMEOUT_SECONDS):
            raise UnavailableError("another file is being read", "try again in a moment")
        try:
            pipe = self._pipe()
            pipe.send((seconds, function, arguments))
            if not pipe.poll(seconds):
                raise TimeoutError
            result: T = pipe.recv()
            return result
        except (OSError, EOFError):  # TimeoutError is an OSError
            self.close()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Kill the process."""
        if self._process:
            process, pipe = self._process
            self._process = None
            process.kill()
            process.join()
            pipe.close()

    def _pipe(self) -> Connection:
        if self._process is None:
            # Not fork: this process has threads, and a forked child may then hang.
            context = multiprocessing.get_context("spawn")
            own_end, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(other_end,), daemon=True)
            process.start()
            other_end.close()  # so that the pipe ends when the process does
            self._process = (process, own_end)
        return self._process[1]


def _serve(pipe: Connection) -> None:
    """In the process: answer calls until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    with suppress(EOFError, OSError):
        while True:
            seconds, function, arguments = pipe.recv()
            signal.alarm(seconds + 1)  # ends this process if the service is gone
            pipe.send(function(*arguments))
            signal.alarm(0)


def read_upload(sandbox: SandboxProcess, data: bytes, name: str) -> Workload:
    """The workload in the file; InputError if it is broken or refers to other files."""
    if not data:
        raise InputError("the body is empty", "send the ONNX file as the body")
    hint = "send a simpler graph"
    try:
        fields, message, problem_hint = sandbox.call(parse, data, name, seconds=SECONDS)
    except TimeoutError:
        raise InputError(f"the file cannot be read in {SECONDS} seconds", hint) from None
    except (EOFError, OSError):
        raise InputError("the process that read the file crashed", hint) from None
    if fields is None:
        raise InputError(message, problem_hint)
    return Workload.model_validate(fields)


def parse(data: bytes, name: str) -> tuple[dict[str, Any] | None, str, str]:
    """The workload's fields, or None with a message and a hint; called in the sandbox."""
    try:
        return _parse(data, name).model_dump(mode="json"), "", ""
    except CarmeError as error:
        return None, error.message, error.hint
    except Exception as error:  # the parser's own errors come from several packages
        return None, f"the file cannot be read: {type(error).__name__}", "is it a whole ONNX file?"


def _parse(data: bytes, name: str) -> Workload:
    try:
        import onnx
    except ModuleNotFoundError:
        raise MissingError(
            "this service reads no ONNX files", "describe the layers instead"
        ) from None
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise InputError("this is not an ONNX file", type(error).__name__) from error
    for tensor in _tensors(model.graph, 0):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InputError(
                "the file points to external data", "save it as one file, or without its weights"
            )
    workload = from_model(model, name or model.graph.name or "uploaded", "the file")
    return workload.model_copy(update={"sources": {"layers": "uploaded ONNX file"}})


def _tensors(graph: Any, depth: int) -> Iterator[Any]:
    if depth > _MAX_DEPTH:
        raise InputError(f"graphs are nested more than {_MAX_DEPTH} deep", "send a simpler graph")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _tensors(inner, depth + 1)
