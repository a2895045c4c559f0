"""People at the prediction service, with a browser's session and with a token."""

import re

import requests

from support.hub import User

SERVICE = "/services/carme"
API = f"{SERVICE}/api/v1"


class Person:
    """A user with a browser's session at the service, and with a token."""

    def __init__(self, cluster, name):
        self.user = User.fresh(cluster, name)
        self.url = self.user.url
        page = self.user.web.get(f"{self.url}{SERVICE}/plan", timeout=30)
        assert page.status_code == 200, page.text[:300]
        self.page = page.text
        self.csrf = re.search('name="csrf" content="(.*?)"', page.text)[1]
        self.token = self.user.api("POST", f"/users/{name}/tokens", json={}).json()["token"]

    def by_cookie(self, method, path, body=None, csrf=True):
        headers = {"X-CSRF-Token": self.csrf} if csrf else {}
        return self.user.web.request(
            method, f"{self.url}{API}{path}", json=body, headers=headers, timeout=30
        )

    def by_token(self, method, path, body=None):
        return ask(self.url, method, path, body, self.token)


def ask(url, method, path, body=None, token=""):
    headers = {"Authorization": f"token {token}"} if token else {}
    return requests.request(method, f"{url}{API}{path}", json=body, headers=headers, timeout=30)
