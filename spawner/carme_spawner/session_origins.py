"""Origins of sessions: what users' programs serve never shares the hub's origin.

A session's page can do whatever a browser lets a page do. So sessions have host names of their own,
and the hub refuses requests that a page of another origin sends with the user's cookies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import subdomain_hook_idna
from tornado import web

from carme.config import HubSettings

Verdict = Literal["accept", "redirect", "refuse"]

HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""For the hub's answers: other origins get no handle on its windows, and embed nothing of it."""

_prepare = BaseHandler.prepare
_READ_ONLY = frozenset({"GET", "HEAD"})
_FOR_MACHINES = ("health", "metrics")
"""Endpoints of the hub that need no cookie: monitors may use any name of the host."""


@dataclass(frozen=True)
class SessionOrigins:
    """Which host names belong to sessions, and which to the hub."""

    hub: HubSettings

    @property
    def pattern(self) -> str:
        """`*.DOMAIN`, a host name, or empty if sessions share the hub's."""
        return self.hub.session_host_or_default

    def host_of(self, name: str, _domain: str, kind: str) -> str:
        """The host name of a user's sessions; services stay at the hub's. JupyterHub's
        `subdomain_hook`."""
        if kind != "user":
            return self.hub.host
        if self.pattern.startswith("*."):
            return str(subdomain_hook_idna(name, self.pattern[2:], kind))
        return self.pattern

    def judge(self, method: str, path: str, headers: Mapping[str, str]) -> Verdict:
        """Whether the hub answers a request, by the host it was sent to and the page it is from."""
        pages = f"{self.hub.base_url}hub/"
        if not f"{path}/".startswith(pages):
            return "accept"  # the hub only redirects there, to its own host
        has_only_token = "Authorization" in headers and "Cookie" not in headers
        if has_only_token or path in {f"{pages}{name}" for name in _FOR_MACHINES}:
            return "accept"
        is_visit = (
            method in _READ_ONLY
            and headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
            and headers.get("Sec-Fetch-Dest", "document") == "document"
        )
        if not self._is_hub(headers.get("Host", "")):
            return "redirect" if is_visit else "refuse"
        if self._is_own_page(headers):
            return "accept"
        return "accept" if is_visit else "refuse"

    def _is_hub(self, host: str) -> bool:
        """Whether a request was sent to the hub: at its public name, or by proxy and sessions at
        its own port."""
        hub = self.hub
        try:
            url = urlsplit(f"//{host.lower()}")
            is_own_port = url.port == hub.api_port
        except ValueError:
            return False
        is_direct = is_own_port and url.hostname in (hub.api_address, "127.0.0.1")
        return is_direct or url.hostname == hub.host

    def _is_own_page(self, headers: Mapping[str, str]) -> bool:
        """Whether a page of the hub, or no page at all, sends the request.

        Browsers tell by Sec-Fetch-Site where they know the connection to be private, and name the
        origin of all but simple reads.
        """
        site = headers.get("Sec-Fetch-Site", "")
        if site:
            return site in ("same-origin", "none")
        return headers.get("Origin", self.hub.origin) == self.hub.origin

    def guard(self) -> None:
        """Have JupyterHub's handlers judge every request before anything else looks at it.

        JupyterHub has no setting for this, and its handlers share no other place that comes first.
        """

        async def guarded(handler: Any) -> None:
            request = handler.request
            verdict = self.judge(request.method, request.path, request.headers)
            if verdict == "accept":
                await _prepare(handler)
            elif verdict == "redirect":
                handler.redirect(f"{self.hub.origin}{request.uri}")
            else:
                # The error page looks at the user.
                handler._jupyterhub_user, handler.expanded_scopes = None, set()
                raise web.HTTPError(
                    403,
                    "The hub refuses this request, because it does not come from the hub's own"
                    f" pages; open {self.hub.origin}, or use a token.",
                )

        BaseHandler.prepare = guarded
