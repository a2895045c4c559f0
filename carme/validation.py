"""Explaining pydantic's validation errors to people: the one place where they become text."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def explain(error: ValidationError, *, root: str = "file", with_values: bool = True) -> list[str]:
    """One line for each problem: the field, what is wrong with it, and the wrong value.

    `root` stands for the field where the problem is in the whole. Values are left out without
    `with_values`, since they may be long or secret.
    """
    lines = []
    for problem in error.errors(include_url=False):
        has_value = with_values and problem["type"] not in {"missing", "value_error"}
        value = f", not {problem['input']!r}" if has_value else ""
        lines.append(f"{field_path(problem['loc']) or root}: {message(problem)}{value}")
    return lines


def explain_first(error: ValidationError, *, root: str = "request") -> str:
    """The first problem in one line, without its value."""
    return explain(error, root=root, with_values=False)[0]


def field_path(location: Sequence[int | str]) -> str:
    """A field's place, such as `session.presets.0.name`."""
    return ".".join(str(part) for part in location)


def message(problem: Any) -> str:
    """What is wrong, for use after a colon; `problem` is one of `ValidationError.errors()`."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
