"""Health checks: each asks a service in the way its users do."""

import base64
import http.client
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from carme.errors import UnavailableError
from carme.system.programs import run
from carme.system.unix_http import HttpResponse, request

_SECONDS = 3.0
_MAX_BODY_BYTES = 8 * 2**20


def munge(path: Path) -> str:
    """The daemon encodes and decodes a credential."""
    credential = run(["munge", "--no-input", "--socket", path], timeout_seconds=_SECONDS)
    run(["unmunge", "--no-output", "--socket", path], stdin=credential, timeout_seconds=_SECONDS)
    return "encodes and decodes credentials"


def mariadb(path: Path) -> str:
    """The server answers a query."""
    query = ["mariadb", "--no-defaults", "-S", str(path), "-NBe", "select version()"]
    return f"MariaDB {run(query, timeout_seconds=_SECONDS).split('-')[0].strip()}"


def slurmdbd(env: dict[str, str]) -> str:
    """The cluster is registered."""
    clusters = run(
        ["sacctmgr", "-nP", "show", "cluster", "format=cluster"], added_env=env, timeout_seconds=10
    )
    if not clusters.strip():
        raise UnavailableError("no cluster is registered yet")
    return f"cluster {clusters.split()[0]}"


def slurmctld(env: dict[str, str]) -> str:
    """The controller answers a ping."""
    answer = run(["scontrol", "ping"], added_env=env, timeout_seconds=15)
    if "UP" not in answer:
        raise UnavailableError(answer.strip().splitlines()[-1])
    return "answers"


def slurmd(node: str, env: dict[str, str]) -> str:
    """The controller reaches the node, and the node accepts jobs."""
    answer = run(
        ["sinfo", "-h", "-N", "-n", node, "-o", "%T %E"], added_env=env, timeout_seconds=10
    ).strip()
    state, _, reason = answer.partition("\n")[0].partition(" ")
    if not state or any(word in state for word in ("down", "drain", "unknown", "*", "fail")):
        because = "" if reason in ("", "none") else f": {reason}"
        raise UnavailableError(f"node is {state or 'unknown'}{because}")
    return state


def get(url: str, login: tuple[str, str] | None = None, seconds: float = 5) -> HttpResponse:
    """The response of one of our own addresses, whatever its status.

    Ignores proxy settings, follows no redirect and accepts any certificate. Raises
    UnavailableError if there is no response within `seconds`.
    """
    request = urllib.request.Request(url)  # noqa: S310 (our own addresses)
    if login:
        credentials = base64.b64encode(":".join(login).encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), _NoRedirect, urllib.request.HTTPSHandler(context=context)
    )
    try:
        try:
            response = opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return HttpResponse(response.status, response.headers, response.read(_MAX_BODY_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url} does not answer: {_reason(error)}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.errno and not isinstance(reason, ssl.SSLError):
        return os.strerror(reason.errno) if reason.errno > 0 else str(reason.strerror)
    return str(reason) or type(reason).__name__


def http_ok(url: str, login: tuple[str, str] | None = None) -> str:
    """The address answers with status 200."""
    return _require_ok(get(url, login, _SECONDS))


def unix_http_ok(path: Path, target: str) -> str:
    """The server on the unix socket answers with status 200."""
    return _require_ok(request(path, "GET", target, timeout_seconds=_SECONDS))


def _require_ok(response: HttpResponse) -> str:
    if response.status != 200:
        raise UnavailableError(f"answers {response.status}")
    return "answers 200"


def slurmrestd(path: Path) -> str:
    """slurmrestd answers on its socket."""
    return unix_http_ok(path, "/slurm/v0.0.38/ping")


def nonempty(path: Path) -> str:
    """The file exists and has content."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UnavailableError(f"{path} does not exist yet") from None
    if not size:
        raise UnavailableError(f"{path} is empty")
    return "written"
