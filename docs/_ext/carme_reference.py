"""`{carme-config}`: the reference of carme.toml from the models that read it."""

import json
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from carme.config import Config, Section
from carme.config.commands import explanations


class ConfigReference(SphinxDirective):
    """A section per table of carme.toml with a definition per key."""

    def run(self) -> list[nodes.Node]:
        text = "\n".join(_lines(Config(), ""))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _lines(section: Section, prefix: str) -> Any:
    values = section.model_dump(mode="json")
    texts = explanations(type(section))
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield ""
            title = f"[{prefix}{name}]"
            yield f"## {title}"
            yield ""
            yield (type(value).__doc__ or "").strip()
            yield ""
            yield from _lines(value, f"{prefix}{name}.")
        else:
            is_set = values[name] is not None
            default = json.dumps(values[name], ensure_ascii=False) if is_set else "not set"
            yield f"`{name}` = `{default}`"
            yield f": {texts.get(name, 'No further explanation.')}"
            yield ""


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("carme-config", ConfigReference)
    return {"parallel_read_safe": True}
