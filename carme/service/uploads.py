"""ONNX files that users send, read in the sandbox process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from carme.errors import CarmeError, InputError, MissingError
from carme.library.onnx import from_model
from carme.library.onnx.graph import nodes_below, subgraphs
from carme.service.sandbox_process import SandboxProcess
from carme.simulator.workload import Workload

SECONDS = 30
MEMORY_BYTES = 2**30
"""For reading a small file, which can describe a huge graph; a larger one takes more."""
COPIES = 10
"""Copies of a file and its graph that reading makes."""


def read_upload(
    sandbox: SandboxProcess, data: bytes, name: str, dimensions: dict[str, int]
) -> Workload:
    """The workload in the file; InputError if it is broken or refers to other files."""
    if not data:
        raise InputError("the body is empty", "send the ONNX file as the body")
    hint = "send a simpler graph"
    try:
        fields, message, problem_hint = sandbox.call(
            parse,
            data,
            name,
            dimensions,
            seconds=SECONDS,
            memory_bytes=MEMORY_BYTES + COPIES * len(data),
        )
    except TimeoutError:
        raise InputError(f"the file cannot be read in {SECONDS} seconds", hint) from None
    except (EOFError, OSError):
        raise InputError("the process that read the file crashed", hint) from None
    if fields is None:
        raise InputError(message, problem_hint)
    return Workload.model_validate(fields)


def parse(
    data: bytes, name: str, dimensions: dict[str, int]
) -> tuple[dict[str, Any] | None, str, str]:
    """The workload's fields, or None with a message and a hint; called in the sandbox."""
    try:
        return _parse(data, name, dimensions).model_dump(mode="json"), "", ""
    except CarmeError as error:
        return None, error.message, error.hint
    except Exception as error:  # the parser's own errors come from several packages
        return None, f"the file cannot be read: {type(error).__name__}", "is it a whole ONNX file?"


def _parse(data: bytes, name: str, dimensions: dict[str, int]) -> Workload:
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
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    for tensor in (*_graph_tensors(model.graph), *_node_tensors(nodes)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InputError(
                "the file points to external data", "save it as one file, or without its weights"
            )
    name = name or model.graph.name or "uploaded"
    workload = from_model(model, name, "the file", dimensions)
    return workload.model_copy(update={"sources": {"layers": "uploaded ONNX file"}})


def _graph_tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _node_tensors(nodes: Any) -> Iterator[Any]:
    """Tensors in the attributes of these nodes and of those in nested graphs."""
    for node in nodes_below(nodes):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in subgraphs(node).values():
            yield from _graph_tensors(graph)
