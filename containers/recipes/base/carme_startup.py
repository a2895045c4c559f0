"""The modules that every session starts with, in one file.

An image is mounted anew for each session, and opening a module takes several turns to the program
that unpacks it; JupyterLab opens a thousand. Here their bytecode lies in one file, in the order in
which they are asked for. What is not in it, or has changed since, is imported as always.

`python -m carme_startup` writes the file when the image is built; `carme.pth` calls `install`.
"""

import marshal
import mmap
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import MAGIC_NUMBER, spec_from_file_location
from types import CodeType, ModuleType

FILE = "/opt/carme/startup.bin"
STARTS_WITH = (
    "jupyterlab.labapp",
    "jupyterhub.singleuser",
    "jupyter_lsp.serverextension",
    "jupyter_server_terminals.app",
    "ipykernel.kernelapp",
)

HEAD = len(MAGIC_NUMBER) + 8  # the Python it is for, and the length of the index that follows

# Source file -> its time and size when it was compiled, and where its code begins and ends.
Index = dict[str, tuple[int, int, int, int]]
_index: Index = {}
_code = memoryview(b"")


class Loader(SourceFileLoader):
    """Knows that the code is in the file; all else is Python's own."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The compiled module."""
        _, _, begin, end = _index[self.path]
        code: CodeType = marshal.loads(_code[begin:end])
        return code


class Finder(FileFinder):
    """Finds modules of the file without listing a folder, others as always."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """A package before a module of the same name, as Python has it."""
        stem = f"{self.path}/{fullname.rpartition('.')[2]}"
        for path, inside in ((f"{stem}/__init__.py", [stem]), (f"{stem}.py", None)):
            if path in _index and _state(path) == _index[path][:2]:
                return spec_from_file_location(
                    fullname,
                    path,
                    loader=Loader(fullname, path),
                    submodule_search_locations=inside,
                )
        return super().find_spec(fullname, target)


def _state(path: str) -> tuple[int, int] | None:
    """A child image may bring another version of a package: its time or size differs."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return int(found.st_mtime), found.st_size


def install(file: str = FILE) -> None:
    """Import from `file` from now on. No such file, or one of another Python: nothing changes."""
    global _index, _code
    try:
        with open(file, "rb") as opened:
            whole = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return
    magic, length, rest = whole[: len(MAGIC_NUMBER)], whole[len(MAGIC_NUMBER) : HEAD], whole[HEAD:]
    if magic != MAGIC_NUMBER:
        return
    size = int.from_bytes(length, "little")
    _index, _code = marshal.loads(rest[:size]), rest[size:]
    folders = {path.removesuffix("/__init__.py").rpartition("/")[0] for path in _index}

    def hook(path: str) -> Finder:
        # Folders of which nothing is in the file keep Python's own finder.
        if path not in folders:
            raise ImportError(f"nothing of it is in {file}", path=path)
        return Finder(
            path,
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceFileLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def write(names: Iterable[str], file: str = FILE) -> int:
    """Import the modules and write all that came with them to `file`; how many they are."""
    for name in names:
        import_module(name)
    index: Index = {}
    codes: list[bytes] = []
    end = 0
    for name, module in list(sys.modules.items()):
        loader = getattr(module, "__loader__", None)
        if name == "__main__" or not isinstance(loader, SourceFileLoader):
            continue
        state = _state(loader.path)
        if state and os.path.isabs(loader.path):
            codes.append(marshal.dumps(loader.get_code(loader.name)))
            begin, end = end, end + len(codes[-1])
            index[loader.path] = (*state, begin, end)
    head = marshal.dumps(index)
    with open(file, "wb") as opened:
        opened.write(MAGIC_NUMBER + len(head).to_bytes(HEAD - len(MAGIC_NUMBER), "little") + head)
        opened.writelines(codes)
    return len(index)


if __name__ == "__main__":
    print(f"{write(STARTS_WITH)} modules in {FILE}")
