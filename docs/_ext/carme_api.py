"""`{carme-api}`: the reference of the service's API from its OpenAPI document."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from carme.service.app import make_api
from carme.service.endpoints import API_PATH

NO_DESCRIPTION = "As its name says."


class ApiReference(SphinxDirective):
    """A section per address, then one per model."""

    def run(self) -> list[nodes.Node]:
        document = make_api().document(API_PATH)
        text = "\n".join([*_addresses(document), *_models(document)])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _addresses(document: dict[str, Any]) -> Iterator[str]:
    yield "## Addresses"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"\n### {method.upper()} {path}\n"
            yield f"{operation['summary']}. {operation['description']}\n"
            for parameter in operation["parameters"]:
                description = parameter.get("description") or NO_DESCRIPTION
                kind = _kind(parameter["schema"])
                yield f"`{parameter['name']}` ({parameter['in']}, {kind})\n: {description}\n"
            body = operation.get("requestBody", {}).get("content", {})
            for media, content in body.items():
                yield f"Body: {_kind(content['schema'])} as `{media}`.\n"
            for status, response in operation["responses"].items():
                for media, content in response.get("content", {}).items():
                    if media != "application/problem+json":
                        yield f"{status}: {_kind(content['schema'])} as `{media}`.\n"


def _models(document: dict[str, Any]) -> Iterator[str]:
    """A section per request model, with its fields."""
    yield "\n## Models\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        if name.endswith("-Output") or "properties" not in schema:
            continue
        yield f"\n### {name.removesuffix('-Input')}\n"
        yield _plain(schema.get("description", "")) + "\n"
        for field, field_schema in schema["properties"].items():
            description = _plain(field_schema.get("description", "")) or NO_DESCRIPTION
            yield f"`{field}` ({_kind(field_schema)})\n: {description}\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return re.sub(r"-(Input|Output)$", "", schema["$ref"].rsplit("/", 1)[1])
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return " or ".join(dict.fromkeys(_kind(option) for option in schema[keyword]))
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "const" in schema:
        return str(schema["const"])
    limits = [
        f"{sign} {schema[name]:g}"
        for name, sign in (
            ("minimum", "≥"), ("exclusiveMinimum", ">"),
            ("maximum", "≤"), ("exclusiveMaximum", "<"),
        )
        if name in schema
    ]  # fmt: skip
    return " ".join([kind, *limits])


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("carme-api", ApiReference)
    return {"parallel_read_safe": True}
