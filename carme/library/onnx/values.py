"""The values of an ONNX graph: their shapes, and which of them are constants that hold weights."""

from __future__ import annotations

from collections import ChainMap
from math import prod
from typing import Any

Shape = tuple[int, ...]

_QUANTIZED = frozenset({"INT4", "UINT4", "INT8", "UINT8"})


class Values:
    """The values that the operators of a graph can read; those of the graphs around it, too.

    A constant is an initializer, or what operators make of constants alone, such as the cast or
    the transpose of a weight. Its parameters are counted once, wherever it is used.
    """

    def __init__(self, graph: Any, outer: Values | None = None, scope: str = "") -> None:
        import onnx

        self.scope = scope
        self._float_types = {
            number for name, number in onnx.TensorProto.DataType.items() if "FLOAT" in name
        } | {onnx.TensorProto.DOUBLE}
        self._quantized_types = {
            number for name, number in onnx.TensorProto.DataType.items() if name in _QUANTIZED
        }
        self._shapes: ChainMap[str, Shape] = outer._shapes.new_child() if outer else ChainMap()
        self._types: ChainMap[str, int] = outer._types.new_child() if outer else ChainMap()
        self._keys: ChainMap[str, str] = outer._keys.new_child() if outer else ChainMap()
        self._tensors: ChainMap[str, Any] = outer._tensors.new_child() if outer else ChainMap()
        self._sources: dict[str, tuple[str, ...]] = outer._sources if outer else {}
        self._sizes: dict[str, int] = outer._sizes if outer else {}
        self._counted: set[str] = outer._counted if outer else set()
        for value in (*graph.value_info, *graph.input, *graph.output):
            tensor = value.type.tensor_type
            self._types[value.name] = tensor.elem_type
            if tensor.HasField("shape"):
                dims = tensor.shape.dim
                if all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims):
                    self._shapes[value.name] = tuple(d.dim_value for d in dims)
        for tensor in graph.initializer:
            self._add_tensor(tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            self._shapes[sparse.values.name] = tuple(sparse.dims)
            self._add_root(sparse.values.name, prod(sparse.values.dims), sparse.values.data_type)

    def shape(self, name: str) -> Shape | None:
        """Its shape, or None if that does not follow from the file."""
        return self._shapes.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self._keys

    def integer(self, name: str) -> int | None:
        """The value of a constant with one integer."""
        import onnx

        tensor = self._tensors.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        try:
            return int(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
        except (ValueError, TypeError, IndexError):
            return None

    def add_constant(self, node: Any) -> None:
        """Make the node's outputs constants: it reads constants only, or just shapes."""
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    self._add_tensor(node.output[0], attribute.t)
                elif attribute.HasField("sparse_tensor"):
                    values = attribute.sparse_tensor.values
                    self._add_root(node.output[0], prod(values.dims), values.data_type)
                else:  # a number or a list of numbers
                    self._add_root(node.output[0], 0, 0)
            return
        inputs = tuple(self._keys[name] for name in node.input if name in self._keys)
        if node.op_type == "DequantizeLinear":
            inputs = inputs[:1]  # scales and zero points are no weights
        for name in node.output:
            if node.op_type == "ConstantOfShape" or node.op_type.startswith("Random"):
                size = prod(self._shapes.get(name, (0,)))
                self._add_root(name, size, self._types.get(name, 0))
            elif name:
                self._add_root(name, 0, 0)
                self._sources[self._keys[name]] = inputs if node.op_type != "Shape" else ()

    def count_parameters(self, *names: str) -> int:
        """Elements of the weights behind these constants that no operator counted before."""
        waiting = [self._keys[name] for name in names if name in self._keys]
        total = 0
        while waiting:
            key = waiting.pop()
            if key not in self._counted:
                self._counted.add(key)
                total += self._sizes.get(key, 0)
                waiting.extend(self._sources.get(key, ()))
        return total

    def _add_tensor(self, name: str, tensor: Any) -> None:
        self._shapes[name] = tuple(tensor.dims)
        self._types[name] = tensor.data_type
        size = prod(tensor.dims)
        if size == 1:
            self._tensors[name] = tensor
        # A tensor without dimensions is a number of the formula (0.5, √64), not a weight.
        self._add_root(name, size if tensor.dims else 0, tensor.data_type)

    def _add_root(self, name: str, size: int, data_type: int) -> None:
        key = self._keys[name] = f"{self.scope}/{name}"
        trainable = data_type in self._float_types or data_type in self._quantized_types
        self._sizes[key] = size if trainable else 0
