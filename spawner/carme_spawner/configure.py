"""`configure(c)`: the one line of jupyterhub_config.py that turns Carme on."""

import asyncio
import logging
import os
import pwd
from pathlib import Path
from subprocess import STDOUT
from typing import Any

from jupyterhub import apihandlers
from prometheus_client import REGISTRY
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tornado import web
from traitlets.config.loader import LazyConfigValue

from carme.config import Config, HubSettings, load
from carme.errors import CarmeError
from carme.refusal_metrics import RefusalMetrics
from carme.system.programs import execute
from carme_spawner.context import HubContext
from carme_spawner.form import static_urls
from carme_spawner.handlers import handlers, replace_handlers
from carme_spawner.prediction_service import NAME
from carme_spawner.request_limits import RequestLimits
from carme_spawner.session_certificates import NoCookies
from carme_spawner.session_origins import HEADERS, SessionOrigins

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
HOME_SECONDS = 60
"""A login waits this long for a new home folder, which may be on a slow file system."""


def configure(c: Any, config: Config | None = None) -> None:
    """Set up JupyterHub's configuration object `c` from carme.toml; later lines may change it."""
    config = config or load()
    # Taken out of the environment, so that no process of the hub inherits the tokens.
    context = HubContext.of(config, os.environ.pop("CARME_SERVICE_TOKEN", ""))
    metrics_token = os.environ.pop("CARME_PROMETHEUS_TOKEN", "")
    hub = config.hub
    c.JupyterHub.bind_url = hub.url
    c.JupyterHub.hub_bind_url = f"http://{hub.api_address}:{hub.api_port}"
    c.JupyterHub.db_url = hub.database
    c.JupyterHub.cookie_secret_file = str(Path.cwd() / "cookie_secret")
    c.JupyterHub.template_paths = [str(Path(__file__).parent / "templates")]
    c.JupyterHub.template_vars = {
        "carme_title": config.cluster.title,
        "carme_static": static_urls(hub.base_url),
        "carme_may_extend": config.view.extend_max_hours > 0,
        "carme_warn_minutes": config.session.warn_minutes,
    }
    c.JupyterHub.extra_handlers = handlers(context)
    replace_handlers(apihandlers.default_handlers)
    c.JupyterHub.tornado_settings = _with_headers(c.JupyterHub)
    _separate_sessions(c, hub)
    _limit_users(context)
    context.certificates.publish()
    c.JupyterHubHTTPClient.connector_options = context.certificates.connector_options()
    c.JupyterHubHTTPClient.session_options = {"cookie_jar": NoCookies()}

    if hub.database.startswith("sqlite"):
        event.listen(Engine, "connect", _quick_commits)

    # A hub that ends leaves sessions and routes alone: Slurm and the proxy have them.
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.cleanup_proxy = False
    c.JupyterHub.proxy_class = "carme"
    c.CarmeProxy.should_start = False
    c.CarmeProxy.api_url = f"http://{LOOPBACK}:{hub.proxy_port}"

    # A spawn that waits in Slurm's queue costs the hub nothing, so there is no limit.
    c.JupyterHub.concurrent_spawn_limit = 0
    c.JupyterHub.spawner_class = "carme"
    c.JupyterHub.allow_named_servers = config.session.named_limit > 0
    c.JupyterHub.named_server_limit_per_user = config.session.named_limit
    c.CarmeSpawner.context = context

    c.JupyterHub.authenticator_class = "pam"
    c.PAMAuthenticator.allowed_groups = {hub.users_group}
    c.PAMAuthenticator.admin_groups = {hub.admins_group}
    c.PAMAuthenticator.open_sessions = False  # needs root
    if hub.make_homes:
        c.Authenticator.post_auth_hook = _make_home

    services, roles = [], []
    if metrics_token:
        services.append({"name": "prometheus", "api_token": metrics_token})
        roles.append({"name": "prometheus", "services": ["prometheus"], "scopes": ["read:metrics"]})
    if context.prediction_service.token:
        services.append(context.prediction_service.entry())
        access = f"access:services!service={NAME}"
        roles.append({"name": "user", "scopes": ["self", access]})
        # The scopes of JupyterHub's role `server`, and the service's: for `carme jobs`.
        scopes = ["users:activity!user", "access:servers!server", access]
        c.CarmeSpawner.server_token_scopes = scopes
    c.JupyterHub.services = services
    c.JupyterHub.load_roles = roles


def _with_headers(hub: Any) -> dict[str, Any]:
    """The site's own settings of Tornado, with our headers."""
    settings = hub.get("tornado_settings", {})
    if isinstance(settings, LazyConfigValue):  # changed with `update`
        settings = settings.get_value({})
    return {**settings, "headers": {**settings.get("headers", {}), **HEADERS}}


def _separate_sessions(c: Any, hub: HubSettings) -> None:
    """Give sessions host names of their own, so that their pages cannot act at the hub."""
    origins = SessionOrigins(hub)
    if not origins.pattern:
        log.warning(
            "Sessions share the hub's host name, so a page of one user can act for another: set"
            " hub.session_host in carme.toml"
        )
        return
    origins.guard()
    c.JupyterHub.subdomain_host = hub.origin
    c.JupyterHub.subdomain_hook = origins.host_of
    # Cookies that no other host of the domain can set. Browsers take them over TLS only.
    c.JupyterHub.cookie_host_prefix_enabled = hub.url.startswith("https:")


def _limit_users(context: HubContext) -> None:
    """Limit the requests of each user, and count refusals in the hub's metrics."""
    limits, helper = RequestLimits(context.config.hub), context.helper
    limits.guard()
    gates = (limits.at_once, context.questions, helper.jobs, helper.images, helper.extensions)
    REGISTRY.register(RefusalMetrics("carme_hub_refusals", limits.rate, *gates))


def _quick_commits(connection: Any, _record: Any) -> None:
    """Commit without waiting for the disk: the hub commits a dozen times for each session.

    With a write-ahead log a killed hub loses nothing. A power failure may lose the last seconds,
    but does not damage the file.
    """
    for setting in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {setting}").close()


async def _make_home(authenticator: Any, _handler: Any, authentication: Any) -> Any:
    """Make the home folder of a user who logs in for the first time."""
    name = authentication["name"]
    try:
        home = Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        return authentication
    if not home.exists():
        authenticator.log.info("Making the home folder of %s", name)
        argv = ["sudo", "-n", "/usr/sbin/mkhomedir_helper", name, "0077"]
        try:
            done = await asyncio.to_thread(
                execute, argv, stderr=STDOUT, timeout_seconds=HOME_SECONDS
            )
            problem = f"exit code {done.returncode}: {done.stdout}" if done.returncode else ""
        except CarmeError as error:
            problem = str(error)
        if problem:
            authenticator.log.error("No home for %s: %s", name, problem)
            raise web.HTTPError(500, "Your home folder could not be made; tell an administrator.")
    return authentication
