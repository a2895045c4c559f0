"""The one line that turns Carme on."""

import asyncio
import copy
import hashlib
import os
import pwd
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jinja2
import pytest
from batchspawner import BatchSpawnerBase
from jupyterhub import apihandlers
from prometheus_client import CollectorRegistry, generate_latest
from tornado.web import HTTPError
from traitlets.config import Config as HubConfig

from carme.config import Config
from carme.errors import ConfigError
from carme.slurm.models import Job
from carme.slurm.states import JobState
from carme_spawner import CarmeSpawner, configure
from carme_spawner.context import HubContext
from carme_spawner.session_certificates import NoCookies
from carme_spawner.session_origins import HEADERS
from support.generators import metrics_reference

hub_configuration = sys.modules[configure.__module__]


@pytest.fixture(autouse=True)
def working_folder(monkeypatch, tmp_path):
    """The hub keeps its certificate authority in its working folder."""
    monkeypatch.chdir(tmp_path)


def configured(monkeypatch, url="http://127.0.0.1:8000", c=None, **sections):
    monkeypatch.setattr(apihandlers, "default_handlers", list(apihandlers.default_handlers))
    monkeypatch.setenv("CARME_SERVICE_TOKEN", "t" * 32)
    c = c or HubConfig()
    hub = {"url": url, "database": "postgresql://x/y"}
    configure(c, Config.model_validate({"hub": hub, **sections}))
    return c


def test_handlers_are_replaced_when_the_hub_is_configured(monkeypatch):
    c = configured(monkeypatch)
    assert not [entry for entry in apihandlers.default_handlers if "batchspawner" in entry[0]]
    assert [entry for entry in c.JupyterHub.extra_handlers if entry[0] == "/api/carme/outlook"]


def test_spawners_and_handlers_share_one_context(monkeypatch):
    c = configured(monkeypatch)
    context = c.CarmeSpawner.context
    assert isinstance(context, HubContext)
    assert copy.deepcopy(c).CarmeSpawner.context is context
    [outlook] = [e for e in c.JupyterHub.extra_handlers if e[0] == "/api/carme/outlook"]
    assert outlook[2]["context"] is context


def test_a_hub_below_a_path(monkeypatch):
    for url, api in (
        ("https://hub.example.org", "/services/carme/api/v1"),
        ("https://example.org/jupyter/", "/jupyter/services/carme/api/v1"),
        ("https://example.org/jupyter", "/jupyter/services/carme/api/v1"),
    ):
        c = configured(monkeypatch, url)
        service = c.CarmeSpawner.context.prediction_service
        assert service._api == service._url + api
        assert c.JupyterHub.bind_url == url


def test_scripts_are_served_at_addresses_with_the_hash_of_their_content(monkeypatch):
    c = configured(monkeypatch, "https://example.org/jupyter")
    urls = c.JupyterHub.template_vars["carme_static"]
    assert urls.keys() >= {"form_js", "advice_js", "form_css", "home_js", "elements_js"}
    for url in urls.values():
        path, _, version = url.partition("?v=")
        assert len(version) == 16
        served = [
            Path(entry[2]["path"]) / match[1]
            for entry in c.JupyterHub.extra_handlers
            if (match := re.fullmatch("/jupyter/hub" + entry[0], path)) and len(entry) > 2
        ]
        [file] = served
        assert hashlib.sha256(file.read_bytes()).hexdigest().startswith(version)


def test_sessions_cannot_set_cookies_in_the_hub(monkeypatch):
    options = copy.deepcopy(configured(monkeypatch)).JupyterHubHTTPClient.session_options
    assert isinstance(options["cookie_jar"], NoCookies)


def test_the_sites_own_settings_of_tornado_are_kept(monkeypatch):
    assert configured(monkeypatch).JupyterHub.tornado_settings == {"headers": HEADERS}
    own = {"headers": {"X-Site": "1", "Referrer-Policy": "unsafe-url"}, "autoreload": False}
    merged = {"headers": {"X-Site": "1", **HEADERS}, "autoreload": False}
    assigned, updated = HubConfig(), HubConfig()
    assigned.JupyterHub.tornado_settings = own
    updated.JupyterHub.tornado_settings.update(own)
    for c in (assigned, updated):
        assert configured(monkeypatch, c=c).JupyterHub.tornado_settings == merged


