"""`{carme-catalogue}`: bundled hardware and workloads with the sources of their figures."""

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from carme import library

FIND = {
    "gpus": library.gpu,
    "links": library.link,
    "nodes": library.node,
    "storage": library.storage,
    "clusters": library.cluster,
    "workloads": library.workload,
}


class Catalogue(SphinxDirective):
    """A definition list of one kind of bundled thing."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_lines(self.arguments[0])))


def _lines(kind: str) -> Iterator[str]:
    for name in library.names(kind):
        thing: Any = FIND[kind](name)
        yield f"`{name}`"
        yield f": {thing.title}."
        for figure, source in thing.sources.items():
            yield f"  *{figure.replace('_', ' ')}*: {source.rstrip('.')}."
        yield ""


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("carme-catalogue", Catalogue)
    return {"parallel_read_safe": True}
