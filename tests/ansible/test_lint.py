"""The playbooks are clean: ansible-lint's production profile, and yamllint."""

import subprocess
import sys
from pathlib import Path

from .conftest import PLAYBOOKS


def _clean(*argv: str) -> None:
    program = str(Path(sys.executable).with_name(argv[0]))
    result = subprocess.run([program, *argv[1:]], cwd=PLAYBOOKS, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_ansible_lint() -> None:
    _clean("ansible-lint", "--offline", "--nocolor", "-p")


def test_yamllint() -> None:
    _clean("yamllint", "--strict", ".")
