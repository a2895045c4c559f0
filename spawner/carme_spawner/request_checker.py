"""A user's request for a session: the form, and the check of its options."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carme.requests.problems import Problems
from traitlets.log import get_logger

from carme.errors import CarmeError, DeniedError, UnavailableError
from carme.images.catalogue import Catalogue, load_catalogue
from carme.requests.slurm_user import SlurmUser
from carme.requests.user_limits import user_problems, with_allowed_hours
from carme.slurm.snapshot import Snapshot
from carme_spawner import form
from carme_spawner.context import HubContext
from carme_spawner.failure import SessionFailure
from carme_spawner.options import SessionOptions, defaults, option_problems, parse, summary
from carme_spawner.projects import projects


class SpawnRequestChecker:
    """Renders the form of one user and checks the options that come back."""

    def __init__(self, context: HubContext, user: str) -> None:
        self._config, self._helper = context.config, context.helper
        self._cluster_state = context.cluster_state
        self._user = user

    @property
    def projects(self) -> dict[str, Path]:
        """The project folders that the user's groups have."""
        return projects(self._config.session.projects, self._user)

    async def form(
        self,
        last_options: Mapping[str, Any],
        refused_values: Mapping[str, Any],
        problems: Problems,
        ended_message: str,
    ) -> str:
        """The form, filled with the last session's options or the refused ones."""
        snapshot, catalogue, user = await asyncio.gather(
            self._snapshot(fresh=False), self._catalogue(), self._slurm_user()
        )
        settings = self._config.session
        values = defaults(settings, snapshot, catalogue)
        if snapshot:
            values = with_allowed_hours(values, {}, snapshot, user, time.time())
        last = {name: value for name, value in last_options.items() if name in values}
        return form.render(
            snapshot,
            catalogue,
            settings.presets,
            {**values, **last, **refused_values},
            problems,
            user=user,
            now=time.time(),
            projects=self.projects,
            own_images=self._config.images.own_images,
            max_nodes=settings.max_nodes,
            ended_message=ended_message,
            base_url=self._config.hub.base_url,
        )

    async def check(self, raw: Mapping[str, Any]) -> SessionOptions:
        """The options in `raw`; raises SessionFailure if one of them is wrong."""
        snapshot, catalogue, user = await asyncio.gather(
            self._snapshot(), self._catalogue(), self._slurm_user()
        )
        if snapshot is None:
            raise SessionFailure(
                "Slurm cannot be reached at the moment. Try again in a minute.",
                reason="unavailable",
                status_code=503,
            )
        settings = self._config.session
        values = defaults(settings, snapshot, catalogue)
        values = with_allowed_hours(values, dict(raw), snapshot, user, time.time())
        options, problems = parse({**values, **raw})
        if options:
            problems = await self._user_problems(options, snapshot, user)
            problems |= option_problems(
                options, snapshot, catalogue, self.projects, settings.max_nodes
            )
        if options and options.own_image and not problems:
            try:
                path = await self._own_image(options.own_image)
                options = options.model_copy(update={"own_image": path})
            except UnavailableError as error:
                raise SessionFailure(str(error), reason=error.reason, status_code=503) from error
            except CarmeError as error:
                problems = {"own_image": str(error)}
        if problems or options is None:
            raise SessionFailure(summary(problems), reason="input", problems=problems)
        return options

    async def image(self, options: SessionOptions) -> tuple[Path, int, str]:
        """The image's file, its size if it is published, and the URL path of the application."""
        if options.own_image:
            return Path(options.own_image), 0, "/lab"
        catalogue = await self._catalogue()
        image = catalogue.find(options.image)
        paths = {application.name: application.path for application in image.applications}
        first = next(iter(paths.values()), "/lab")
        return catalogue.path(image), image.size_bytes, paths.get(options.application, first)

    async def _catalogue(self) -> Catalogue:
        images = self._config.images
        return await asyncio.to_thread(load_catalogue, images.folder, bool(images.verify_key))

    async def _snapshot(self, fresh: bool = True) -> Snapshot | None:
        state = self._cluster_state
        try:
            return await (state.snapshot() if fresh else state.recent())
        except CarmeError as error:
            get_logger().warning("No view of Slurm: %s", error)
            return None

    async def _slurm_user(self, max_age: float | None = None) -> SlurmUser:
        return await self._cluster_state.person(self._user, max_age)

    async def _user_problems(
        self, options: SessionOptions, snapshot: Snapshot, user: SlurmUser
    ) -> Problems:
        """What this user may not have; rights are read again first, as they may be new."""
        problems = user_problems(options, snapshot, user, time.time())
        if not problems or user.rights is None:
            return problems
        return user_problems(options, snapshot, await self._slurm_user(0), time.time())

    async def _own_image(self, path: str) -> str:
        """The real path of a user's image, checked as the user: the hub may not read it.

        The session uses this path, since a link could point elsewhere later.
        """
        if not self._config.images.own_images:
            raise DeniedError("this site allows published images only")
        return (await self._helper.check_image(self._user, path)).path
