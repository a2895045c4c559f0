"""Recipes that build in a second: a system with a shell and three programs."""

import shutil
import subprocess
from pathlib import Path

MANIFEST = """title = "{name}"
description = "A recipe for tests"
version = "{version}"
disk_mb = {disk_mb}
{more}
"""
DEFINITION = """Bootstrap: localimage
From: {root}

%files
    verify /opt/carme/verify

%post
    {post}
    chmod 755 /opt/carme/verify
"""
PROGRAMS = ("/bin/sh", "/bin/true", "/bin/cat", "/bin/chmod", "/bin/sleep", "/bin/dd")


def tiny_root(folder: Path) -> Path:
    """A folder with the smallest system that a recipe's script can run in."""
    root = folder / "root"
    for name in (
        "bin",
        "proc",
        "sys",
        "dev",
        "tmp",
        "var/tmp",
        "etc",
        "root",
        "home",
        "mnt",
        "opt",
    ):
        (root / name).mkdir(parents=True)
    for program in PROGRAMS:
        source = Path(program).resolve()
        shutil.copy2(source, root / "bin" / Path(program).name)
        libraries = subprocess.run(
            ["ldd", source], capture_output=True, text=True, check=True
        ).stdout
        for word in libraries.split():
            if word.startswith("/"):
                target = root / word[1:]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(word, target)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for path in (folder, root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return root


def tiny_recipe(
    folder: Path,
    root: Path,
    name: str = "tiny",
    version: str = "1",
    post: str = "true",
    verify: str = "echo fine",
    disk_mb: int = 100,
    more: str = "",
) -> Path:
    """Write the recipe `name` below `folder`; an earlier one of that name is replaced."""
    home = folder / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    text = MANIFEST.format(name=name, version=version, disk_mb=disk_mb, more=more)
    (home / "image.toml").write_text(text)
    (home / "image.def").write_text(DEFINITION.format(root=root, post=post))
    (home / "verify").write_text(f"#!/bin/sh\n{verify}\n")
    return home
