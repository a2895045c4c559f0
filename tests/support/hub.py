"""A user at the hub, over HTTP like a browser."""

import re
from typing import Any

import requests

from support.cluster import Cluster, wait_for


class User:
    """A logged-in user with a browser's cookies."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.url = cluster.config.hub.url
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
        headers = {"Referer": f"{self.url}/hub/home", "X-XSRFToken": self._xsrf("/hub/")}
        return self.web.request(
            method, f"{self.url}/hub/api{path}", headers=headers, timeout=60, **kwargs
        )

    def _xsrf(self, path: str) -> str:
        return next(
            (c.value or "" for c in self.web.cookies if c.name == "_xsrf" and c.path == path), ""
        )

    def spawn(self, **options: Any) -> requests.Response:
        """Ask for a session and return at once."""
        return self.api("POST", f"/users/{self.name}/server", json=options)

    def state(self) -> dict[str, Any]:
        """The hub's model of the user's default session; empty if there is none."""
        servers: dict[str, Any] = self.api("GET", f"/users/{self.name}").json()["servers"]
        return servers.get("", {})

    def start(self, seconds: float = 60, **options: Any) -> None:
        """Ask for a session and wait until it is ready."""
        response = self.spawn(**options)
        assert response.status_code in (201, 202), response.text
        wait_for(lambda: self.state().get("ready"), seconds, f"a session of {self.name}")

    def stop(self, seconds: float = 40) -> None:
        """End the session and wait until it is gone; fine if there is none."""
        self.api("DELETE", f"/users/{self.name}/server")
        wait_for(lambda: not self.state(), seconds, f"the end of the session of {self.name}")

    def server(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the Jupyter API of the user's session, through the proxy."""
        base = f"{self.url}/user/{self.name}"
        if not self._xsrf(f"/user/{self.name}/"):
            self.web.get(f"{base}/lab", timeout=30)
        headers = {"X-XSRFToken": self._xsrf(f"/user/{self.name}/"), "Referer": base}
        return self.web.request(method, f"{base}{path}", headers=headers, timeout=30, **kwargs)
