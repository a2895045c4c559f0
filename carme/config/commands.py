"""`carme config`: check and show carme.toml."""

import ast
import inspect
import json
import textwrap
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from carme.config import Config, Section, config_path, load


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
def check(path: Path | None) -> None:
    """Check PATH (default: the machine's carme.toml); exit 1 if it is not valid."""
    load(path)
    click.echo(f"{path or config_path()}: fine")


@config.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def show(path: Path | None, as_json: bool) -> None:
    """Show every setting with its value and meaning."""
    loaded = load(path)
    if as_json:
        click.echo(json.dumps(loaded.model_dump(mode="json"), indent=2))
        return
    table = Table("key", "value", "meaning", box=None, pad_edge=False, header_style="bold")
    _add_rows(table, loaded, Config(), "")
    Console().print(table)


def _add_rows(table: Table, section: Section, defaults: Section, prefix: str) -> None:
    meanings = explanations(type(section))
    for name in type(section).model_fields:
        value, default = getattr(section, name), getattr(defaults, name)
        if isinstance(value, Section):
            _add_rows(table, value, default, f"{prefix}{name}.")
            continue
        text = json.dumps(section.model_dump(mode="json")[name])
        style = "" if value == default else "bold cyan"
        table.add_row(f"{prefix}{name}", text, meanings.get(name, ""), style=style)


def explanations(model: type) -> dict[str, str]:
    """Field name to the docstring below it, on one line; fields without one are left out."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    meanings = {}
    for field, docstring in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(docstring, ast.Expr)
            and isinstance(docstring.value, ast.Constant)
            and isinstance(docstring.value.value, str)
        ):
            meanings[field.target.id] = " ".join(docstring.value.value.split())
    return meanings
