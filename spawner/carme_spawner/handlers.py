"""The hub's endpoint for sessions: a started server reports its port, and nothing else."""

import json
from typing import Any

from jupyterhub.apihandlers import APIHandler
from tornado import web

MIN_PORT, MAX_PORT = 1024, 65535


class PortHandler(APIHandler):
    """`POST /hub/api/carme/port` with the session's own token and `{"port": N}`."""

    @web.authenticated
    async def post(self) -> None:
        """Take the port of the session whose token this is."""
        spawner = self._spawner()
        spawner.port_reported(parse_port(self.request.body))
        self.set_status(204)

    def _spawner(self) -> Any:
        token = self.get_auth_token()
        spawners = getattr(self.current_user, "spawners", {})
        for spawner in spawners.values() if token else ():
            if getattr(spawner, "owns_token", None) and spawner.owns_token(token):
                return spawner
        raise web.HTTPError(403, "this token does not belong to a session that is starting")


def parse_port(body: bytes) -> int:
    """The port in `{"port": N}`; any other key, type or range is refused."""
    try:
        data = json.loads(body)
    except ValueError:
        raise web.HTTPError(400, "the body is not JSON") from None
    if not isinstance(data, dict) or data.keys() != {"port"}:
        raise web.HTTPError(400, "the body must be an object with the one key port")
    port = data["port"]
    if type(port) is not int or not MIN_PORT <= port <= MAX_PORT:
        raise web.HTTPError(400, f"port must be an integer from {MIN_PORT} to {MAX_PORT}")
    return port
