"""JupyterHub's proxy as a separate process; lost routes are restored."""

from typing import Any

from jupyterhub.proxy import ConfigurableHTTPProxy
from tornado.ioloop import PeriodicCallback
from traitlets import Float


class CarmeProxy(ConfigurableHTTPProxy):
    """A proxy that the hub does not start, and that loses its routes when it restarts.

    JupyterHub checks the routes every five minutes. Until then a restarted proxy would answer
    "not found" to all users.
    """

    check_seconds = Float(2, help="Seconds between checks for lost routes").tag(config=True)
    _watch: PeriodicCallback | None = None

    async def check_routes(self, user_dict: Any, service_dict: Any, routes: Any = None) -> None:
        """JupyterHub's own check; its first call, at the start, also starts the frequent one."""
        await super().check_routes(user_dict, service_dict, routes)
        if self._watch is None:
            self._watch = PeriodicCallback(
                lambda: self._restore(user_dict, service_dict), 1000 * self.check_seconds
            )
            self._watch.start()

    async def _restore(self, user_dict: Any, service_dict: Any) -> None:
        try:
            routes = await self.get_all_routes()
        except Exception as error:
            # The next check is in two seconds; no error may end the checks.
            self.log.warning("The proxy does not answer: %s", error)
            return
        expected = {self.app.hub.routespec} | {
            spawner.proxy_spec
            for user in user_dict.values()
            for spawner in user.spawners.values()
            if spawner.ready
        }
        if expected - routes.keys():
            self.log.warning("Adding routes that the proxy lost: %s", expected - routes.keys())
            await super().check_routes(user_dict, service_dict, routes)
