"""Host names of sessions, as browsers resolve them: those below `localhost` are this machine, and
those of a test's own site are in `SITES`."""

import socket
from typing import Any

SITES = {"localhost": "127.0.0.1"}
"""The address of a name and of all names below it."""
_getaddrinfo = socket.getaddrinfo


def _resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
    for name, address in SITES.items() if isinstance(host, str) else ():
        if f".{host}".endswith(f".{name}"):
            host = address
    return _getaddrinfo(host, *args, **kwargs)


socket.getaddrinfo = _resolve  # type: ignore[assignment]
