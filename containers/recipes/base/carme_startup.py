"""Imports the modules that every session starts with from one file.

Each session mounts the image, and opening a module there needs several requests to the program that
unpacks the image; JupyterLab opens a thousand modules. This file has their bytecode, in the order
of their import. Python imports modules that are not in the file, or have changed, as usual.

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

HEAD = len(MAGIC_NUMBER) + 8  # Python's magic number, and the length of the index that follows

# Source file -> its mtime and size when it was compiled, and the begin and end of its code.
Index = dict[str, tuple[int, int, int, int]]
_index: Index = {}
_code = memoryview(b"")


class Loader(SourceFileLoader):
    """Reads the code of a module from the file; everything else is as in Python."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The compiled module."""
        _, _, begin, end = _index[self.path]
        code: CodeType = marshal.loads(_code[begin:end])
        return code


class Finder(FileFinder):
    """Finds modules of the file without listing folders, and others as usual."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec; a package comes before a module of the same name, as in Python."""
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
    """The mtime and size of a file: a child image may have another version of a package."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return int(status.st_mtime), status.st_size


def install(file: str = FILE) -> None:
    """Import from `file` from now on, if it exists and was written by the same Python version."""
    global _index, _code
    try:
        with open(file, "rb") as opened:
            content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return
    if content[: len(MAGIC_NUMBER)] != MAGIC_NUMBER:
        return
    size = int.from_bytes(content[len(MAGIC_NUMBER) : HEAD], "little")
    _index, _code = marshal.loads(content[HEAD : HEAD + size]), content[HEAD + size :]
    folders = {path.removesuffix("/__init__.py").rpartition("/")[0] for path in _index}

    def hook(path: str) -> Finder:
        # Python's own finder handles folders without modules in the file.
        if path not in folders:
            raise ImportError(f"{file} has no module of this folder", path=path)
        return Finder(
            path,
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceFileLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def write(names: Iterable[str], file: str = FILE) -> int:
    """Import the modules and write all modules that this imports to `file`; their number."""
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
