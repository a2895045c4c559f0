"""Limits on the requests of each user at the hub: how many in a minute, and how many at a time."""

import asyncio
from typing import Any

from jupyterhub.handlers import BaseHandler

from carme.config import HubSettings
from carme.errors import BusyError
from carme.fair_use import FairGate, RateLimiter
from carme_spawner.messages import http_error

_AT_ONCE = 10_000
"""Of all users together: the hub can hold so many connections, and most of them wait."""
_TICKET = "_carme_ticket"


class RequestLimits:
    """Counts the requests of each user; those of services and of strangers do not count."""

    def __init__(self, hub: HubSettings) -> None:
        self.rate = RateLimiter(hub.requests_per_minute)
        self.at_once = FairGate("requests", _AT_ONCE, hub.requests_at_once, 0)

    def begin(self, handler: Any) -> None:
        """Count the request of a user who is logged in; raises a 429 above a limit."""
        user = handler.current_user
        if getattr(user, "kind", "") != "user" or hasattr(handler, _TICKET):
            return
        try:
            self.rate.check(user.name)
            setattr(handler, _TICKET, self.at_once.enter(user.name))
        except BusyError as error:
            raise http_error(error) from None

    @staticmethod
    def end(handler: Any) -> None:
        """Nothing works for the request any more."""
        ticket = getattr(handler, _TICKET, None)
        if ticket:
            ticket.leave()

    def guard(self) -> None:
        """Have all of JupyterHub's handlers count their requests.

        JupyterHub has no setting for this. `prepare` is where it finds out who sends a request. The
        place is given back by Tornado's task of the request: a handler may override `on_finish`,
        and may go on working after its client is gone.
        """
        prepare = BaseHandler.prepare

        async def counted(handler: Any) -> None:
            await prepare(handler)
            if not handler._finished:  # it may have been redirected
                self.begin(handler)
                if task := asyncio.current_task():
                    task.add_done_callback(lambda _: self.end(handler))

        BaseHandler.prepare = counted
