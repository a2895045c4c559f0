"""ONNX operators as layers: what each one computes, moves and holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from math import ceil, prod
from typing import Any

from carme.errors import InputError
from carme.library.onnx.graph import attribute
from carme.library.onnx.products import ProductSizes, einsum_sizes, matmul_sizes
from carme.library.onnx.values import Shape, Values
from carme.simulator.layers import (
    Attention,
    Convolution,
    Dense,
    Elementwise,
    Embedding,
    Layer,
    Lstm,
    Product,
)

FREE = frozenset(
    [
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Shape",
        "Size",
        "Dropout",
        "NonZero",
        "Range",
    ]
)
_ELEMENTWISE = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization
    BitShift Cast CastLike Ceil Celu Clip Compress Concat ConstantOfShape Cos Cosh CumSum
    DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp Expand EyeLike Floor
    GatherElements GatherND Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
    GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax
    InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Less LessOrEqual Log
    LogSoftmax LpNormalization LpPool Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul
    Neg Not OneHot Or PRelu Pad Pow QLinearAdd QuantizeLinear RMSNormalization RandomNormalLike
    RandomUniformLike Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign
    RotaryEmbedding Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Slice
    Softmax Softplus Softsign SpaceToDepth Split Sqrt Sub Sum Swish Tan Tanh TensorScatter
    ThresholdedRelu Tile TopK Transpose Trilu Upsample Where Xor
    """.split()  # noqa: SIM905  # a hundred lines otherwise
)
_TWICE = frozenset(
    """
    BatchNormalization LayerNormalization InstanceNormalization GroupNormalization Softmax
    LogSoftmax RMSNormalization
    """.split()  # noqa: SIM905  # a hundred lines otherwise
)
_IN_PLACE = frozenset({"Relu", "Clip", "Add", "Sum"})
_SETTINGS = frozenset(
    [
        "Clip",
        "Compress",
        "Expand",
        "OneHot",
        "Pad",
        "Resize",
        "Slice",
        "Tile",
        "TopK",
        "Trilu",
        "Upsample",
        "QuantizeLinear",
    ]
)
"""Operators whose constants are settings, not weights."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class OperatorReader:
    """Layers of single operators; `batch` samples pass the graph at once."""

    def __init__(self, values: Values, batch: int, source: str) -> None:
        self.values = values
        self.batch = batch
        self.source = source
        self._readers: dict[str, Callable[[Any], list[Layer] | None]] = {
            "Attention": self._attention,
            "Conv": self._convolution,
            "ConvInteger": self._convolution,
            "ConvTranspose": self._transposed_convolution,
            "DeformConv": self._convolution,
            "Einsum": self._einsum,
            "GRU": self._recurrent,
            "Gather": self._gather,
            "Gemm": self._gemm,
            "GroupQueryAttention": self._attention,
            "LSTM": self._recurrent,
            "MatMul": self._matmul,
            "MatMulInteger": self._matmul,
            "MultiHeadAttention": self._attention,
            "QLinearConv": self._convolution,
            "QLinearMatMul": self._matmul,
            "RNN": self._recurrent,
        }

    def is_known(self, node: Any) -> bool:
        """Whether the operator's cost follows from its definition."""
        if node.domain not in ("", "ai.onnx"):
            return node.op_type in ("Attention", "GroupQueryAttention", "MultiHeadAttention")
        return node.op_type in self._readers or node.op_type in _ELEMENTWISE

    def read(self, node: Any) -> list[Layer] | None:
        """Its layers; None if it only moves elements and their number is unknown. Raises
        InputError if it computes products of unknown size."""
        reader = self._readers.get(node.op_type) if self.is_known(node) else None
        return reader(node) if reader else self._elementwise(node)

    def _where(self, node: Any) -> str:
        return f"{self.source}: operator {str(node.name or node.op_type)[:100]}"

    def _shape(self, node: Any, name: str) -> Shape:
        """The shape of an operand of a product. Raises InputError if it is unknown."""
        shape = self.values.shape(name)
        if shape is None:
            raise InputError(
                f"{self._where(node)} ({node.op_type}): the shape of {name[:100]!r} is unknown",
                "save the file with fixed shapes, or after onnx.shape_inference",
            )
        return shape

    def _per_sample(self, size: int) -> int:
        return max(ceil(size / self.batch), 1)

    def _elementwise(self, node: Any, parameters: int | None = None) -> list[Layer] | None:
        inputs = [n for n in node.input if n and not self.values.is_constant(n)]
        shapes = {n: self.values.shape(n) for n in (*inputs, *node.output) if n}
        known = {name: prod(shape) for name, shape in shapes.items() if shape is not None}
        if not any(name in known for name in shapes):
            return None
        read = sum(known.get(n, 0) for n in inputs)
        written = sum(known.get(n, 0) for n in node.output) or read
        if parameters is None:
            weights = node.input
            if node.op_type == "BatchNormalization":
                weights = node.input[:3]  # then follow the running mean and variance
            elif node.op_type in _SETTINGS:
                weights = node.input[:1]
            parameters = self.values.count_parameters(*weights)
        return [
            Elementwise(
                kind="elementwise",
                name=str(node.name or node.op_type),
                elements=self._per_sample(read or written),
                outputs=self._per_sample(written),
                parameters=parameters,
                passes=2 if node.op_type in _TWICE else 1,
                in_place=node.op_type in _IN_PLACE,
            )
        ]

    def _convolution(self, node: Any) -> list[Layer]:
        place, bias = (3, 8) if node.op_type == "QLinearConv" else (1, 2)
        if node.op_type == "DeformConv":
            bias = 3
        weights = [*node.input[place : place + 1]]
        if node.op_type != "ConvInteger":
            weights += node.input[bias : bias + 1]
        weight, output = self._shape(node, weights[0]), self._shape(node, node.output[0])
        groups = max(attribute(node, "group", 1), 1)
        if len(weight) < 3 or len(output) != len(weight):
            raise InputError(f"{self._where(node)}: weights {weight} for an output {output}")
        strides = attribute(node, "strides", [1]) or [1]
        # More images than samples, such as the frames of a video: they lengthen the output.
        images = self._per_sample(output[0])
        return [
            Convolution(
                kind="convolution",
                name=str(node.name),
                channels=weight[1] * groups,
                filters=weight[0],
                kernel=weight[2:],
                output=(output[2] * images, *output[3:]),
                groups=groups,
                stride=max(*strides, 1),
                dilated=max(attribute(node, "dilations", [1]) or [1]) > 1,
                parameters=self.values.count_parameters(*weights),
            )
        ]

    def _transposed_convolution(self, node: Any) -> list[Layer]:
        """Each input position makes a window of outputs: a 1x1 convolution to all of them."""
        weight, data = self._shape(node, node.input[1]), self._shape(node, node.input[0])
        if len(weight) < 3 or len(data) != len(weight):
            raise InputError(f"{self._where(node)}: weights {weight} for an input {data}")
        groups = max(attribute(node, "group", 1), 1)
        return [
            Convolution(
                kind="convolution",
                name=str(node.name),
                channels=weight[0],
                filters=prod(weight[1:]) * groups,
                kernel=(1,) * len(data[2:]),
                output=(data[2] * self._per_sample(data[0]), *data[3:]),
                groups=groups,
                parameters=self.values.count_parameters(*node.input[1:3]),
            )
        ]

    def _gemm(self, node: Any) -> list[Layer]:
        left, right = self._shape(node, node.input[0]), self._shape(node, node.input[1])
        left = left[::-1] if attribute(node, "transA", 0) else left
        right = right[::-1] if attribute(node, "transB", 0) else right
        sizes = matmul_sizes(left, right, self._where(node))
        return [self._product(node, sizes, node.input[0], node.input[1], *node.input[2:3])]

    def _matmul(self, node: Any) -> list[Layer]:
        place = 3 if node.op_type == "QLinearMatMul" else 1
        left, right = node.input[0], node.input[place]
        shapes = self._shape(node, left), self._shape(node, right)
        return [self._product(node, matmul_sizes(*shapes, self._where(node)), left, right)]

    def _einsum(self, node: Any) -> list[Layer]:
        equation = attribute(node, "equation", "")
        shapes = [self._shape(node, name) for name in node.input]
        products = einsum_sizes(equation, shapes, self._where(node))
        if not products:  # a transpose, a diagonal or a sum
            return self._elementwise(node) or []
        return [
            self._product(node, sizes, node.input[0] if place == 1 else "", node.input[place])
            for sizes, place in products
        ]

    def _product(self, node: Any, sizes: ProductSizes, left: str, right: str, *bias: str) -> Layer:
        """The layer of a product; the weights, if it has any, become its right operand."""
        if self.values.is_constant(left) and not self.values.is_constant(right):
            left, right, sizes = right, left, sizes.turned()
        name = str(node.name)
        if not self.values.is_constant(right):
            return Product(
                kind="product", name=name, rows=sizes.rows, columns=sizes.columns,
                depth=sizes.depth, count=self._per_sample(sizes.count),
            )  # fmt: skip
        parameters = self.values.count_parameters(right, *bias)
        copies = prod(self.values.shape(right) or ()) // max(sizes.depth * sizes.columns, 1)
        if copies <= 1:  # one matrix for all positions
            return Dense(
                kind="dense", name=name, inputs=sizes.depth, outputs=sizes.columns,
                positions=self._per_sample(sizes.rows * sizes.count), parameters=parameters,
            )  # fmt: skip
        return Product(
            kind="product", name=name, rows=self._per_sample(sizes.rows * sizes.count // copies),
            columns=sizes.columns, depth=sizes.depth, count=copies, parameters=parameters,
        )  # fmt: skip

    def _recurrent(self, node: Any) -> list[Layer]:
        data, weight = self._shape(node, node.input[0]), self._shape(node, node.input[1])
        hidden = attribute(node, "hidden_size", 0) or self._shape(node, node.input[2])[-1]
        if len(data) != 3 or len(weight) != 3:
            raise InputError(f"{self._where(node)}: weights {weight} for an input {data}")
        steps, sequences = data[:2] if not attribute(node, "layout", 0) else data[1::-1]
        weights = [*node.input[1:4], *node.input[7:8]]  # the others are states and lengths
        return [
            Lstm(
                kind="lstm",
                name=str(node.name or node.op_type),
                inputs=weight[-1],
                hidden=hidden,
                steps=steps * self._per_sample(sequences),
                directions=2 if weight[0] == 2 else 1,
                gates=_GATES[node.op_type],
                parameters=self.values.count_parameters(*weights),
            )
        ]

    def _attention(self, node: Any) -> list[Layer]:
        """Attention over given queries, keys and values; ONNX Runtime's `Attention` also projects
        its input to them."""
        name, query = str(node.name or node.op_type), self._shape(node, node.input[0])
        layers: list[Layer] = []
        heads = attribute(node, "q_num_heads", 0) or attribute(node, "num_heads", 0)
        if node.domain == "com.microsoft" and node.op_type == "Attention":
            inputs, columns = self._shape(node, node.input[1])
            positions = self._per_sample(prod(query[:-1]))
            layers.append(
                Dense(
                    kind="dense",
                    name=f"{name} projections",
                    inputs=inputs,
                    outputs=columns,
                    positions=positions,
                    parameters=self.values.count_parameters(*node.input[1:3]),
                )
            )
            query = key = value = (*query[:-1], columns // 3)
        else:
            key, value = (self._shape(node, node.input[place]) for place in (1, 2))
        if len(query) == 4:
            heads, width, value_width = query[1], query[3], value[-1]
        elif len(query) == 3 and heads > 0:
            width = query[-1] // heads
            value_heads = attribute(node, "kv_num_heads", 0) or heads
            value_width = value[-1] // value_heads
        else:
            raise InputError(f"{self._where(node)}: queries {query} with {heads} heads")
        rows, columns = query[-2], key[-2]
        if node.domain in ("", "ai.onnx") and len(node.input) > 4 and node.input[4]:
            columns += self._shape(node, node.input[4])[-2]  # keys of earlier positions
        sequences = self._per_sample(query[0])
        if rows == columns and width == value_width:
            shape = {"heads": heads * sequences, "width": width, "sequence": rows}
            return [*layers, Attention(kind="attention", name=name, **shape)]
        count = heads * sequences
        scores = ProductSizes(count, rows, width, columns)
        context = ProductSizes(count, rows, columns, value_width)
        return [
            *layers,
            Product(kind="product", name=f"{name} scores", **asdict(scores)),
            Elementwise(kind="elementwise", name=f"{name} softmax",
                        elements=max(count * rows * columns, 1), passes=2),
            Product(kind="product", name=f"{name} context", **asdict(context)),
        ]  # fmt: skip

    def _gather(self, node: Any) -> list[Layer] | None:
        table, output = self.values.shape(node.input[0]), self.values.shape(node.output[0])
        is_lookup = self.values.is_constant(node.input[0]) and attribute(node, "axis", 0) == 0
        if not is_lookup or output is None or table is None or len(table) != 2:
            return self._elementwise(node)
        return [
            Embedding(
                kind="embedding",
                name=str(node.name or node.op_type),
                entries=table[0],
                width=table[1],
                lookups=self._per_sample(prod(output) // max(table[1], 1)),
                parameters=self.values.count_parameters(node.input[0]),
            )
        ]
