"""`carme.simulator` stays pure; what it may import is a contract in pyproject.toml."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import carme.simulator

FOLDER = Path(carme.simulator.__file__).parent
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval"}


def modules():
    """All but the commands, which read files and print."""
    return sorted(path for path in FOLDER.rglob("*.py") if path.parent.name != "commands")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(FOLDER)))
def test_it_calls_nothing_that_reaches_outside(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{path.name} calls {node.func.id}"
        if isinstance(node, ast.Attribute) and node.attr in {"seed", "set_state"}:
            # plan.seed is a number; numpy.random.seed would be global state.
            value = node.value
            assert not (isinstance(value, ast.Attribute) and value.attr == "random")


def test_modules_stay_readable():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 450, path.name


def test_a_plain_simulation_needs_no_compiler():
    """Numba takes half a second to import; only event queues need it."""
    code = (
        "import sys; from carme import library; "
        "from carme.simulator.runs import simulate; "
        "from carme.simulator.plans import Synchronous; "
        "simulate(library.workload('resnet-50'), library.cluster_of('8xV100'), "
        "Synchronous(gpus=8)); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_code_is_compiled_even_where_nothing_can_be_cached(tmp_path):
    """A service user may have neither a writable install nor a home."""
    code = (
        "import numba.core.caching as c; "
        "getattr(c, 'CacheImpl', None or getattr(c, '_CacheImpl', None))._locator_classes = []; "
        "import numpy as np; from carme.simulator.events.compiled_queues import _earlier; "
        "_earlier(np.array([2.0, 1.0]), np.arange(2), 0, 1); print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout == "fine\n", done.stderr
    assert "compiling the simulator" in done.stderr
