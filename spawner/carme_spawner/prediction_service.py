"""The prediction service as the hub uses it: its entry among the hub's services, the prediction
stored with a session, and the advice in the spawn form."""

import json
from typing import Any

from jupyterhub.apihandlers import APIHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from carme.config import Config
from carme.requests.resource_request import ADVICE_SECONDS, AdviceRequest

NAME = "carme"
KEEP_SECONDS = 10


class PredictionService:
    """A client of the service. `token` is the one that hub and service share; empty without it."""

    def __init__(self, config: Config, token: str) -> None:
        service = config.service
        self.token = token
        self._url = f"http://{service.listen}:{service.port}"
        self._api = f"{self._url}{config.hub.base_url}services/{NAME}/api/v1"

    def entry(self) -> dict[str, Any]:
        """The service's entry in JupyterHub.services."""
        return {
            "name": NAME,
            "url": self._url,
            "api_token": self.token,
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": ["read:users!user"],
            "display": True,
        }

    async def post(
        self, user: str, path: str, body: dict[str, Any], seconds: float
    ) -> dict[str, Any]:
        """The answer for a user; raises HTTPClientError, OSError or ValueError without one in
        time."""
        request = HTTPRequest(
            f"{self._api}/{path}",
            method="POST",
            headers={
                "Authorization": f"token {self.token}",
                "Carme-User": user,
                "Content-Type": "application/json",
            },
            body=json.dumps(body),
            connect_timeout=seconds,
            request_timeout=seconds,
        )
        response = await AsyncHTTPClient().fetch(request)
        answer: dict[str, Any] = json.loads(response.body)
        return answer

    async def keep_prediction(
        self, user: str, request: AdviceRequest, job_id: int
    ) -> dict[str, Any] | None:
        """Have the service store its prediction for a session just submitted; None if it cannot.

        Only for a declared workload. A session never fails or waits for this.
        """
        if not request.workload or not self.token:
            return None
        plan = {"kind": "synchronous", "batch": request.batch, "epochs": request.epochs}
        body = {
            "workload": request.workload,
            "hardware": {
                "partition": request.partition,
                "gpu_type": request.gpu_type if request.gpus else "",
                "count": request.nodes * max(request.gpus, 1),
            },
            "plan": {name: value for name, value in plan.items() if value is not None},
            "keep": True,
            "job_id": job_id,
        }
        try:
            return await self.post(user, "predictions", body, KEEP_SECONDS)
        except (HTTPClientError, OSError, ValueError):
            return None


class AdviceHandler(APIHandler):
    """`GET /hub/api/carme/advice?partition=…&workload=…`: the service's advice on a request."""

    def initialize(self, service: PredictionService) -> None:
        super().initialize()
        self._service = service

    @web.authenticated
    async def get(self) -> None:
        """The advice; 503 within a second while the service is away or slow."""
        user = self.current_user
        if getattr(user, "kind", "user") != "user":
            raise web.HTTPError(403, "advice is for users")
        query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        body = {k: v for k, v in query.items() if k in AdviceRequest.model_fields and v}
        try:
            self.write(await self._service.post(user.name, "advice", body, ADVICE_SECONDS))
        except HTTPClientError as error:
            if error.response is not None and 400 <= error.code < 500:
                raise web.HTTPError(400, _detail(error.response.body)) from None
            raise web.HTTPError(503, "no advice now: the prediction service is away") from None
        except (OSError, ValueError):
            raise web.HTTPError(503, "no advice now: the prediction service is away") from None


def _detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return f"{problem['detail']} ({problem['hint']})" if problem["hint"] else problem["detail"]
    except (ValueError, KeyError, TypeError):
        return "the prediction service does not accept this request"
