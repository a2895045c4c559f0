"""Where a user asks for a session: the form, and the check of what was asked for."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traitlets.log import get_logger

from carme.config import Config
from carme.errors import CarmeError, DeniedError
from carme.helper.client import HelperClient
from carme.images.catalogue import Catalogue, load_catalogue
from carme.slurm.snapshot import Snapshot
from carme_spawner import form, options, user_limits
from carme_spawner.cluster_state import cluster_state_for
from carme_spawner.failure import SessionFailure
from carme_spawner.options import Options, Problems
from carme_spawner.projects import projects
from carme_spawner.slurm_user import SlurmUser


class SpawnRequestChecker:
    """What one user can have: of the cluster, of the images, by the user's own rights."""

    def __init__(self, config: Config, user: str, helper: HelperClient) -> None:
        self._config, self._user, self._helper = config, user, helper
        self._watch = cluster_state_for(config)

    @property
    def projects(self) -> dict[str, Path]:
        """The project folders that the user's groups have."""
        return projects(self._config.session.projects, self._user)

    async def form(
        self, last: Mapping[str, Any], kept: Mapping[str, Any], found: Problems, ended: str
    ) -> str:
        """The form, with the last session's choice, or what was just refused and why."""
        snapshot, catalogue, person = await asyncio.gather(
            self._snapshot(fresh=False), self._catalogue(), self._person()
        )
        settings = self._config.session
        values = options.defaults(settings, snapshot, catalogue)
        if snapshot:
            values = user_limits.fitted(values, {}, snapshot, person, time.time())
        known = {name: value for name, value in last.items() if name in values}
        return form.render(
            snapshot,
            catalogue,
            settings.presets,
            {**values, **known, **kept},
            found,
            person=person,
            now=time.time(),
            projects=self.projects,
            own_images=self._config.images.own_images,
            max_nodes=settings.max_nodes,
            ended_message=ended,
        )

    async def check(self, raw: Mapping[str, Any]) -> Options:
        """The choice in `raw`; SessionFailure if something of it is wrong."""
        snapshot, catalogue, person = await asyncio.gather(
            self._snapshot(), self._catalogue(), self._person()
        )
        if snapshot is None:
            raise SessionFailure(
                "Slurm cannot be reached at the moment. Try again in a minute.",
                reason="unavailable",
                status_code=503,
            )
        settings = self._config.session
        base = options.defaults(settings, snapshot, catalogue)
        base = user_limits.fitted(base, dict(raw), snapshot, person, time.time())
        choice, found = options.parse({**base, **raw})
        if choice:
            found = await self._not_permitted(choice, snapshot, person)
            found |= options.problems(
                choice, snapshot, catalogue, self.projects, settings.max_nodes
            )
        if choice and choice.own_image and not found:
            try:
                real = await self._own_image(choice.own_image)
                choice = choice.model_copy(update={"own_image": real})
            except CarmeError as error:
                found = {"own_image": str(error)}
        if found or choice is None:
            raise SessionFailure(options.summary(found), reason="input", problems=found)
        return choice

    async def image(self, choice: Options) -> tuple[Path, int, str]:
        """The image's file, its size if it is published, and the page of the application."""
        if choice.own_image:
            return Path(choice.own_image), 0, "/lab"
        catalogue = await self._catalogue()
        image = catalogue.find(choice.image)
        paths = {application.name: application.path for application in image.applications}
        first = next(iter(paths.values()), "/lab")
        return catalogue.path(image), image.size_bytes, paths.get(choice.application, first)

    async def _catalogue(self) -> Catalogue:
        images = self._config.images
        return await asyncio.to_thread(load_catalogue, images.folder, bool(images.verify_key))

    async def _snapshot(self, fresh: bool = True) -> Snapshot | None:
        try:
            return await (self._watch.snapshot() if fresh else self._watch.recent())
        except CarmeError as error:
            get_logger().warning("No view of Slurm: %s", error)
            return None

    async def _person(self, max_age: float | None = None) -> SlurmUser:
        return await self._watch.person(self._user, max_age)

    async def _not_permitted(
        self, choice: Options, snapshot: Snapshot, person: SlurmUser
    ) -> Problems:
        """What is not this user's to have; asked twice, for rights may be new."""
        found = user_limits.problems(choice, snapshot, person, time.time())
        if not found or person.rights is None:
            return found
        return user_limits.problems(choice, snapshot, await self._person(0), time.time())

    async def _own_image(self, path: str) -> str:
        """The file itself, as the user's own eyes see it: it may be closed to the hub.

        It is this name that was checked; a link to it may have any name.
        """
        if not self._config.images.own_images:
            raise DeniedError("this site allows published images only")
        return (await self._helper.check_image(self._user, path)).path
