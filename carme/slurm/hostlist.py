"""Slurm's short form of node names, `gpu[01-03,07]`, to names and back."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product
from math import prod

from carme.errors import InputError

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")
MAX_NODES = 100_000  # more than any Slurm cluster has; a typing error must not fill the memory


def expand(text: str) -> tuple[str, ...]:
    """The names in `text`, in its order; InputError if it is not a host list."""
    names: list[str] = []
    rest = _ITEM.sub("", text)
    if rest.strip(", \t\r\n"):
        raise InputError(f"{text!r} is not a list of nodes", "write it like gpu[01-04],cpu1")
    for item in _ITEM.findall(text):
        names.extend(_expand_item(item, MAX_NODES - len(names)))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """The short form of `names`: sorted, without duplicates, numbers of one width as ranges."""
    items: list[str] = []
    groups: dict[tuple[str, str, int], set[int]] = {}
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match and len(match[2]) < 10:
            groups.setdefault((match[1], match[3], len(match[2])), set()).add(int(match[2]))
        else:
            items.append(name)
    for (prefix, suffix, width), numbers in groups.items():
        ranges = []
        # Consecutive numbers differ from their position by the same amount.
        for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
            run = [number for _, number in group]
            first, last = f"{run[0]:0{width}}", f"{run[-1]:0{width}}"
            ranges.append(first if first == last else f"{first}-{last}")
        is_single = len(ranges) == 1 and "-" not in ranges[0]
        inner = ranges[0] if is_single else f"[{','.join(ranges)}]"
        items.append(f"{prefix}{inner}{suffix}")
    return ",".join(sorted(items))


def parse_indices(text: str) -> tuple[int, ...]:
    """The numbers in `0-2,5`; ignores other parts."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match and len(part) < 20:
            first, last = int(match[1]), int(match[2] or match[1])
            numbers.extend(range(first, min(last, first + 4096) + 1))
    return tuple(numbers)


def _expand_item(item: str, room: int) -> list[str]:
    # Splitting on one group gives text, bracket, text, bracket, …, text.
    parts = _BRACKET.split(item)
    choices = [[part] if i % 2 == 0 else list(_numbers(part, room)) for i, part in enumerate(parts)]
    if prod(map(len, choices)) > room:
        raise InputError(f"{item!r} names more than {MAX_NODES} nodes")
    return ["".join(combination) for combination in product(*choices)]


def _numbers(inner: str, room: int) -> Iterator[str]:
    for part in inner.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            raise InputError(f"[{inner}] is not a range of nodes", "write it like [01-04,7]")
        first, last = match[1], match[2] or match[1]
        if len(first) > 10 or len(last) > 10 or int(last) - int(first) >= room:
            raise InputError(f"[{inner}] names more than {MAX_NODES} nodes")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"
