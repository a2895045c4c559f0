"""Why a request is refused: a message for each field."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Problems = dict[str, str]
"""Field to message; the message at the empty name belongs to no field."""
Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], raw: Mapping[str, Any]) -> tuple[Model | None, Problems]:
    """The request in `raw`, or what is wrong with which field."""
    try:
        return model.model_validate(dict(raw)), {}
    except ValidationError as error:
        problems: Problems = {}
        unknown = []
        for item in error.errors(include_url=False, include_input=False):
            name = str(item["loc"][0]) if item["loc"] else ""
            if item["type"] == "extra_forbidden":
                unknown.append(repr(name[:40]))
            else:
                problems[name if name in model.model_fields else ""] = _message(item)
        if unknown:
            names = ", ".join(model.model_fields)
            problems[""] = f"unknown option {', '.join(unknown[:10])}; known are {names}"
        return None, problems


def _message(item: Any) -> str:
    if item["type"] == "string_pattern_mismatch":
        return "this is not a name of one of the choices"
    text = str(item["msg"]).removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def labels(model: type[BaseModel]) -> dict[str, str]:
    """Field to the label that people see."""
    return {name: field.title or name for name, field in model.model_fields.items()}


def summary(problems: Problems, model: type[BaseModel]) -> str:
    """All problems in one line, for REST clients and the log."""
    names = labels(model)
    return "; ".join(
        f"{names.get(name, name)}: {text}" if name else text for name, text in problems.items()
    )


def listed(problems: Problems) -> list[dict[str, str]]:
    """The problems one by one, for REST clients."""
    return [{"field": name, "message": text} for name, text in problems.items()]
