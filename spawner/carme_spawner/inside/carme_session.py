"""A Jupyter server extension: how much time the session has left, how to get more, and whether
it is about to be ended because its GPUs do nothing.

Runs inside the user's server with whatever Jupyter the image has. It knows nothing by itself: it
asks the hub with the session's own token, so that more time is seen wherever it came from.
"""

import json
import os
import time
from contextlib import suppress

from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

KEEP_SECONDS = 30
"""Many open tabs, one question to the hub."""


def _jupyter_server_extension_points():
    return [{"module": "carme_session"}]


def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"].rstrip("/")
    app.web_app.add_handlers(".*$", [(f"{base}/carme/time", TimeHandler)])


class TimeHandler(APIHandler):
    """`GET` says when the session ends and what its user should know; `POST {"minutes": N}` asks
    for more."""

    known = (float("-inf"), {})

    @web.authenticated
    async def get(self):
        at, told = TimeHandler.known
        if time.monotonic() - at > KEEP_SECONDS:
            told = await self._ask_hub("GET", "session")
            TimeHandler.known = (time.monotonic(), told)
        self.finish({**told, "now": time.time()})

    @web.authenticated
    async def post(self):
        minutes = (self.get_json_body() or {}).get("minutes")
        name = os.environ.get("JUPYTERHUB_SERVER_NAME", "")
        told = await self._ask_hub("POST", "extend", {"server": name, "minutes": minutes})
        TimeHandler.known = (float("-inf"), {})
        self.finish({**told, "now": time.time()})

    async def _ask_hub(self, method, path, body=None):
        try:
            answer = await AsyncHTTPClient().fetch(
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
        return json.loads(answer.body)
