"""`{carme-catalogue}`: bundled hardware and workloads with the sources of their figures;
`{carme-fields}`: the fields of a model, from its own docstrings."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from carme import library

LOADERS = {
    "gpus": library.gpu,
    "links": library.link,
    "nodes": library.node,
    "storage": library.storage,
    "clusters": library.cluster,
    "workloads": library.workload,
}


class Catalogue(SphinxDirective):
    """A definition list of the bundled entries of one kind."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_lines(self.arguments[0])))


def _lines(kind: str) -> Iterator[str]:
    for name in library.names(kind):
        entry: Any = LOADERS[kind](name)
        yield f"`{name}`"
        yield f": {entry.title}."
        for figure, source in entry.sources.items():
            yield f"  *{figure.replace('_', ' ')}*: {source.rstrip('.')}."
        yield ""


class Fields(SphinxDirective):
    """A definition list of the fields of `module:Class`, without inherited ones."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        model = getattr(import_module(module), name)
        return self.parse_text_to_nodes("\n".join(_fields(model)))


def _fields(model: Any) -> Iterator[str]:
    yield " ".join((model.__doc__ or "").split())
    yield ""
    inherited = {name for base in model.__mro__[1:] for name in getattr(base, "model_fields", ())}
    for name, field in model.model_fields.items():
        if name in inherited or name == "kind":
            continue
        default = "required" if field.is_required() else f"default `{field.default!r}`"
        description = " ".join((field.description or "").split())
        yield f"`{name}`"
        yield f": {default}. {description}"
        yield ""


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("carme-catalogue", Catalogue)
    app.add_directive("carme-fields", Fields)
    return {"parallel_read_safe": True}
