"""A network written down layer by layer: it keeps the shape between layers. And its TOML file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

Layer = dict[str, Any]


@dataclass
class Network:
    """Layers so far, and the shape (channels, then the size in each dimension) that they leave."""

    channels: int
    size: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)
    repeat: int = 1
    norm: bool = True
    """Convolutions are followed by a normalisation unless they say otherwise."""

    @property
    def elements(self) -> int:
        """Of one sample between the layers."""
        return self.channels * prod(self.size)

    @contextmanager
    def times(self, count: int) -> Iterator[None]:
        """The layers inside run `count` times, one block after the other."""
        outer, self.repeat = self.repeat, self.repeat * count
        yield
        self.repeat = outer

    def add(self, kind: str, **fields: Any) -> None:
        """A layer as it stands in the file; a repeat of 1 is left out."""
        if self.repeat > 1:
            fields["repeat"] = self.repeat
        self.layers.append({"kind": kind, **fields})

    def conv(
        self,
        filters: int,
        kernel: int | tuple[int, ...] = 3,
        stride: int = 1,
        *,
        groups: int = 1,
        norm: bool | None = None,
        act: bool = True,
        valid: bool = False,
        size: tuple[int, ...] | None = None,
        channels: int | None = None,
        dilated: bool = False,
    ) -> Network:
        """A convolution, its normalisation and its activation; `valid` pads nothing."""
        kernels = (kernel,) * len(self.size) if isinstance(kernel, int) else kernel
        if size is None:
            inner = (n - k + 1 if valid else n for n, k in zip(self.size, kernels, strict=True))
            size = tuple(-(-n // stride) for n in inner)
        fields: Layer = {
            "channels": channels or self.channels,
            "filters": filters,
            "kernel": list(kernels),
            "output": list(size),
        }
        if groups > 1:
            fields["groups"] = groups
        if stride > 1:
            fields["stride"] = stride
        if dilated:
            fields["dilated"] = True
        self.add("convolution", **fields)
        self.channels, self.size = filters, size
        if self.norm if norm is None else norm:
            self.normalise()
        if act:
            self.activate()
        return self

    def normalise(self) -> None:
        """A normalisation with a scale and a shift for each channel."""
        parameters = 2 * self.channels
        self.add("elementwise", elements=self.elements, parameters=parameters, passes=2)

    def activate(self) -> None:
        """An activation in place."""
        self.add("elementwise", elements=self.elements, in_place=True)

    def pool(self, stride: int = 2, *, size: tuple[int, ...] | None = None) -> Network:
        """A pooling to size / stride, rounded up."""
        before = self.elements
        self.size = size or tuple(-(-n // stride) for n in self.size)
        self.add("elementwise", elements=before, outputs=self.elements)
        return self

    def join(self, *, inputs: int = 2) -> Network:
        """The sum of as many branches as there are inputs."""
        outputs = self.elements
        self.add("elementwise", elements=inputs * outputs, outputs=outputs, in_place=True)
        return self

    def copy(self, elements: int | None = None) -> Network:
        """A concatenation or shuffle: every element is read and written."""
        self.add("elementwise", elements=elements or self.elements, in_place=True)
        return self

    def up(self, filters: int, factor: int = 2) -> Network:
        """A transposed convolution by `factor`: one product for each output position, with one of
        the weights of its window."""
        self.size = tuple(n * factor for n in self.size)
        kernel = [1] * len(self.size)
        window = self.channels * factor ** len(self.size)
        self.add(
            "convolution",
            channels=self.channels,
            filters=filters,
            kernel=kernel,
            output=list(self.size),
            parameters=window * filters + filters,
        )
        self.channels = filters
        return self

    def resize(self, factor: int = 2) -> Network:
        """An interpolation by `factor`."""
        before = self.elements
        self.size = tuple(n * factor for n in self.size)
        self.add("elementwise", elements=before, outputs=self.elements, in_place=True)
        return self

    def squeeze_excite(self, reduced: int) -> Network:
        """Channels weighted by a small network over their means."""
        before = self.elements
        self.add("elementwise", elements=before, outputs=self.channels, in_place=True)
        self.add("dense", inputs=self.channels, outputs=reduced)
        self.add("dense", inputs=reduced, outputs=self.channels)
        self.add("elementwise", elements=before)
        return self

    def mean(self) -> Network:
        """The mean over all positions."""
        before, self.size = self.elements, ()
        self.add("elementwise", elements=before, outputs=self.channels)
        return self

    def dense(self, outputs: int, *, positions: int = 1, act: bool = False) -> Network:
        """A fully connected layer on everything that the last layer left, or on each position."""
        inputs = self.channels if positions > 1 else self.elements
        fields = {"positions": positions} if positions > 1 else {}
        self.add("dense", inputs=inputs, outputs=outputs, **fields)
        self.channels, self.size = outputs, (positions,) if positions > 1 else ()
        if act:
            self.activate()
        return self

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Layers beside the main line: the shape is as before after them."""
        channels, size = self.channels, self.size
        yield
        self.channels, self.size = channels, size


def inline(value: Any) -> str:
    """A TOML value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def toml(title: str, layers: list[Layer], **fields: Any) -> str:
    """The file of a workload: plain fields, tables, then one layer a line."""
    plain = {k: v for k, v in fields.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in fields.items() if isinstance(v, dict)}
    lines = ["# Written by tests/generators/workloads: change it there.", f'title = "{title}"']
    lines += [f"{k} = {inline(v)}" for k, v in plain.items()]
    lines += ["layers = [", *(f"    {inline(layer)}," for layer in layers), "]"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{k} = {inline(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"
