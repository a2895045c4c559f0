"""The small file that lets counters survive a restart of the exporter."""

import json
import os
from pathlib import Path
from typing import Any

VERSION = 2


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file as a whole: a crash leaves the old one or the new one."""
    temporary = path.with_suffix(f".{os.getpid()}.new")
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            json.dump({"version": VERSION, **content}, file, separators=(",", ":"))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any] | None:
    """What was written; None when there is nothing, or nothing that can be used."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return None
    return content
