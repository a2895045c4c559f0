"""`GET /hub/api/carme/session`: a running session reads its own end and warning."""

from typing import Any

from jupyterhub.apihandlers import APIHandler
from tornado import web

from carme.config import Config


def spawner_of(handler: Any) -> Any:
    """The spawner of the session whose own token the request carries; 403 without one."""
    token = handler.get_auth_token()
    spawners = getattr(handler.current_user, "spawners", {})
    for spawner in spawners.values() if token else ():
        if getattr(spawner, "owns_token", None) and spawner.owns_token(token):
            return spawner
    raise web.HTTPError(403, "this token does not belong to a session")


class SessionHandler(APIHandler):
    """The end and the warning of the session whose own token the request carries."""

    def initialize(self, config: Config) -> None:
        super().initialize()
        self._config = config

    @web.authenticated
    async def get(self) -> None:
        """The job as the hub saw it last, seconds ago; Slurm is not asked."""
        spawner = spawner_of(self)
        job = spawner.job
        self.write(
            {
                "job_id": job.id if job else None,
                "ends_at": job.ends_at if job else None,
                "warn_seconds": round(60 * self._config.session.warn_minutes),
                "may_extend": self._config.view.extend_max_hours > 0,
                "warning": spawner.warning,
            }
        )
