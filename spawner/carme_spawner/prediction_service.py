"""The prediction service as the hub knows it: its entry among the hub's services, and the one
question the spawn form asks through the hub."""

import json
import os
from typing import Any

from jupyterhub.apihandlers import APIHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from carme.config import Config
from carme.requests.resource_request import ADVICE_SECONDS, AdviceRequest

NAME = "carme"
PREFIX = f"/services/{NAME}"
KEEP_SECONDS = 10
_token: list[str] = []


def service_token() -> str:
    """The token that hub and service share; taken from the environment once, so that nothing the
    hub starts inherits it."""
    if not _token:
        _token.append(os.environ.pop("CARME_SERVICE_TOKEN", ""))
    return _token[0]


def service_entry(config: Config, token: str) -> dict[str, Any]:
    """For JupyterHub.services."""
    service = config.service
    return {
        "name": NAME,
        "url": f"http://{service.listen}:{service.port}",
        "api_token": token,
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": ["read:users!user"],
        "display": True,
    }


async def ask_service(
    config: Config, user: str, path: str, body: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """The service's answer for a user; HTTPClientError or OSError when it has none in time."""
    service = config.service
    request = HTTPRequest(
        f"http://{service.listen}:{service.port}{PREFIX}/api/v1/{path}",
        method="POST",
        headers={
            "Authorization": f"token {service_token()}",
            "Carme-User": user,
            "Content-Type": "application/json",
        },
        body=json.dumps(body),
        connect_timeout=seconds,
        request_timeout=seconds,
    )
    answer = await AsyncHTTPClient().fetch(request)
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def keep_prediction(
    config: Config, user: str, choice: AdviceRequest, job_id: int
) -> dict[str, Any] | None:
    """Have the service store what it predicts for a session just submitted; None if it cannot.

    Only for a declared workload. A session never fails or waits for this.
    """
    if not choice.workload or not service_token():
        return None
    plan = {"kind": "synchronous", "batch": choice.batch, "epochs": choice.epochs}
    body = {
        "workload": choice.workload,
        "hardware": {
            "partition": choice.partition,
            "gpu_type": choice.gpu_type if choice.gpus else "",
            "count": choice.nodes * max(choice.gpus, 1),
        },
        "plan": {name: value for name, value in plan.items() if value is not None},
        "keep": True,
        "job_id": job_id,
    }
    try:
        return await ask_service(config, user, "predictions", body, KEEP_SECONDS)
    except (HTTPClientError, OSError, ValueError):
        return None


class AdviceHandler(APIHandler):
    """`GET /hub/api/carme/advice?partition=…&workload=…`: what the service says of a choice."""

    def initialize(self, config: Config) -> None:
        super().initialize()
        self._config = config

    @web.authenticated
    async def get(self) -> None:
        """Its advice; 503 within a second while it is away or slow."""
        user = self.current_user
        if getattr(user, "kind", "user") != "user":
            raise web.HTTPError(403, "advice is for users")
        given = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        body = {k: v for k, v in given.items() if k in AdviceRequest.model_fields and v}
        try:
            found = await ask_service(self._config, user.name, "advice", body, ADVICE_SECONDS)
        except HTTPClientError as error:
            if error.response is not None and 400 <= error.code < 500:
                raise web.HTTPError(400, _detail(error.response.body)) from None
            raise web.HTTPError(503, "no advice now: the prediction service is away") from None
        except (OSError, ValueError):
            raise web.HTTPError(503, "no advice now: the prediction service is away") from None
        self.write(found)


def _detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return f"{problem['detail']} ({problem['hint']})" if problem["hint"] else problem["detail"]
    except (ValueError, KeyError, TypeError):
        return "the prediction service does not take this"


def advice_handlers(config: Config) -> list[tuple[Any, ...]]:
    """For JupyterHub's extra_handlers."""
    return [(r"/api/carme/advice", AdviceHandler, {"config": config})]
