"""The prediction service as the hub uses it: its entry among the hub's services, and a client."""

import json
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from carme.config import Config
from carme.requests.resource_request import AdviceRequest

NAME = "carme"
KEEP_SECONDS = 10


class PredictionService:
    """A client of the service. `token` is the one that hub and service share; empty without it."""

    def __init__(self, config: Config, token: str) -> None:
        service = config.service
        self.token = token
        self._url = f"http://{service.listen}:{service.port}"
        path = f"{config.hub.base_url}services/{NAME}"
        self._api = f"{self._url}{path}/api/v1"
        self._callback_url = f"{config.hub.origin}{path}/oauth_callback"

    def entry(self) -> dict[str, Any]:
        """The service's entry in JupyterHub.services."""
        return {
            "name": NAME,
            "url": self._url,
            "api_token": self.token,
            "oauth_no_confirm": True,
            "oauth_redirect_uri": self._callback_url,
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
        fields = set(AdviceRequest.model_fields)
        body = request.model_dump(mode="json", include=fields, exclude_none=True)
        try:
            return await self.post(
                user, "session-predictions", {**body, "job_id": job_id}, KEEP_SECONDS
            )
        except (HTTPClientError, OSError, ValueError):
            return None
