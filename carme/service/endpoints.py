"""Endpoints as data. Method, path and the handler's type hints validate requests and make the
OpenAPI document, so neither can differ from the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from flask import Blueprint, Response, request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from carme import __version__
from carme.service.authentication import authenticate
from carme.service.context import current_context
from carme.service.hub_client import Caller
from carme.service.problems import HttpProblem, Problem
from carme.service.wsgi import CHUNK_BYTES

API_PATH = "/api/v1"
"""Below the path of the service."""
Handler = TypeVar("Handler", bound=Callable[..., Any])
Model = type[BaseModel] | None
_CONVERTERS = {"int": {"type": "integer", "minimum": 0}, "string": {"type": "string"}}
_PATH = re.compile(r"<(?:(\w+)(?:\([^)]*\))?:)?(\w+)>")
_FILE = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of the API. The handler gets the values in the path and, if it names them,
    `caller`, `body` and `query`; it returns the answer, or (answer, status)."""

    method: str
    path: str
    handler: Callable[..., Any]
    answer: Model
    body: Model
    query: Model
    status: int
    also: dict[int, Model] = field(default_factory=dict)
    media: str = "application/json"
    upload: bool = False

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0].rstrip(".")

    def respond(self, **arguments: Any) -> Response:
        """The response to the current request; `arguments` are the values in its path."""
        caller = authenticate()
        place = current_context().requests.enter(caller.name)
        try:
            response = self._answer(caller, arguments)
        except BaseException:
            place.leave()
            raise
        if response.is_sequence and (response.calculate_content_length() or 0) > CHUNK_BYTES:
            response.call_on_close(place.leave)  # it lies in memory until it is sent
        else:
            place.leave()
        return response

    def _answer(self, caller: Caller, arguments: dict[str, Any]) -> Response:
        if "caller" in self.handler.__annotations__:
            arguments["caller"] = caller
        if self.query:
            arguments["query"] = self.query.model_validate(request.args.to_dict())
        if self.body:
            if not request.is_json:
                raise HttpProblem(415, "the body is not declared as JSON")
            arguments["body"] = self.body.model_validate_json(request.get_data())
        answer, status = self.handler(**arguments), self.status
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, tuple):
            answer, status = answer
        if answer is None:
            return Response(status=204)
        return Response(answer.model_dump_json(), status, mimetype="application/json")

    def description(self, names: Any) -> dict[str, Any]:
        """The endpoint in the OpenAPI document; `names` refers to the schemas of models."""
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _CONVERTERS[kind or "string"]}
            for kind, name in _PATH.findall(self.path)
        ]
        if self.query:
            parameters += [
                {"name": name, "in": "query", "required": False, "schema": schema,
                 "description": schema.get("description", "")}
                for name, schema in self.query.model_json_schema()["properties"].items()
            ]  # fmt: skip
        responses: dict[str, Any] = {}
        for status, model in {self.status: self.answer, **self.also}.items():
            responses[str(status)] = {"description": "Success"}
            if model or self.media != "application/json":
                schema = names[model, "serialization"] if model else {}
                responses[str(status)]["content"] = {self.media: {"schema": schema}}
        problem = {"application/problem+json": {"schema": names[Problem, "serialization"]}}
        too_large = {413, 415} if self.body or self.upload else set()
        for status in sorted({400, 401, 403, 404, 422, 429, 503} | too_large):
            responses[str(status)] = {"description": "Problem", "content": problem}
        text = (self.handler.__doc__ or "").strip()
        description: dict[str, Any] = {
            "summary": self.summary,
            "description": "\n".join(line.strip() for line in text.splitlines()[1:]).strip(),
            "operationId": self.handler.__name__,
            "parameters": parameters,
            "responses": responses,
        }
        if self.body:
            content = {"application/json": {"schema": names[self.body, "validation"]}}
            description["requestBody"] = {"required": True, "content": content}
        if self.upload:
            content = {"application/octet-stream": _FILE}
            description["requestBody"] = {"required": True, "content": content}
        return description


class Api:
    """The endpoints of a module, or of several parts together, in the order they were written."""

    def __init__(self, *parts: Api) -> None:
        self.operations: list[Endpoint] = [
            operation for part in parts for operation in part.operations
        ]

    def endpoint(
        self, method: str, path: str, status: int = 200, answer: Model = None, **more: Any
    ) -> Callable[[Handler], Handler]:
        """Register a handler. The models of body, query and answer are those of its type hints;
        `more` sets other fields of Endpoint."""

        def register(handler: Handler) -> Handler:
            hints = get_type_hints(handler)
            result, code = hints["return"], status
            if result is type(None):
                result, code = None, 204
            elif answer or not issubclass(result, BaseModel):
                result = answer
            self.operations.append(
                Endpoint(
                    method=method,
                    path=path,
                    handler=handler,
                    answer=result,
                    body=hints.get("body"),
                    query=hints.get("query"),
                    status=code,
                    **more,
                )
            )
            return handler

        return register

    def blueprint(self) -> Blueprint:
        """All of them for Flask."""
        api = Blueprint("api", __name__)
        for number, operation in enumerate(self.operations):
            name = f"{operation.handler.__name__}_{number}"
            api.add_url_rule(
                operation.path, name, operation.respond, methods=[operation.method],
                provide_automatic_options=False,
            )  # fmt: skip
        return api

    def document(self, server: str) -> dict[str, Any]:
        """The OpenAPI 3.1 document; `server` is the path that all addresses begin with."""
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
            paths.setdefault(path, {})[operation.method.lower()] = operation.description(names)
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
