import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from carme.cli import carme
from carme.errors import MissingError


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "carme.cli", *words], capture_output=True, text=True
    )


def test_help_lists_the_commands():
    shown = CliRunner().invoke(carme, ["--help"]).output
    for name in ("up", "down", "status", "config", "nodes", "queue", "version"):
        assert f"\n  {name} " in shown


def test_an_error_is_one_line_with_what_to_do(tmp_path):
    done = run("config", "check", str(tmp_path / "none.toml"))
    assert done.returncode == 1
    assert done.stderr.startswith("carme: ")
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_command_is_a_usage_error():
    done = run("frobnicate")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_config_show_names_every_key(monkeypatch, tmp_path):
    (tmp_path / "carme.toml").touch()
    monkeypatch.setenv("CARME_CONFIG", str(tmp_path / "carme.toml"))
    shown = CliRunner().invoke(carme, ["config", "show", "--json"]).output
    assert '"poll_seconds"' in shown


BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "numba", "llvmlite", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def test_node_and_hub_need_no_numpy():
    modules = "carme_monitoring.commands", "carme_monitoring.discovery", "carme.cli"
    modules += "carme.doctor.commands", "carme.doctor.checklist", "carme.node.hook"
    modules += "carme.helper.program", "carme.view.commands", "carme.jobs.commands"
    modules += "carme.view.program", "carme_spawner.spawner", "carme_spawner.configure"
    code = f"{BLOCKED}for name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["simulate", "reproduce", "validate", "hardware", "calibrate"])
def test_without_numpy_a_command_names_the_extra(name):
    code = f"{BLOCKED}sys.argv = ['carme', {name!r}, '--help']; from carme.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'carme[simulator]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_extras():
    """Nodes and hub get no NumPy; `reproduce` needs no more than the simulator."""
    wanted = [line for line in requires("carme") or [] if "numpy" in line or "numba" in line]
    assert {line.split("extra == ")[-1].strip("'\"") for line in wanted} == {
        *("dev", "local", "service", "simulator"),
    }
    code = BLOCKED.replace('("numpy", "numba", "llvmlite", "scipy")', '("scipy", "flask")')
    code += "from carme.simulator.commands import pareto, simulate, validate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_calibrate_needs_no_web_server():
    code = BLOCKED.replace('("numpy", "numba", "llvmlite", "scipy")', '("flask", "sqlalchemy")')
    code += "import carme.predict.commands, carme.service.models"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_constraints_are_versions_of_what_is_needed():
    text = (Path(__file__).resolve().parents[2] / "constraints.txt").read_text()
    assert (files("carme") / "constraints.txt").read_text() == text  # a wheel has them, too
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+!]+", line) for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    needed = {
        re.split(r"[^A-Za-z0-9_-]", line)[0].lower().replace("_", "-")
        for line in requires("carme") or []
        if "extra == 'dev'" not in line and 'extra == "dev"' not in line
    }
    assert needed - {"carme", "pyslurm"} <= pinned


def test_missing_package_names_the_extra(monkeypatch):
    class Entry:
        name, value = "images", "carme_containers.commands:images"

        def load(self):
            raise ModuleNotFoundError(name="docker")

    monkeypatch.setattr("carme.cli.entry_points", lambda group: [Entry()])
    with pytest.raises(MissingError, match=r"docker.*pip install 'carme\[containers\]'"):
        carme.get_command(None, "images")
