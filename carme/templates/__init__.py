"""Configuration files of the parts, one source for `carme up` and for Ansible.

Plain Jinja with Ansible's own settings, so that both render the same text.
"""

from typing import Any

import jinja2

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("carme", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 (configuration files, not HTML)
)


def render(template: str, **values: Any) -> str:
    """The text of `template` with `values`; a value that is missing is an error."""
    return _environment.get_template(template).render(values)
