"""An ONNX file as a workload: its operators, shapes and parameters become layers.

Only the graph is read. Weights are never loaded, and files that tensors point to outside are
never opened: the sizes in the graph are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from carme.errors import InputError, MissingError
from carme.library.onnx.graph import attribute, data_inputs, nodes_below, prepare
from carme.library.onnx.reader import GraphReader
from carme.library.onnx.values import Values
from carme.simulator.workload import MAX_WARNINGS, Dataset, Workload

MAX_BYTES = 2 * 2**30
"""Also the limit of protocol buffers."""


def read_onnx(path: Path, dimensions: Mapping[str, int] | None = None) -> Workload:
    """The workload in an ONNX file; a sample is what the graph takes with a batch of 1.

    `dimensions` are sizes of dimensions that the file leaves open, by name or as `input.axis`.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        raise MissingError(
            "reading ONNX files needs the Python package onnx", "pip install 'carme[onnx]'"
        ) from None
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path} has {size:,} bytes", f"at most {MAX_BYTES:,}")
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise MissingError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except InputError:
        raise
    except Exception as error:  # the parser's own errors come from several packages
        raise InputError(f"{path}: not an ONNX file", f"{type(error).__name__}") from error
    return from_model(model, path.stem, str(path), dimensions)


def from_model(
    model: Any, name: str, source: str, dimensions: Mapping[str, int] | None = None
) -> Workload:
    """The workload in a loaded model, which is changed on the way."""
    graph = prepare(model, source, dimensions or {})
    values = Values(graph)
    batch, batch_warnings = _fixed_batch(graph, values)
    reader = GraphReader(source, batch, sum(1 for _ in nodes_below(graph.node)))
    layers = reader.read(graph, values)
    if not layers:
        raise InputError(f"{source}: no operator of known size in it", "give fixed input shapes")
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._")
    inputs = sum(prod(values.shape(i.name) or ()) for i in data_inputs(graph))
    return Workload(
        name=plain or "onnx",
        title=graph.name or name,
        layers=tuple(layers),
        dataset=Dataset(
            name="declared: set --samples", samples=1_000_000, input_elements=inputs / batch
        ),
        unknown_operators=tuple(sorted(reader.unknown)),
        warnings=(*batch_warnings, *reader.warnings(layers))[:MAX_WARNINGS],
        sources={"layers": source},
    )


def _fixed_batch(graph: Any, values: Values) -> tuple[int, tuple[str, ...]]:
    """Samples that the file's fixed shapes hold, and what to say about it."""
    time_major = {
        node.input[0]
        for node in graph.node
        if node.op_type in ("LSTM", "GRU", "RNN")
        and node.input
        and not attribute(node, "layout", 0)
    }
    shapes = {i.name: values.shape(i.name) or () for i in data_inputs(graph)}
    sizes = {
        shape[1] if name in time_major and len(shape) > 2 else shape[0]
        for name, shape in shapes.items()
        if len(shape) > 1
    } - {0, 1}  # masks and positions that all samples share have one
    if len(sizes) > 1:
        text = ", ".join(str(size) for size in sorted(sizes))
        return 1, (f"the inputs' first dimensions differ ({text}): the file counts as one sample",)
    if not sizes:
        return 1, ()
    size = sizes.pop()
    outputs = [values.shape(o.name) or () for o in graph.output]
    if time_major & set(shapes) or all(shape[:1] == (size,) for shape in outputs):
        return size, (f"the file has a fixed batch of {size}: a sample is one of these {size}",)
    return 1, (
        f"the inputs' fixed first dimension of {size} counts as part of one sample, because the"
        " outputs do not have it",
    )
