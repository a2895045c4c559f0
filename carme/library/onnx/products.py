"""Matrix products of ONNX operators: the sizes of a product, from the shapes of its operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from carme.errors import InputError
from carme.library.onnx.values import Shape

MAX_EQUATION = 1000


@dataclass(frozen=True)
class ProductSizes:
    """`count` products of rows x depth and depth x columns."""

    count: int
    rows: int
    depth: int
    columns: int

    def turned(self) -> ProductSizes:
        """The same products with the operands transposed and exchanged."""
        return replace(self, rows=self.columns, columns=self.rows)


def matmul_sizes(left: Shape, right: Shape, where: str) -> ProductSizes:
    """Sizes of NumPy's matmul; vectors are matrices with one row or column."""
    if not left or not right:
        raise InputError(f"{where}: a product with a number", "products need matrices")
    left = left if len(left) > 1 else (1, *left)
    right = right if len(right) > 1 else (*right, 1)
    if left[-1] != right[-2]:
        raise InputError(
            f"{where}: shapes {left} and {right} do not fit together", "is the file complete?"
        )
    return ProductSizes(
        count=prod(_broadcast(left[:-2], right[:-2], where)),
        rows=left[-2],
        depth=left[-1],
        columns=right[-1],
    )


def einsum_sizes(
    equation: str, operands: list[Shape], where: str
) -> list[tuple[ProductSizes, int]]:
    """Sizes of the products that an Einsum computes from left to right, each with the place of its
    right operand; its left operand is the first, then the result so far."""
    if len(equation) > MAX_EQUATION:
        raise InputError(f"{where}: an equation of {len(equation):,} characters", "use MatMul")
    left_side, _, result = equation.replace(" ", "").partition("->")
    terms = left_side.split(",")
    if len(terms) != len(operands):
        raise InputError(f"{where}: {len(terms)} terms for {len(operands)} operands")
    labels: list[list[str]] = []
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, operands, strict=True):
        names = _labels(term, len(shape), where)
        labels.append(names)
        for name, size in zip(names, shape, strict=True):
            if sizes.setdefault(name, size) != size and 1 not in (size, sizes[name]):
                raise InputError(f"{where}: sizes {sizes[name]} and {size} for {name!r}")
            sizes[name] = max(sizes[name], size)
    if "->" not in equation:
        result = "".join(c for c in sorted(set(left_side)) if left_side.count(c) == 1 and c != ",")
    dots = {name for names in labels for name in names if name.startswith(".")}
    kept_at_end = set(result.replace("...", "")) | (dots if "..." in result else set())

    products = []
    current = labels[0]
    for place in range(1, len(labels)):
        following = labels[place]
        kept = kept_at_end.union(*labels[place + 1 :])
        both = set(current) & set(following)
        shared = both & kept
        products.append(
            (
                ProductSizes(
                    count=prod(sizes[n] for n in shared),
                    rows=prod(sizes[n] for n in set(current) - both),
                    depth=prod(sizes[n] for n in both - shared),
                    columns=prod(sizes[n] for n in set(following) - both),
                ),
                place,
            )
        )
        current = sorted((set(current) | set(following)) & kept)
    return products


def _labels(term: str, rank: int, where: str) -> list[str]:
    """The label of each axis; the axes of an ellipsis are counted from the right."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise InputError(f"{where}: {term!r} does not fit an operand of {rank} dimensions")
    return [*before, *(f".{i}" for i in range(hidden, 0, -1)), *after]


def _broadcast(left: Shape, right: Shape, where: str) -> Shape:
    rank = max(len(left), len(right))
    left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    if any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
        raise InputError(f"{where}: shapes {left} and {right} do not fit together")
    return tuple(max(a, b) for a, b in zip(left, right, strict=True))
