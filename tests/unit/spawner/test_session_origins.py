"""Which requests the hub answers, by the host that they were sent to and the page they are from."""

import pytest

from carme.config import HubSettings, parse
from carme.errors import ConfigError
from carme_spawner.session_origins import SessionOrigins

ORIGINS = SessionOrigins(
    HubSettings(url="https://hub.example.org", session_host="*.hub.example.org")
)
HUB = {"Host": "hub.example.org", "Cookie": "jupyterhub-hub-login=x"}
FETCH = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
VISIT = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OTHER_PAGE = {"Sec-Fetch-Site": "same-site", "Origin": "https://ben.hub.example.org"}
TOKEN = {"Authorization": "token x"}
OWN_PAGE = {"Sec-Fetch-Site": "same-origin", "Origin": "https://hub.example.org"}


@pytest.mark.parametrize(
    ("verdict", "method", "path", "headers"),
    [
        # People who open the hub, and its own pages.
        ("accept", "GET", "/hub/home", {**HUB, **VISIT, "Sec-Fetch-Site": "none"}),
        ("accept", "GET", "/hub/home", HUB),
        ("accept", "POST", "/hub/login", {**HUB, **VISIT, **OWN_PAGE}),
        ("accept", "POST", "/hub/api/users/ann/tokens", {**HUB, **FETCH, **OWN_PAGE}),
        ("accept", "POST", "/hub/login", HUB),
        # A link from a session to the hub, and the way back from the hub's log-in.
        ("accept", "GET", "/hub/home", {**HUB, **VISIT, "Sec-Fetch-Site": "same-site"}),
        ("accept", "GET", "/hub/api/oauth2/authorize", {**HUB, **VISIT, **OTHER_PAGE}),
        # Pages of sessions.
        ("refuse", "POST", "/hub/api/users/ann/tokens", {**HUB, **FETCH, **OTHER_PAGE}),
        ("refuse", "GET", "/hub/api/user", {**HUB, **FETCH, **OTHER_PAGE}),
        ("refuse", "GET", "/hub/home", {**HUB, **OTHER_PAGE, "Sec-Fetch-Mode": "no-cors"}),
        ("refuse", "POST", "/hub/spawn", {**HUB, **VISIT, **OTHER_PAGE}),
        ("refuse", "GET", "/hub/home", {**HUB, **VISIT, **OTHER_PAGE, "Sec-Fetch-Dest": "iframe"}),
        ("refuse", "POST", "/hub/login", {**HUB, "Origin": "https://ben.hub.example.org"}),
        ("refuse", "POST", "/hub/login", {**HUB, "Origin": "null"}),
        # A token beside a cookie changes nothing: a page can send a false one.
        ("refuse", "GET", "/hub/api/user", {**HUB, **FETCH, **OTHER_PAGE, **TOKEN}),
        ("accept", "GET", "/hub/api/user", {"Host": "10.0.0.1:8081", **TOKEN}),
        # The hub under another host's name.
        ("redirect", "GET", "/hub/login", {**VISIT, "Host": "ben.hub.example.org"}),
        ("redirect", "GET", "/hub/login", {"Host": "BEN.hub.example.org."}),
        ("refuse", "POST", "/hub/login", {**OWN_PAGE, "Host": "ben.hub.example.org"}),
        ("refuse", "GET", "/hub/home", {**FETCH, **OWN_PAGE, "Host": "ben.hub.example.org"}),
        ("refuse", "POST", "/hub/login", {"Host": "[::1"}),
        ("refuse", "POST", "/hub/login", {}),
        ("accept", "GET", "/user/ben/lab", {"Host": "ben.hub.example.org"}),
        # Monitors and the proxy.
        ("accept", "GET", "/hub/health", {"Host": "10.9.8.7"}),
        ("accept", "GET", "/hub/metrics", {"Host": "10.9.8.7"}),
        ("accept", "GET", "/hub/error/503", {"Host": "127.0.0.1:8081"}),
    ],
)
def test_verdict(verdict, method, path, headers):
    assert ORIGINS.judge(method, path, headers) == verdict


def test_hub_below_a_path():
    hub = HubSettings(url="https://example.org/jupyter", session_host="*.users.example.org")
    origins = SessionOrigins(hub)
    refused = {"Host": "example.org", **FETCH, "Sec-Fetch-Site": "cross-site"}
    assert origins.judge("GET", "/jupyter/hub/home", refused) == "refuse"
    assert origins.judge("GET", "/jupyter/hub", refused) == "refuse"
    assert origins.judge("GET", "/jupyter/user/ann/", refused) == "accept"


@pytest.mark.parametrize(
    ("url", "pattern", "host"),
    [
        ("http://127.0.0.1:8000", None, "ann.localhost"),
        ("http://localhost:8000", None, "ann.localhost"),
        ("http://hub.localhost:8000", None, "ann.hub.localhost"),
        ("https://hub.example.org", "*.hub.example.org", "ann.hub.example.org"),
        ("https://hub.example.org", "sessions.example.org", "sessions.example.org"),
    ],
)
def test_host_of_a_user_and_of_services(url, pattern, host):
    hub = HubSettings(url=url, session_host=pattern)
    origins = SessionOrigins(hub)
    assert origins.host_of("ann", "", "user") == host
    assert origins.host_of("carme", "", "service") == hub.host


def test_names_of_users_become_different_host_names():
    names = ("ann", "Ann", "ann_b", "ann.b", "änn", "xn--nn-uia", "a" * 80, "-ann")
    hosts = {ORIGINS.host_of(name, "", "user") for name in names}
    assert len(hosts) == len(names)


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("https://hub.example.org", "hub.example.org"),
        ("https://hub.example.org", "*.example.org"),
        ("https://hub.example.org", "*"),
        ("https://hub.example.org", "https://sessions.example.org"),
        ("https://hub.example.org", "sessions.example.org:8443"),
    ],
)
def test_a_session_host_that_does_not_separate_is_refused(url, pattern):
    with pytest.raises(ConfigError, match="session_host"):
        parse({"hub": {"url": url, "session_host": pattern}}, "carme.toml")


def test_without_a_session_host_there_is_none():
    assert SessionOrigins(HubSettings(url="https://hub.example.org")).pattern == ""
