"""Unpacks ttar archives: `Path:`, `Lines:` and that many lines, `Directory:`, `SymlinkTo:`."""

from pathlib import Path


def unpack(archive: Path, into: Path, below: str = "") -> Path:
    """Unpack the entries whose path starts with `below`; returns `into`."""
    lines = archive.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    number, current = 0, Path()
    while number < len(lines):
        name, _, value = lines[number].partition(": ")
        number += 1
        if name == "Directory":
            current = into / value
            if value.startswith(below):
                current.mkdir(parents=True, exist_ok=True)
        elif name == "Path":
            current = into / value
        elif name == "SymlinkTo" and str(current.relative_to(into)).startswith(below):
            current.parent.mkdir(parents=True, exist_ok=True)
            current.symlink_to(value)
        elif name == "Lines":
            text = lines[number : number + int(value)]
            number += int(value)
            if str(current.relative_to(into)).startswith(below):
                current.parent.mkdir(parents=True, exist_ok=True)
                content = "\n".join(text) + "\n"
                content = content.replace("NULLBYTE", "\0").replace("EOF\n", "")
                current.write_text(content, encoding="utf-8", errors="surrogateescape")
    return into
