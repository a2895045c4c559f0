import subprocess
import sys

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


def test_missing_package_names_the_extra(monkeypatch):
    class Entry:
        name, value = "images", "carme_containers.commands:images"

        def load(self):
            raise ModuleNotFoundError(name="docker")

    monkeypatch.setattr("carme.cli.entry_points", lambda group: [Entry()])
    with pytest.raises(MissingError, match=r"docker.*pip install 'carme\[containers\]'"):
        carme.get_command(None, "images")
