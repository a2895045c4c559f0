"""A Jupyter server extension: the time that the session has left, more time on request, the
warning for idle GPUs, and pages without tokens.

Runs in the session with the image's own Jupyter. It reads everything from the hub, with the
session's own token, so that it also shows an extension that was made elsewhere.
"""

import json
import os
import time
from contextlib import suppress

from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.ioloop import IOLoop

KEEP_SECONDS = 30
"""The hub's reply is kept this long, for all open tabs."""


def _jupyter_server_extension_points():
    return [{"module": "carme_session"}]


def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"].rstrip("/")
    app.web_app.add_handlers(".*$", [(f"{base}/carme/time", TimeHandler)])
    # JupyterHub's own extension may be loaded later, and then sets its hook.
    IOLoop.current().add_callback(hide_token, app.web_app.settings)


def hide_token(settings):
    """Keep the user's token out of JupyterLab's page, where any script could read it.

    JupyterLab then uses the session's cookie, which scripts cannot read.
    """
    page_config_hook = settings.get("page_config_hook")

    def hook(handler, page_config):
        if page_config_hook:
            page_config = page_config_hook(handler, page_config)
        return {**page_config, "token": ""}

    settings["page_config_hook"] = hook


class TimeHandler(APIHandler):
    """`GET`: the session's end and warning; `POST {"minutes": N}`: more time."""

    cached = (float("-inf"), {})

    @web.authenticated
    async def get(self):
        read_at, session = TimeHandler.cached
        if time.monotonic() - read_at > KEEP_SECONDS:
            session = await self._ask_hub("GET", "session")
            TimeHandler.cached = (time.monotonic(), session)
        self.finish({**session, "now": time.time()})

    @web.authenticated
    async def post(self):
        minutes = (self.get_json_body() or {}).get("minutes")
        name = os.environ.get("JUPYTERHUB_SERVER_NAME", "")
        extended = await self._ask_hub("POST", "extend", {"server": name, "minutes": minutes})
        TimeHandler.cached = (float("-inf"), {})
        self.finish({**extended, "now": time.time()})

    async def _ask_hub(self, method, path, body=None):
        try:
            response = await AsyncHTTPClient().fetch(
                f"{os.environ['JUPYTERHUB_API_URL']}/carme/{path}",
                method=method,
                headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
                body=None if body is None else json.dumps(body),
                request_timeout=20,
            )
        except HTTPClientError as error:
            message = str(error)
            if error.response is not None:
                with suppress(ValueError, KeyError, TypeError):
                    message = json.loads(error.response.body)["message"]
            code = error.code if 400 <= error.code < 500 else 502
            raise web.HTTPError(code, message) from None
        except OSError as error:
            raise web.HTTPError(502, f"the hub does not answer: {error}") from None
        return json.loads(response.body)
