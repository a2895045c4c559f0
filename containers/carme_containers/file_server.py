"""Folders of this machine as pages on loopback, while a build inside an engine needs them.

Docker builds cannot mount a folder. A random part in the address keeps others on the machine out.
"""

import secrets
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit


class FileServer:
    """Serves each folder as /SECRET/NAME/ between entering and leaving."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._secret = secrets.token_urlsafe(16)
        handler = partial(_Handler, folders=folders, secret=self._secret)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    @property
    def address(self) -> str:
        """Where the folders are."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._secret}"

    def __enter__(self) -> "FileServer":
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self, *args: Any, folders: Mapping[str, Path], secret: str, **options: Any
    ) -> None:
        self._folders = folders
        self._secret = secret
        super().__init__(*args, **options)

    def translate_path(self, path: str) -> str:
        """The file that an address means; anything outside the folders is no file at all."""
        parts = unquote(urlsplit(path).path).split("/")[1:]
        if len(parts) < 2 or not secrets.compare_digest(parts[0].encode(), self._secret.encode()):
            return "/nonexistent"
        folder = self._folders.get(parts[1])
        if folder is None or ".." in parts:
            return "/nonexistent"
        return str(folder.joinpath(*[part for part in parts[2:] if part]))

    def log_message(self, *_: Any) -> None:
        """Keep quiet: the build's log says what was fetched."""
