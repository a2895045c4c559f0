"""`./dev test [PART…]`: which tests run where."""

import os
import sys

PARTS = {name: f"tests/{name}" for name in ("unit", "integration", "browser")}


def main() -> None:
    """Replace this process by pytest on the parts named, or on everything."""
    chosen = [PARTS.get(word, word) for word in sys.argv[1:]] or ["tests"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *chosen])


if __name__ == "__main__":
    main()
