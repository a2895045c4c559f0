"""`./dev test [PART…]`: which tests run where."""

import os
import subprocess
import sys
from pathlib import Path

# In this order: the last integration test takes the cluster down that the browser needs.
PARTS = {name: f"tests/{name}" for name in ("unit", "ansible", "browser", "integration")}


def main() -> None:
    """Run pytest on the parts named, or on everything."""
    words = sys.argv[1:]
    if "ansible" in words:
        # A cluster's whole life takes longer than belongs in a run of everything.
        os.environ["CARME_WHOLE_LIFE"] = "1"
    # Not `python -m pytest`, which would import the checkout instead of the installed copy.
    pytest = str(Path(sys.executable).with_name("pytest"))
    # Two at a time: nothing that unit tests use is shared. Others share a cluster.
    units = [pytest, "-n", "2", PARTS["unit"]]
    if words == ["unit"]:
        os.execv(pytest, units)
    if words:
        os.execv(pytest, [pytest, *(PARTS.get(word, word) for word in words)])
    others = [pytest, *(path for name, path in PARTS.items() if name != "unit")]
    code = subprocess.call(units)
    if code == 1:  # a test failed; anything else is a stop by hand, or tests that cannot be read
        sys.exit(subprocess.call(others) or code)
    if code:
        sys.exit(code)
    os.execv(pytest, others)


if __name__ == "__main__":
    main()
