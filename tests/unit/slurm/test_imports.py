"""What must do no I/O imports nothing that could."""

import ast
import sys
from pathlib import Path

import pytest

import carme

PURE = (
    "carme.requests",
    "carme.requests.placement",
    "carme.requests.problems",
    "carme.requests.resource_request",
    "carme.requests.slurm_user",
    "carme.requests.user_limits",
    "carme.slurm.models",
    "carme.slurm.snapshot",
    "carme.slurm.states",
    "carme.slurm.gres",
    "carme.slurm.hostlist",
    "carme.view.visibility",
    "carme.slurm.limits",
    "carme.slurm.rights",
    "carme.slurm.parse",
    "carme.slurm.parse.accounting",
    "carme.slurm.parse.commands",
    "carme.slurm.parse.gpus",
    "carme.slurm.parse.payload",
    "carme.slurm.parse.rights",
    "carme.slurm.parse.squeue",
    "carme.slurm.parse.values",
)
HARMLESS = {
    "carme.errors", "carme.units", "collections", "collections.abc", "dataclasses", "datetime",
    "enum", "functools", "itertools", "re", "typing", "pydantic",
}  # fmt: skip


def imports(module: str) -> set[str]:
    base = Path(carme.__file__).parent.joinpath(*module.split(".")[1:])
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("module", PURE)
def test_pure_modules(module: str) -> None:
    assert imports(module) <= HARMLESS | set(PURE)


def test_the_list_is_complete() -> None:
    folder = Path(carme.__file__).parent / "slurm/parse"
    modules = {f"carme.slurm.parse.{p.stem}" for p in folder.glob("*.py") if p.stem != "__init__"}
    requests = Path(carme.__file__).parent / "requests"
    modules |= {f"carme.requests.{p.stem}" for p in requests.glob("*.py") if p.stem != "__init__"}
    assert modules <= set(PURE)


def test_pyslurm_is_not_loaded_by_its_adapter() -> None:
    import carme.slurm.pyslurm_client  # noqa: F401

    assert "pyslurm" not in sys.modules
