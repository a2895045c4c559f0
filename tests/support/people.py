"""Users of the prediction service, with a browser session and a token."""

import re

import requests

from support.cluster import wait_for
from support.hub import User

SERVICE = "/services/carme"
API = f"{SERVICE}/api/v1"


class Person:
    """A user with a browser session at the service and a token."""

    def __init__(self, cluster, name):
        self.user = User.fresh(cluster, name)
        self.url = self.user.url
        page = wait_for(self._plan, 30, "the page Plan")
        self.page = page.text
        self.csrf = re.search('name="csrf" content="(.*?)"', page.text)[1]
        self.token = ""
        self.renew_token()

    def renew_token(self):
        """Get a new token, because the service caches the owners of tokens."""
        tokens = f"/users/{self.user.name}/tokens"
        self.token = self.user.api("POST", tokens, json={}).json()["token"]

    def _plan(self):
        """The page Plan; None while a hub that has just started does not answer."""
        page = self.user.web.get(f"{self.url}{SERVICE}/plan", timeout=30)
        if page.status_code != 200:
            text = " ".join(re.sub("<[^>]*>", " ", page.text.partition("<body")[2]).split())
            print(f"{page.url} says {page.status_code}: {text[:300]}")
            return None
        return page

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
