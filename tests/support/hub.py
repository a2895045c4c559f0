"""A user at the hub, over HTTP like a browser."""

import re
import time
from typing import Any
from urllib.parse import urlsplit

import requests

import support.session_names  # noqa: F401 (resolves them)
from carme.config import Config
from carme_spawner.session_origins import SessionOrigins
from support.cluster import Cluster, wait_for


def session_url(config: Config, user: str) -> str:
    """Where a browser finds the user's sessions."""
    scheme, _, rest = config.hub.origin.partition("://")
    host = SessionOrigins(config.hub).host_of(user, "", "user")
    return f"{scheme}://{rest.replace(config.hub.host, host, 1)}{config.hub.base_url}user/{user}"


class User:
    """A logged-in user with a browser's cookies."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.url = cluster.config.hub.url
        self.session_url = session_url(cluster.config, name)
        self.web = requests.Session()
        self.web.trust_env = False

    @classmethod
    def fresh(cls, cluster: Cluster, name: str) -> "User":
        """The user, logged in and without a session."""
        user = cls(cluster, name)
        assert user.login().status_code == 302
        user.stop()
        return user

    def login(self, password: str | None = None) -> requests.Response:
        """Log in through the form."""
        page = self.web.get(f"{self.url}/hub/login", timeout=20)
        token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert token, page.text[:500]
        data = {
            "username": self.name,
            "password": password if password is not None else self.cluster.password(self.name),
            "_xsrf": token[1],
        }
        return self.web.post(f"{self.url}/hub/login", data=data, timeout=30, allow_redirects=False)

    def api(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the hub's REST API."""
        url = f"{self.url}/hub/api{path}"
        return self.web.request(method, url, headers=self.hub_headers(), timeout=60, **kwargs)

    def hub_headers(self) -> dict[str, str]:
        """What a page of the hub sends with a request."""
        return {"Referer": f"{self.url}/hub/home", "X-XSRFToken": self._xsrf(f"{self.url}/hub/")}

    def _xsrf(self, url: str) -> str:
        """The XSRF token that the server behind `url` gave; empty before the first page."""
        parts = urlsplit(url)
        tokens = {
            cookie.path: cookie.value or ""
            for cookie in self.web.cookies
            if cookie.name == "_xsrf"
            and cookie.domain.removesuffix(".local") == parts.hostname
            and parts.path.startswith(cookie.path)
        }
        return tokens[max(tokens, key=len)] if tokens else ""

    def spawn(self, **options: Any) -> requests.Response:
        """Ask for a session and return at once."""
        return self.api("POST", f"/users/{self.name}/server", json=options)

    def state(self) -> dict[str, Any]:
        """The hub's model of the user's default session; empty if there is none."""
        response = self._calm_api("GET", f"/users/{self.name}")
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        servers: dict[str, Any] = response.json()["servers"]
        return servers.get("", {})

    def _calm_api(self, method: str, path: str) -> requests.Response:
        """Call the hub's REST API, again for up to a minute while it is busy or restarts."""
        end = time.monotonic() + 60
        while True:
            response = self.api(method, path)
            if response.status_code not in (429, 503) or time.monotonic() > end:
                return response
            time.sleep(0.5)

    def start(self, seconds: float = 60, **options: Any) -> None:
        """Ask for a session and wait until it is ready."""
        response = self.spawn(**options)
        assert response.status_code in (201, 202), response.text
        wait_for(lambda: self.state().get("ready"), seconds, f"a session of {self.name}")

    def stop(self, seconds: float = 40) -> None:
        """End the session and wait until it is gone; fine if there is none."""
        response = self._calm_api("DELETE", f"/users/{self.name}/server")
        # 202: it is being stopped; 204: it is stopped, or there is none.
        assert response.status_code in (202, 204), f"{response.status_code} {response.text}"
        wait_for(lambda: not self.state(), seconds, f"the end of the session of {self.name}")

    def server(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the Jupyter API of the user's session, through the proxy."""
        base = self.session_url
        if not self._xsrf(f"{base}/"):
            self.web.get(f"{base}/lab", timeout=30)
        headers = {"X-XSRFToken": self._xsrf(f"{base}/"), "Referer": base}
        return self.web.request(method, f"{base}{path}", headers=headers, timeout=30, **kwargs)
