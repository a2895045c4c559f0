"""Explaining pydantic's validation errors to people: the one place where they become text."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError


def explain(
    error: ValidationError,
    *,
    root: str = "file",
    with_values: bool = True,
    model: type[BaseModel] | None = None,
) -> list[str]:
    """One line for each problem: the field, what is wrong with it, and the wrong value.

    `root` stands for the field where the problem is in the whole. Values are left out without
    `with_values`, since they may be long or secret. With `model`, the line for an unknown key
    lists the keys that the model has there.
    """
    lines = []
    for problem in error.errors(include_url=False):
        place, text, value = field_path(problem["loc"]) or root, message(problem), problem["input"]
        if model and problem["type"] == "extra_forbidden":
            text = f"no such key; allowed here: {', '.join(_keys_at(model, problem['loc'][:-1]))}"
        elif with_values and problem["type"] != "value_error" and not isinstance(value, dict):
            text += f", not {value!r}"
        lines.append(f"{place}: {text}" if place else text)
    return lines


def explain_first(error: ValidationError, *, root: str = "request") -> str:
    """The first problem in one line, without its value."""
    return explain(error, root=root, with_values=False)[0]


def explain_by_field(error: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """Field to message, for a form; unknown fields and the whole stand at the empty name."""
    messages: dict[str, str] = {}
    unknown = []
    for problem in error.errors(include_url=False, include_input=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "extra_forbidden":
            unknown.append(repr(name[:40]))
        elif problem["type"] == "string_pattern_mismatch":
            messages[name] = "this has characters that are not allowed here"
        else:
            messages[name if name in model.model_fields else ""] = message(problem)
    if unknown:
        names = ", ".join(model.model_fields)
        messages[""] = f"unknown option {', '.join(unknown[:10])}; known are {names}"
    return messages


def field_path(location: Sequence[int | str]) -> str:
    """A field's place, such as `session.presets.0.name`."""
    return ".".join(str(part) for part in location)


def message(problem: Any) -> str:
    """What is wrong, for use after a colon; `problem` is one of `ValidationError.errors()`."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _keys_at(model: Any, path: Sequence[int | str]) -> list[str]:
    """The keys allowed in the table at `path`; positions in lists are skipped."""
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(inner) for inner in getattr(annotation, "__args__", ()))
    return next((model for model in models if model), None)
