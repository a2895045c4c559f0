"""An ONNX file as a workload: its operators, shapes and parameters become layers.

Only the graph is read. Weights are never loaded, and files that tensors point to outside are
never opened: the sizes in the graph are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from carme.errors import InputError, MissingError
from carme.simulator.layers import (
    Convolution,
    Dense,
    Elementwise,
    Embedding,
    Lstm,
    Product,
)
from carme.simulator.workload import Dataset, Workload

MAX_BYTES = 2 * 2**30
"""Also the limit of protocol buffers."""
MAX_NODES = 200_000
MAX_PASSES = 100
"""Passes over unsorted operators; a file in reverse order would take hours."""

_FREE = frozenset(
    """
    Constant ConstantOfShape Identity Reshape Flatten Squeeze Unsqueeze Shape Size Cast Range
    NonZero Loop If Dropout
    """.split()  # noqa: SIM905  # a hundred lines otherwise
)
_ELEMENTWISE = frozenset(
    """
    Abs Add And ArgMax ArgMin AveragePool Ceil Clip Concat Cos CumSum DepthToSpace Div Elu Equal
    Erf Exp Expand Floor Gelu GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual
    GroupNormalization HardSigmoid HardSwish InstanceNormalization LRN LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization Max MaxPool Mean Min Mul Neg Not
    OneHot Or PRelu Pad Pow RMSNormalization Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum
    Relu Resize ScatterND Selu Sigmoid Sign Sin Slice Softmax Softplus SpaceToDepth Split Sqrt
    Sub Sum Tanh Tile TopK Transpose Trilu Upsample Where BatchNormalization
    """.split()  # noqa: SIM905  # a hundred lines otherwise
)
_TWICE = frozenset(
    """
    BatchNormalization LayerNormalization InstanceNormalization GroupNormalization Softmax
    LogSoftmax RMSNormalization
    """.split()  # noqa: SIM905  # a hundred lines otherwise
)
_IN_PLACE = frozenset({"Relu", "Clip", "Add", "Sum"})


def read_onnx(path: Path) -> Workload:
    """The workload in an ONNX file; a sample is what the graph takes with a batch of 1."""
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
    return from_model(model, path.stem, str(path))


def from_model(model: Any, name: str, source: str) -> Workload:
    """The workload in a loaded model."""
    import onnx

    graph = model.graph
    if not graph.node:
        raise InputError(f"{source}: no operators in it", "is it truncated, or not ONNX?")
    if len(graph.node) > MAX_NODES:
        raise InputError(f"{source}: {len(graph.node):,} operators", f"at most {MAX_NODES:,}")
    _check_order(graph, source)
    # A batch of 1 where the file leaves the first dimension open; 1 for other open ones, too.
    for value in graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if not dimension.HasField("dim_value") or dimension.dim_value <= 0:
                dimension.dim_value = 1
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:
        raise InputError(f"{source}: shapes do not fit together: {str(error)[:200]}") from error
    reader = _Reader(graph)
    for node in graph.node:
        reader.read(node)
    if not reader.layers:
        raise InputError(f"{source}: no operator of known size in it", "give fixed input shapes")
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._")
    inputs = sum(prod(reader.shape(i.name)) for i in graph.input if i.name not in reader.weights)
    return Workload(
        name=plain or "onnx",
        title=graph.name or name,
        layers=tuple(reader.layers),
        dataset=Dataset(name="declared: set --samples", samples=1_000_000, input_elements=inputs),
        unknown_operators=tuple(sorted(reader.unknown)),
        sources={"layers": source},
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


class _Reader:
    """Collects layers operator by operator."""

    def __init__(self, graph: Any) -> None:
        self.weights = {i.name: tuple(i.dims) for i in graph.initializer}
        self.shapes = {
            v.name: tuple(max(d.dim_value, 1) for d in v.type.tensor_type.shape.dim)
            for v in (*graph.value_info, *graph.input, *graph.output)
        }
        self.layers: list[Any] = []
        self.unknown: set[str] = set()
        self._counted: set[str] = set()
        self._special: dict[str, Callable[[Any], Any]] = {
            "Conv": self._convolution,
            "ConvTranspose": self._transposed,
            "Gemm": self._product,
            "MatMul": self._product,
            "LSTM": self._recurrent,
            "GRU": self._recurrent,
            "RNN": self._recurrent,
            "Gather": self._gather,
        }

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.get(name) or self.shapes.get(name) or (1,)

    def read(self, node: Any) -> None:
        """Add the operator's layer, if it costs anything."""
        if node.op_type in _FREE:
            return
        special = self._special.get(node.op_type)
        layer = special(node) if special else self._elementwise(node)
        if layer is not None:
            self.layers.append(layer)

    def _name(self, node: Any) -> str:
        return str(node.name or node.op_type)

    def _parameters(self, node: Any) -> int:
        """Elements of the operator's weights, each tensor counted once."""
        names = [n for n in node.input if n in self.weights and n not in self._counted]
        self._counted.update(names)
        return sum(prod(self.weights[n]) for n in names)

    def _elementwise(self, node: Any) -> Any:
        if node.op_type not in _ELEMENTWISE:
            self.unknown.add(node.op_type)
        inputs = sum(prod(self.shape(n)) for n in node.input if n and n not in self.weights)
        outputs = sum(prod(self.shape(n)) for n in node.output if n)
        return Elementwise(
            kind="elementwise",
            name=self._name(node),
            elements=max(inputs, 1),
            outputs=max(outputs, 1),
            parameters=self._parameters(node),
            passes=2 if node.op_type in _TWICE else 1,
            in_place=node.op_type in _IN_PLACE,
        )

    def _convolution(self, node: Any) -> Any:
        weight, output = self.shape(node.input[1]), self.shape(node.output[0])
        groups = _attribute(node, "group", 1)
        if len(weight) < 3 or len(output) < 3:
            return self._elementwise(node)
        strides = _attribute(node, "strides", [1])
        return Convolution(
            kind="convolution",
            name=self._name(node),
            channels=weight[1] * groups,
            filters=weight[0],
            kernel=weight[2:],
            output=output[2:],
            groups=groups,
            stride=max(strides),
        )

    def _transposed(self, node: Any) -> Any:
        """Each input position makes a window of outputs: a 1x1 convolution to all of them."""
        weight, data = self.shape(node.input[1]), self.shape(node.input[0])
        if len(weight) < 3 or len(data) < 3:
            return self._elementwise(node)
        return Convolution(
            kind="convolution",
            name=self._name(node),
            channels=weight[0],
            filters=prod(weight[1:]),
            kernel=(1,) * len(data[2:]),
            output=data[2:],
        )

    def _product(self, node: Any) -> Any:
        left, right = self.shape(node.input[0]), self.shape(node.input[1])
        output = self.shape(node.output[0])
        flip_left, flip_right = _attribute(node, "transA", 0), _attribute(node, "transB", 0)
        depth = left[-2] if flip_left and len(left) > 1 else left[-1]
        columns = right[-2] if flip_right and len(right) > 1 else right[-1]
        if node.input[1] in self.weights:
            shared = node.input[1] in self._counted
            self._counted.add(node.input[1])
            return Dense(
                kind="dense",
                name=self._name(node),
                inputs=depth,
                outputs=columns,
                positions=max(prod(output) // columns, 1),
                shared=shared,
            )
        rows = output[-2] if len(output) > 1 else 1
        return Product(
            kind="product",
            name=self._name(node),
            rows=rows,
            columns=columns,
            depth=depth,
            count=max(prod(output) // (rows * columns), 1),
        )

    def _recurrent(self, node: Any) -> Any:
        data, weight = self.shape(node.input[0]), self.shape(node.input[1])
        hidden = _attribute(node, "hidden_size", 0) or self.shape(node.input[2])[-1]
        return Lstm(
            kind="lstm",
            name=self._name(node),
            inputs=weight[-1],
            hidden=hidden,
            steps=data[0],
            directions=2 if weight[0] == 2 else 1,
        )

    def _gather(self, node: Any) -> Any:
        table = self.weights.get(node.input[0])
        if table is None or len(table) != 2:
            return self._elementwise(node)
        lookups = max(prod(self.shape(node.output[0])) // table[1], 1)
        if node.input[0] in self._counted:
            return self._elementwise(node)
        self._counted.add(node.input[0])
        return Embedding(
            kind="embedding",
            name=self._name(node),
            entries=table[0],
            width=table[1],
            lookups=lookups,
        )


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) if isinstance(default, list) else attribute.i
    return default
