"""Preparing an ONNX graph: its size is checked, functions are inlined, open dimensions get sizes,
and shapes are inferred."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from carme.errors import InputError

MAX_NODES = 200_000
"""Operators, with those of nested graphs and of every call of a function."""
MAX_PASSES = 100
"""Passes over unsorted operators; a file in reverse order would take hours."""
MAX_DEPTH = 20
"""Nested graphs (branches, loops) and calls of functions that are followed."""
MAX_FUNCTION_BYTES = 2**30
"""Bytes of all functions after inlining: every call copies the tensors of its function."""
_BATCH_NAME = re.compile(r"n|b|bs|.*batch.*", re.IGNORECASE)
_STANDARD_NAMES = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
"""ONNX Runtime's operators that compute what a standard one does, and an activation."""


def prepare(model: Any, source: str, dimensions: Mapping[str, int]) -> Any:
    """The model's graph, flat but for branches and loops, with all the shapes that follow from its
    inputs. Raises InputError for what is too large, has a cycle or leaves sizes open."""
    import onnx
    import onnx.inliner  # not imported by the package

    if not model.graph.node:
        raise InputError(f"{source}: no operators in it", "is it truncated, or not ONNX?")
    _check_size(model, source)
    _check_order(model.graph, source)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        _declare_foreign_operators(model)
        _set_dimensions(model.graph, dimensions, source)
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except InputError:
        raise
    except Exception as error:  # the library's errors come from several of its parts
        raise InputError(f"{source}: shapes do not fit together: {str(error)[:200]}") from error


def nodes_below(nodes: Any, depth: int = 0) -> Iterator[Any]:
    """The nodes and those of the graphs in their attributes. Raises InputError if nested deep."""
    if depth > MAX_DEPTH:
        raise InputError(f"graphs are nested more than {MAX_DEPTH} deep", "use a simpler graph")
    for node in nodes:
        yield node
        for graph in subgraphs(node).values():
            yield from nodes_below(graph.node, depth + 1)


def subgraphs(node: Any) -> dict[str, Any]:
    """The graphs in the node's attributes, by the attribute's name."""
    inner = {a.name: a.g for a in node.attribute if a.HasField("g")}
    for attribute in node.attribute:
        inner |= {f"{attribute.name}.{i}": graph for i, graph in enumerate(attribute.graphs)}
    return inner


