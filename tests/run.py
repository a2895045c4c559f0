"""`./dev test [PART…]`: which tests run where."""

import os
import sys
from pathlib import Path

PARTS = {name: f"tests/{name}" for name in ("unit", "integration", "browser", "ansible")}


def main() -> None:
    """Replace this process by pytest on the parts named, or on everything."""
    if "ansible" in sys.argv[1:]:
        # A cluster's whole life takes longer than belongs in a run of everything.
        os.environ["CARME_WHOLE_LIFE"] = "1"
    chosen = [PARTS.get(word, word) for word in sys.argv[1:]] or ["tests"]
    # Two at a time: nothing that unit tests use is shared. Others share a cluster.
    side_by_side = ["-n", "2"] if chosen == [PARTS["unit"]] else []
    # Not `python -m pytest`, which would import the checkout instead of the installed copy.
    pytest = str(Path(sys.executable).with_name("pytest"))
    os.execv(pytest, [pytest, *side_by_side, *chosen])


if __name__ == "__main__":
    main()
