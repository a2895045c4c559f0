"""Endpoints as data: method, path and models. Requests are validated with them, and the OpenAPI
document is made from them, so neither can differ from the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from carme import __version__
from carme.service.authentication import authenticate
from carme.service.problems import Problem, Refused

Handler = TypeVar("Handler", bound=Callable[..., Any])
_CONVERTERS = {"int": {"type": "integer", "minimum": 0}, "string": {"type": "string"}}
_PATH = re.compile(r"<(?:(\w+)(?:\([^)]*\))?:)?(\w+)>")


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of the API."""

    method: str
    path: str
    handler: Callable[..., Any]
    answer: type[BaseModel] | None
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    status: int
    also: dict[int, type[BaseModel] | None]
    media: str
    upload: bool

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0].rstrip(".")


class Api:
    """The endpoints in the order they were written."""

    def __init__(self) -> None:
        self.operations: list[Endpoint] = []

    def endpoint(
        self,
        method: str,
        path: str,
        *,
        answer: type[BaseModel] | None = None,
        body: type[BaseModel] | None = None,
        query: type[BaseModel] | None = None,
        status: int = 200,
        also: dict[int, type[BaseModel] | None] | None = None,
        media: str = "application/json",
        upload: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Register a function: it gets `who`, the path's values, and `body`, `query` if named."""

        def register(handler: Handler) -> Handler:
            self.operations.append(
                Endpoint(
                    method, path, handler, answer, body, query, status, also or {}, media, upload
                )
            )
            return handler

        return register

    def blueprint(self, prefix: str) -> Blueprint:
        """All of them for Flask."""
        api = Blueprint("api", __name__, url_prefix=prefix)
        for number, operation in enumerate(self.operations):
            name = f"{operation.handler.__name__}_{number}"
            api.add_url_rule(
                operation.path, name, _view(operation), methods=[operation.method],
                provide_automatic_options=False,
            )  # fmt: skip
        return api

    def document(self, server: str) -> dict[str, Any]:
        """The OpenAPI 3.1 document."""
        models = {m for o in self.operations for m in (o.answer, o.body, o.query, *o.also.values())}
        pairs = [
            (m, mode) for m in sorted((m for m in models if m), key=lambda m: m.__name__)
            for mode in ("validation", "serialization")
        ]  # fmt: skip
        names, schema = models_json_schema(
            [*pairs, (Problem, "serialization")],  # type: ignore[list-item]
            ref_template="#/components/schemas/{model}",
        )
        paths: dict[str, dict[str, Any]] = {}
        for operation in self.operations:
            path = _PATH.sub(r"{\2}", operation.path)
            paths.setdefault(path, {})[operation.method.lower()] = _described(operation, names)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Carme: what a training job takes and costs",
                "version": __version__,
                "description": "SI units: seconds, joules, watts, bytes. Every predicted figure "
                "has a 90 % interval. Errors are problem+json and say what to change.",
            },
            "servers": [{"url": server}],
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": schema.get("$defs", {}),
                "securitySchemes": {
                    "token": {
                        "type": "apiKey", "in": "header", "name": "Authorization",
                        "description": "`token TOKEN`, a token of the hub",
                    }
                },
            },
        }  # fmt: skip


def _view(operation: Endpoint) -> Callable[..., Response]:
    def view(**path: Any) -> Response:
        arguments: dict[str, Any] = {"who": authenticate(), **path}
        if operation.query:
            arguments["query"] = operation.query.model_validate(request.args.to_dict())
        if operation.body:
            if not request.is_json:
                raise Refused(415, "the body is not declared as JSON")
            arguments["body"] = operation.body.model_validate_json(request.get_data())
        return _response(operation, operation.handler(**arguments))

    return view


def _response(operation: Endpoint, answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    status = operation.status
    if isinstance(answer, tuple):
        answer, status = answer
    if answer is None:
        return Response(status=204)
    return Response(answer.model_dump_json(), status, mimetype="application/json")


def _described(operation: Endpoint, names: Any) -> dict[str, Any]:
    def content(model: type[BaseModel] | None, mode: str, media: str) -> dict[str, Any]:
        if model is None:
            return {} if media == "application/json" else {"content": {media: {"schema": {}}}}
        return {"content": {media: {"schema": names[model, mode]}}}

    parameters = [
        {"name": name, "in": "path", "required": True,
         "schema": _CONVERTERS[kind or "string"]}
        for kind, name in _PATH.findall(operation.path)
    ]  # fmt: skip
    if operation.query:
        schema = operation.query.model_json_schema()
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": part,
             "description": part.get("description", "")}
            for name, part in schema["properties"].items()
        ]  # fmt: skip
    statuses = {operation.status: operation.answer, **operation.also}
    responses: dict[str, Any] = {
        str(status): {"description": "as asked",
                      **content(model, "serialization", operation.media)}
        for status, model in statuses.items()
    }  # fmt: skip
    wrong = {401, 403, 404, 422, 429, 503, 400} | ({413, 415} if operation.body else set())
    if operation.upload:
        wrong |= {413, 415}
    for status in sorted(wrong):
        schema = names[Problem, "serialization"]
        responses[str(status)] = {
            "description": "a problem",
            "content": {"application/problem+json": {"schema": schema}},
        }
    text = (operation.handler.__doc__ or "").strip()
    description: dict[str, Any] = {
        "summary": operation.summary,
        "description": "\n".join(line.strip() for line in text.splitlines()[1:]).strip(),
        "operationId": operation.handler.__name__,
        "parameters": parameters,
        "responses": responses,
    }
    if operation.body:
        body = content(operation.body, "validation", "application/json")
        description["requestBody"] = {"required": True, **body}
    if operation.upload:
        raw = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
        description["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": raw},
        }
    return description