def test_a_spawner_without_a_context_says_what_to_call():
    with pytest.raises(ConfigError, match=r"carme_spawner\.configure\(c\)"):
        CarmeSpawner(user=SimpleNamespace(name="ann"))


@pytest.mark.parametrize(("hours", "is_offered"), [(24, True), (0, False)])
def test_the_home_page_offers_more_time_where_the_site_allows_it(monkeypatch, hours, is_offered):
    sections = {"view": {"extend_max_hours": hours}, "session": {"warn_minutes": 25}}
    c = configured(monkeypatch, **sections)
    hubs_page = "{% block main %}{% endblock %}{% block script %}{% endblock %}"
    loaders = [
        jinja2.FileSystemLoader(c.JupyterHub.template_paths),
        jinja2.PrefixLoader({"templates": jinja2.DictLoader({"home.html": hubs_page})}),
    ]
    pages = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=True)
    job = Job(id=7, nodes=("n1",), state=JobState.RUNNING, ends_at=1000)
    session = SimpleNamespace(ready=True, active=True, name="", job=job, warning="")
    user = SimpleNamespace(spawners={"": session}, escaped_name="ann")
    page = pages.get_template("home.html").render(user=user, **c.JupyterHub.template_vars)
    assert ("One more hour" in page) == is_offered
    assert 'data-carme-ends="1000" data-carme-warn-minutes="25.0"' in page


def test_a_session_can_read_its_users_jobs(monkeypatch):
    """`carme jobs` in a session asks the service at CARME_HUB_URL with the session's own token."""
    c = configured(monkeypatch, "https://example.org/jupyter")
    assert set(c.CarmeSpawner.server_token_scopes) == {
        "users:activity!user",
        "access:servers!server",
        "access:services!service=carme",
    }
    own = {"JUPYTERHUB_API_TOKEN": "secret"}
    monkeypatch.setattr(BatchSpawnerBase, "get_env", lambda self: own)
    spawner = CarmeSpawner(config=c, user=SimpleNamespace(name="ann"))
    assert spawner.get_env() == {"CARME_HUB_URL": "https://example.org/jupyter", **own}
    assert spawner.env_keep == []


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_missing_home_is_made_at_the_login(monkeypatch, tmp_path, succeeds):
    home = tmp_path / "ann"
    sudo = tmp_path / "sudo"
    command = f"mkdir {home}" if succeeds else "echo no space left >&2; exit 1"
    sudo.write_text(f"#!/bin/sh\n{command}\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=tmp_path / name))
    make_home = configured(monkeypatch).Authenticator.post_auth_hook
    log, login = Mock(), {"name": "ann"}
    making = make_home(SimpleNamespace(log=log), None, login)
    if succeeds:
        assert asyncio.run(making) is login
        assert home.is_dir()
    else:
        with pytest.raises(HTTPError, match="home folder"):
            asyncio.run(making)
        assert "no space left" in log.error.call_args.args[-1]


def test_a_login_does_not_wait_for_ever_for_a_home(monkeypatch, tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\nexec sleep 60\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=tmp_path / name))
    monkeypatch.setattr(hub_configuration, "HOME_SECONDS", 0.2)
    make_home = configured(monkeypatch).Authenticator.post_auth_hook
    with pytest.raises(HTTPError, match="home folder"):
        asyncio.run(make_home(SimpleNamespace(log=Mock()), None, {"name": "ann"}))


def test_the_reference_has_the_hubs_own_metrics(monkeypatch):
    registry = CollectorRegistry()
    monkeypatch.setattr(hub_configuration, "REGISTRY", registry)
    configured(monkeypatch)
    text = generate_latest(registry).decode()
    names = set(re.findall("^# TYPE (carme_[a-z_]+) counter", text, re.MULTILINE))
    assert names == {metric.name for metric in metrics_reference.HUB}
    limits = set(re.findall('limit="([a-z ]+)"', text))
    assert limits == {
        "requests", "requests a minute", "questions", "changes of jobs", "checks of images",
        "extensions",
    }  # fmt: skip
