"""Health checks: each asks a service in the way its users do."""

import base64
import socket
import urllib.error
import urllib.request
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from carme.errors import UnavailableError
from carme.system.programs import run

_SECONDS = 3.0


def munge(path: Path) -> str:
    """A credential goes round through the daemon."""
    credential = run(["munge", "--no-input", "--socket", path], timeout=_SECONDS)
    run(["unmunge", "--no-output", "--socket", path], input=credential, timeout=_SECONDS)
    return "credentials go round"


def mariadb(path: Path) -> str:
    """The server answers a query."""
    return (
        "MariaDB "
        + run(
            ["mariadb", "--no-defaults", "-S", path, "-NBe", "select version()"], timeout=_SECONDS
        )
        .split("-")[0]
        .strip()
    )


def slurmdbd(env: dict[str, str]) -> str:
    """The cluster is registered."""
    listed = run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"], env=env, timeout=10)
    if not listed.strip():
        raise UnavailableError("no cluster is registered yet")
    return f"cluster {listed.split()[0]}"


def slurmctld(env: dict[str, str]) -> str:
    """The controller answers a ping."""
    said = run(["scontrol", "ping"], env=env, timeout=15)
    if "UP" not in said:
        raise UnavailableError(said.strip().splitlines()[-1])
    return "answers"


def slurmd(node: str, env: dict[str, str]) -> str:
    """The controller sees the node, and it may be used."""
    answer = run(["sinfo", "-h", "-N", "-n", node, "-o", "%T %E"], env=env, timeout=10).strip()
    state, _, reason = answer.partition("\n")[0].partition(" ")
    if not state or any(word in state for word in ("down", "drain", "unknown", "*", "fail")):
        because = "" if reason in ("", "none") else f": {reason}"
        raise UnavailableError(f"node is {state or 'unknown'}{because}")
    return state


def http(url: str, login: tuple[str, str] | None = None) -> str:
    """The address answers with 200."""
    request = urllib.request.Request(url)  # noqa: S310 (our own addresses)
    if login:
        word = base64.b64encode(":".join(login).encode()).decode()
        request.add_header("Authorization", f"Basic {word}")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return f"answers {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            raise UnavailableError(f"answers {error.code}") from None
    except (urllib.error.URLError, OSError, HTTPException) as error:
        raise UnavailableError(f"does not answer: {getattr(error, 'reason', error)}") from None


def nonempty(path: Path) -> str:
    """Somebody wrote the file."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UnavailableError(f"{path} is not there yet") from None
    if not size:
        raise UnavailableError(f"{path} is empty")
    return "written"


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


def unix_http(path: Path, target: str) -> str:
    """The same over a unix socket."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", target)
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"does not answer: {error}") from None
    finally:
        connection.close()
    if status != 200:
        raise UnavailableError(f"answers {status}")
    return "answers 200"


def slurmrestd(path: Path) -> str:
    """slurmrestd answers on its socket."""
    return unix_http(path, "/slurm/v0.0.38/ping")


def view(path: Path) -> str:
    """carme-view answers on its socket."""
    return unix_http(path, "/healthz")
