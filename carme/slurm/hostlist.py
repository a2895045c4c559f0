"""Slurm's short form of node names, `gpu[01-03,07]`, to names and back."""

import re
from collections.abc import Iterable, Iterator
from itertools import product

from carme.errors import InputError

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")
MAX_NODES = 100_000  # larger than any Slurm cluster; a typing error must not fill the memory


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
    """The short form of `names`: sorted, without doubles, numbers of one width as ranges."""
    plain: list[str] = []
    groups: dict[tuple[str, str, int], set[int]] = {}
    for name in sorted(set(names)):
        found = _NUMBERED.fullmatch(name)
        if found and len(found[2]) < 10:
            groups.setdefault((found[1], found[3], len(found[2])), set()).add(int(found[2]))
        else:
            plain.append(name)
    for (prefix, suffix, width), numbers in groups.items():
        ranges = [
            f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
            for first, last in _runs(sorted(numbers))
        ]
        single = len(ranges) == 1 and "-" not in ranges[0]
        inner = ranges[0] if single else f"[{','.join(ranges)}]"
        plain.append(f"{prefix}{inner}{suffix}")
    return ",".join(sorted(plain))


def parse_indices(text: str) -> tuple[int, ...]:
    """The numbers in `0-2,5`; whatever is not a number or range is left out."""
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found and len(part) < 20:
            first, last = int(found[1]), int(found[2] or found[1])
            numbers.extend(range(first, min(last, first + 4096) + 1))
    return tuple(numbers)


def _expand_item(item: str, room: int) -> list[str]:
    # Splitting on one group gives text, bracket, text, bracket, …, text.
    parts = _BRACKET.split(item)
    choices = [[part] if i % 2 == 0 else list(_numbers(part, room)) for i, part in enumerate(parts)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > room:
        raise InputError(f"{item!r} names more than {MAX_NODES} nodes")
    return ["".join(combination) for combination in product(*choices)]


def _numbers(inner: str, room: int) -> Iterator[str]:
    for part in inner.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise InputError(f"[{inner}] is not a range of nodes", "write it like [01-04,7]")
        first, last = found[1], found[2] or found[1]
        if len(first) > 10 or len(last) > 10 or int(last) - int(first) >= room:
            raise InputError(f"[{inner}] names more than {MAX_NODES} nodes")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
