"""A prepared ONNX graph as layers, with branches and loops, and notes on what the layers leave
out or assume."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import ValidationError

from carme.errors import InputError
from carme.library.onnx.graph import attribute, subgraphs
from carme.library.onnx.operators import FREE, OperatorReader
from carme.library.onnx.values import Values
from carme.simulator.layers import Elementwise, Layer

REREADS = 8
"""How often operators of nested loops are read, in the mean."""
MAX_REPEATS = 1_000_000
"""Layers, every iteration of a loop counted."""


class GraphReader:
    """Collects the layers of a graph and of the graphs inside it."""

    def __init__(self, source: str, batch: int, operators: int) -> None:
        self.source = source
        self.batch = batch
        self.notes: dict[str, list[Layer]] = {}
        """What was assumed, with the layers that depend on it."""
        self.unknown: dict[str, list[Layer]] = {}
        """Layers of unknown operators, which are estimated, by type."""
        self.not_counted: Counter[str] = Counter()
        """Operators of unknown size, by type."""
        self._operators = 0
        self._most_operators = REREADS * operators

    def read(self, graph: Any, values: Values) -> list[Layer]:
        """The graph's layers. Raises InputError for products of unknown size."""
        operators = OperatorReader(values, self.batch, self.source)
        layers: list[Layer] = []
        for index, node in enumerate(graph.node):
            # Loops are read twice, so nested ones take exponential time.
            self._operators += 1
            if self._operators > self._most_operators:
                raise InputError(f"{self.source}: loops in loops in loops", "unroll the inner ones")
            inner = subgraphs(node)
            if inner:
                layers += self._read_nested(node, inner, values, f"{values.scope}/{index}")
            elif all(values.is_constant(name) or not name for name in node.input) or (
                node.op_type in ("Shape", "Size")
            ):
                values.add_constant(node)
            elif node.op_type not in FREE:
                layers += self._read_operator(node, operators)
        return layers

    def warnings(self, layers: list[Layer]) -> tuple[str, ...]:
        """Sentences on what was assumed or left out, each with its share."""
        if not (self.notes or self.unknown or self.not_counted):
            return ()
        total = _Work(layers)
        texts = [f"{text}: {_Work(part).share_of(total)}" for text, part in self.notes.items()]
        for operator, part in sorted(self.unknown.items()):
            name = f"operator {operator[:64]} (in {len(part)} places)"
            share = _Work(part).share_of(total)
            texts.append(f"{name} is unknown, and estimated from its tensors: {share}")
        if self.not_counted:
            names = ", ".join(sorted(self.not_counted)[:10])
            count = self.not_counted.total()
            texts.append(
                f"{count} of {self._operators} operators are not counted, because their shapes do"
                f" not follow from the file: {names}"
            )
        return tuple(texts)

    def _read_operator(self, node: Any, operators: OperatorReader) -> list[Layer]:
        try:
            layers = operators.read(node)
        except (ValidationError, IndexError, ValueError) as error:
            name = str(node.name or node.op_type)[:100]
            raise InputError(
                f"{self.source}: operator {name} ({node.op_type}) has no usable sizes",
                f"{type(error).__name__}: is the file complete?",
            ) from None
        if layers is None:
            self.not_counted[node.op_type[:64]] += 1
            return []
        if not operators.is_known(node):
            self.unknown.setdefault(node.op_type, []).extend(layers)
        return layers

    def _read_nested(
        self, node: Any, inner: dict[str, Any], values: Values, scope: str
    ) -> list[Layer]:
        name = str(node.name or node.op_type)[:100]

        def read(which: str) -> list[Layer]:
            return self.read(inner[which], Values(inner[which], values, f"{scope}.{which}"))

        if node.op_type == "If" and {"then_branch", "else_branch"} <= set(inner):
            branches = sorted((read("then_branch"), read("else_branch")), key=_Work.order)
            other_parameters = int(_Work(branches[0]).parameters)
            if other_parameters:  # they are held and reduced, whichever branch runs
                branches[1].append(
                    Elementwise(kind="elementwise", name=f"{name}: other branch", elements=1,
                                parameters=other_parameters)
                )  # fmt: skip
            self.notes[f"If {name}: the costlier branch is counted"] = branches[1]
            return branches[1]
        if node.op_type in ("Loop", "Scan") and "body" in inner:
            iterations = _iterations(node, values)
            if iterations is None:
                layers = read("body")
                self.notes[f"Loop {name}: its iterations are unknown, one is counted"] = layers
                return layers
            if iterations < 1:
                return []
            layers = read("body")
            # The other iterations use the same weights, which are counted now.
            if iterations > 1:
                again = read("body")
                if (iterations - 1) * sum(layer.repeat for layer in again) > MAX_REPEATS:
                    raise InputError(
                        f"{self.source}: {node.op_type} {name} runs {iterations:,} times",
                        f"at most {MAX_REPEATS:,} layers, every iteration counted",
                    )
                layers += [
                    layer.model_copy(update={"repeat": layer.repeat * (iterations - 1)})
                    for layer in again
                ]
            return layers
        layers = [layer for which in inner for layer in read(which)]
        self.unknown.setdefault(node.op_type, []).extend(layers)
        return layers


class _Work:
    """What layers compute, move and hold."""

    def __init__(self, layers: list[Layer]) -> None:
        costs = [layer.cost() for layer in layers]
        self.flops = sum(cost.forward_flops for cost in costs)
        self.elements = sum((c.inputs + c.outputs) * c.repeat * c.kernels for c in costs)
        self.parameters = sum(cost.parameters * cost.repeat for cost in costs)

    @staticmethod
    def order(layers: list[Layer]) -> tuple[float, float]:
        """Sorts lists of layers by their cost."""
        work = _Work(layers)
        return work.flops, work.elements

    def share_of(self, total: _Work) -> str:
        """`12 % of the flops, 1.5 % of the elements moved, 0 % of the parameters`."""
        parts = (
            (self.flops, total.flops, "flops"),
            (self.elements, total.elements, "elements moved"),
            (self.parameters, total.parameters, "parameters"),
        )
        return ", ".join(
            f"{100 * own / (all_ or 1):.3g} % of the {what}" for own, all_, what in parts
        )


def _iterations(node: Any, values: Values) -> int | None:
    """Iterations of a Loop with a constant count, or of a Scan over inputs of known length."""
    if node.op_type == "Loop":
        return values.integer(node.input[0]) if node.input else None
    count = attribute(node, "num_scan_inputs", 0)
    axes: list[int] = attribute(node, "scan_input_axes", [0]) or [0]
    shape = values.shape(node.input[-count]) if 0 < count <= len(node.input) else None
    if not shape or not -len(shape) <= axes[0] < len(shape):
        return None
    return shape[axes[0]]
