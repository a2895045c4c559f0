"""Configuration files of the services, one source for `carme up` and for Ansible.

Plain Jinja with Ansible's own settings, so that both render the same text.
"""

from importlib.resources import files
from typing import Any

import jinja2

PROMETHEUS_RULES = ("recording.yml", "alerts.yml")
_RUNBOOKS = "docs/runbooks/"
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


def prometheus_rules(name: str, runbooks_url: str = "") -> str:
    """A rules file; its alerts link to the site's copy of the runbooks, if it has one."""
    text = (files("carme_monitoring") / "prometheus/rules" / name).read_text(encoding="utf-8")
    if runbooks_url:
        lines = text.splitlines(keepends=True)
        text = "".join(
            line.replace(_RUNBOOKS, f"{runbooks_url.rstrip('/')}/").replace(".md", ".html")
            if "runbook_url:" in line
            else line
            for line in lines
        )
    return text
