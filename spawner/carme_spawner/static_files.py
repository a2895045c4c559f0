"""Scripts and styles of the hub's pages, with a hash of their content in the address."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from tornado.web import StaticFileHandler

import carme.web

FOLDERS = {
    "carme": Path(__file__).with_name("static"),
    "carme-web": Path(carme.web.__file__).with_name("static"),
}


@cache
def static_urls(base_url: str) -> dict[str, str]:
    """`form_js` and the like to the addresses of files, for a hub below `base_url`.

    A browser keeps a file for years: another content has another address.
    """
    return {
        path.name.replace(".", "_"): f"{base_url}hub/static-{folder}/{path.name}?v={_hash(path)}"
        for folder, root in FOLDERS.items()
        for path in sorted(root.iterdir())
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def static_handlers() -> list[tuple[Any, ...]]:
    """The handlers for JupyterHub's extra_handlers; nobody needs to be logged in for these."""
    return [
        (rf"/static-{folder}/([a-z_]+\.(?:js|css))", StaticFileHandler, {"path": str(root)})
        for folder, root in FOLDERS.items()
    ]
