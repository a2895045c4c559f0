"""`./dev test [PART…]`: run pytest on all tests or on the named ones."""

import os
import subprocess
import sys
from pathlib import Path

PARTS = {name: f"tests/{name}" for name in ("unit", "ansible", "browser", "integration")}
# Not `python -m pytest`, which would import the checkout instead of the installed copy.
PYTEST = str(Path(sys.executable).with_name("pytest"))
SIDE_BY_SIDE = (PYTEST, "-n", "2")
# One worker runs a whole file, on its own cluster; tests/conftest.py sets the order.
BY_FILE = (*SIDE_BY_SIDE, "--dist", "loadfile", "--no-loadscope-reorder")
EVERYTHING = (
    (*SIDE_BY_SIDE, PARTS["unit"]),
    (*BY_FILE, "-m", "not alone", PARTS["ansible"], PARTS["browser"], PARTS["integration"]),
    (PYTEST, "-m", "alone", PARTS["integration"]),
)
TESTS_FAILED = 1
"""Pytest's exit code; other codes mean an interruption, or tests that cannot be imported."""


def main() -> None:
    """Run pytest on the named parts, or on all tests."""
    arguments = sys.argv[1:]
    if "ansible" in arguments:
        # The second half of the deployment tests is too long for a run of all tests.
        os.environ["CARME_WHOLE_LIFE"] = "1"
    if arguments == ["unit"]:
        os.execv(PYTEST, EVERYTHING[0])
    if arguments:
        os.execv(PYTEST, [PYTEST, *(PARTS.get(word, word) for word in arguments)])
    failed = False
    for argv in EVERYTHING:
        code = subprocess.call(argv)
        if code not in (0, TESTS_FAILED):
            sys.exit(code)
        failed |= code == TESTS_FAILED
    sys.exit(TESTS_FAILED if failed else 0)


if __name__ == "__main__":
    main()
