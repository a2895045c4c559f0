"""The base image's quick start: modules from one file, and Python's own way where that is right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carme_containers.recipe import load_recipe

MODULE = load_recipe("base").folder / "carme_startup.py"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages whose modules were written to the file."""
    folder = tmp_path / "packages"
    (folder / "tree").mkdir(parents=True)
    (folder / "tree/__init__.py").write_text("name = 'tree'\n")
    (folder / "tree/leaf.py").write_text("def colour():\n    return 'green'\n")
    (folder / "lonely.py").write_text("import tree.leaf\n")
    (folder / "unused.py").write_text("value = 1\n")
    (folder / "carme_startup.py").write_text(MODULE.read_text())
    code = f"import carme_startup as c; print(c.write(['lonely'], {file(folder)!r}))"
    assert int(python(folder, code)) >= 3
    return folder


def file(folder: Path) -> str:
    return str(folder.parent / "startup.bin")


def python(folder: Path, code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def started(folder: Path, code: str) -> str:
    """What the code prints in a Python that started with the file."""
    return python(folder, f"import carme_startup; carme_startup.install({file(folder)!r}); {code}")


def test_modules_come_from_the_file_and_look_as_always(packages: Path) -> None:
    code = (
        "import tree, tree.leaf as leaf, inspect; "
        "print(type(leaf.__loader__).__name__, leaf.colour(), leaf.__file__, tree.__path__[0], "
        "inspect.getsource(leaf.colour).split()[1])"
    )
    folder = packages / "tree"
    assert started(packages, code) == f"Loader green {folder}/leaf.py {folder} colour():"


def test_what_the_file_does_not_have_is_imported_as_always(packages: Path) -> None:
    code = "import unused; print(type(unused.__loader__).__name__, unused.value)"
    assert started(packages, code) == "SourceFileLoader 1"


def test_a_changed_module_is_not_taken_from_the_file(packages: Path) -> None:
    path = packages / "tree/leaf.py"
    path.write_text("def colour():\n    return 'brown'\n")
    os.utime(path, (1, 1))
    assert started(packages, "import tree.leaf; print(tree.leaf.colour())") == "brown"


def test_a_removed_module_is_gone(packages: Path) -> None:
    (packages / "tree/leaf.py").unlink()
    code = "import importlib.util; print(importlib.util.find_spec('tree.leaf'))"
    assert started(packages, code) == "None"


def test_packages_in_front_win(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "home/tree").mkdir(parents=True)
    (tmp_path / "home/tree/__init__.py").write_text("name = 'mine'\n")
    code = f"sys.path.insert(0, {str(tmp_path / 'home')!r}); import tree; print(tree.name)"
    assert started(packages, code) == "mine"


@pytest.mark.parametrize("content", [None, b"", b"of another Python"])
def test_without_a_file_of_this_python_nothing_changes(
    packages: Path, content: bytes | None
) -> None:
    path = Path(file(packages))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert started(packages, "import tree; print(type(tree.__loader__).__name__)") == (
        "SourceFileLoader"
    )
