"""JupyterHub's proxy as a process of its own, whose routes come back by themselves."""

from typing import Any

from jupyterhub.proxy import ConfigurableHTTPProxy
from tornado.ioloop import PeriodicCallback
from traitlets import Float


class CarmeProxy(ConfigurableHTTPProxy):
    """A proxy that the hub does not start, and that may lose all its routes at any moment.

    The hub looks at the routes of such a proxy every five minutes; a restarted one would show
    "not found" to everybody until then.
    """

    check_seconds = Float(2, help="How often the hub looks whether the proxy lost its routes").tag(
        config=True
    )
    _watch: PeriodicCallback | None = None

    async def check_routes(self, user_dict: Any, service_dict: Any, routes: Any = None) -> None:
        """The hub's own check; its first call, at the start, also begins the watch."""
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
            # Whatever it is, the next look is in two seconds; the watch must not end.
            self.log.warning("The proxy does not answer: %s", error)
            return
        wanted = {self.app.hub.routespec} | {
            spawner.proxy_spec
            for user in user_dict.values()
            for spawner in user.spawners.values()
            if spawner.ready
        }
        if wanted - routes.keys():
            self.log.warning("Adding routes that the proxy lost: %s", wanted - routes.keys())
            await super().check_routes(user_dict, service_dict, routes)