def data_inputs(graph: Any) -> list[Any]:
    """The inputs that a sample fills; older files list their weights among the inputs, too."""
    initializers = {i.name for i in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def attribute(node: Any, name: str, default: Any) -> Any:
    """A number, a text or a list of numbers in the node's attributes, by the default's type."""
    for a in node.attribute:
        if a.name == name:
            if isinstance(default, list):
                return list(a.ints)
            return a.s.decode(errors="replace") if isinstance(default, str) else a.i
    return default


def _check_size(model: Any, source: str) -> None:
    """Check operators and bytes after inlining: calls of calls of calls grow exponentially."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}

    def size(nodes: Any, depth: int) -> tuple[int, int]:
        if depth > MAX_DEPTH:
            raise InputError(
                f"{source}: functions call each other more than {MAX_DEPTH} deep",
                "ONNX allows no recursion: inline the functions",
            )
        count, copied_bytes = 0, 0
        for node in nodes_below(nodes):
            key = (node.domain, node.op_type, node.overload)
            if (function := functions.get(key)) is None:
                count += 1
            else:
                if key not in sizes:
                    sizes[key] = size(function.node, depth + 1)
                count += sizes[key][0]
                copied_bytes += sizes[key][1] + function.ByteSize()
        return count, copied_bytes

    count, copied_bytes = size(model.graph.node, 0)
    if count > MAX_NODES:
        raise InputError(f"{source}: {count:,} operators", f"at most {MAX_NODES:,}")
    if copied_bytes > MAX_FUNCTION_BYTES:
        raise InputError(
            f"{source}: its functions have {copied_bytes:,} bytes, every call counted",
            f"at most {MAX_FUNCTION_BYTES:,}: keep tensors out of functions",
        )


def _check_order(graph: Any, source: str) -> None:
    """Check that inputs come from earlier operators, as ONNX requires; this rules out cycles."""
    available = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    available |= {i.values.name for i in graph.sparse_initializer}
    outputs = {output for node in graph.node for output in node.output}
    remaining = list(graph.node)
    passes = 0
    while remaining:
        passes += 1
        if passes > MAX_PASSES:
            raise InputError(
                f"{source}: its operators are not in a usable order",
                "ONNX requires them to be sorted",
            )
        unplaced = []
        for node in remaining:
            if all(name in available or name not in outputs for name in node.input):
                available.update(node.output)
            else:
                unplaced.append(node)
        if len(unplaced) == len(remaining):
            stuck = unplaced[0].name or unplaced[0].op_type
            raise InputError(
                f"{source}: the graph has a cycle through {stuck!r}", "ONNX graphs have none"
            )
        remaining = unplaced


def _declare_foreign_operators(model: Any) -> None:
    """Let shapes pass operators that ONNX does not know: the output like the first input. Without,
    no shape behind such an operator would be known. The reader names these operators."""
    import onnx

    foreign: dict[tuple[str, str], tuple[int, int]] = {}
    for node in nodes_below(model.graph.node):
        if node.op_type in _STANDARD_NAMES and node.domain == "com.microsoft":
            node.op_type, node.domain = _STANDARD_NAMES[node.op_type], ""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.input and not onnx.defs.has(node.op_type, domain=domain):
            key = (node.domain, node.op_type)
            inputs, outputs = foreign.get(key, (0, 0))
            foreign[key] = max(inputs, len(node.input)), max(outputs, len(node.output))
    identity_opset = onnx.helper.make_opsetid("", 17)
    imported = {opset.domain for opset in model.opset_import}
    for (domain, op_type), (inputs, outputs) in foreign.items():
        names = [f"output{i}" for i in range(outputs)]
        body = [onnx.helper.make_node("Identity", ["input0"], [name]) for name in names]
        model.functions.append(
            onnx.helper.make_function(
                domain, op_type, [f"input{i}" for i in range(inputs)], names, body, [identity_opset]
            )
        )
        if domain not in imported:
            imported.add(domain)
            model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    if foreign:
        model.ir_version = max(model.ir_version, 8)  # the first with functions


def _set_dimensions(graph: Any, dimensions: Mapping[str, int], source: str) -> None:
    """Give each open dimension its size: 1 for the batch, the caller's for others."""
    opened = []
    names = set()
    for value in data_inputs(graph):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            place = f"{value.name}.{axis}"
            names.add(place)
            if dimension.HasField("dim_value") and dimension.dim_value > 0:
                if place in dimensions:
                    dimension.dim_value = dimensions[place]
                continue
            opened.append((dimension.dim_param or place, place, axis, dimension))
    names |= {name for name, *_ in opened}
    if unknown := sorted(set(dimensions) - names):
        open_names = ", ".join(sorted({name for name, *_ in opened})[:10]) or "none"
        raise InputError(
            f"{source}: no dimension {', '.join(unknown)[:200]}", f"open dimensions: {open_names}"
        )
    has_named_batch = any(_BATCH_NAME.fullmatch(name) for name, *_ in opened)
    missing = []
    for name, place, axis, dimension in opened:
        is_batch = bool(_BATCH_NAME.fullmatch(name)) or (axis == 0 and not has_named_batch)
        size = dimensions.get(place, dimensions.get(name, 1 if is_batch else None))
        if size is None:
            missing.append(name)
        else:
            dimension.dim_value = size
    if missing:
        raise InputError(
            f"{source}: the file leaves sizes open: {', '.join(sorted(set(missing))[:10])}",
            "give each a size: --dimension NAME=SIZE, or dimensions=NAME=SIZE in the API's query",
        )
