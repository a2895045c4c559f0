"""A user's request for a session: the form, and the check of its options."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from traitlets.log import get_logger

from carme.errors import BusyError, CarmeError, DeniedError, UnavailableError
from carme.images.catalogue import Catalogue, load_catalogue
from carme.requests.placement import all_problems
from carme.requests.resource_request import Problems
from carme.requests.user_limits import user_problems, with_allowed_hours
from carme.slurm.snapshot import Snapshot
from carme_spawner import form
from carme_spawner.cluster_state import FORM_MAX_AGE_SECONDS
from carme_spawner.context import HubContext
from carme_spawner.messages import SessionFailure, http_status
from carme_spawner.options import SessionOptions, defaults, option_problems, project_folders


class SpawnRequestChecker:
    """Renders the form of one user and checks the options that come back."""

    def __init__(self, context: HubContext, user: str) -> None:
        self._config, self._helper = context.config, context.helper
        self._cluster_state, self._questions = context.cluster_state, context.questions
        self._user = user

    @property
    def projects(self) -> dict[str, Path]:
        """The project folders that the user's groups have."""
        return project_folders(self._config.session.projects, self._user)

    async def form(
        self,
        last_options: Mapping[str, Any],
        refused_values: Mapping[str, Any],
        problems: Problems,
        ended_message: str,
    ) -> str:
        """The form, filled with the last session's options or the refused ones."""
        state = self._cluster_state
        async with self._turn():
            snapshot, catalogue, user = await asyncio.gather(
                _unless_away(state.latest_snapshot()),
                self._catalogue(),
                state.slurm_user(self._user),
            )
        values = defaults(self._config.session, snapshot, catalogue)
        if snapshot:
            values = with_allowed_hours(values, {}, snapshot, user, time.time())
        last = {name: value for name, value in last_options.items() if name in values}
        return form.render(
            self._config,
            snapshot,
            catalogue,
            {**values, **last, **refused_values},
            problems,
            user=user,
            now=time.time(),
            projects=self.projects,
            ended_message=ended_message,
        )

    async def check(self, raw: Mapping[str, Any]) -> SessionOptions:
        """The options in `raw`; raises SessionFailure if one of them is wrong."""
        state = self._cluster_state
        async with self._turn():
            snapshot, catalogue, user = await asyncio.gather(
                _unless_away(state.fresh_snapshot(FORM_MAX_AGE_SECONDS)),
                self._catalogue(),
                state.slurm_user(self._user),
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
        options, problems = SessionOptions.parse({**values, **raw})
        if options:
            now = time.time()
            if user.rights is not None and user_problems(options, snapshot, user, now):
                user = await state.slurm_user(self._user, 0)  # the rights may be new
            problems = {
                **all_problems(options, snapshot, user, now, settings.max_nodes),
                **option_problems(options, catalogue, self.projects),
            }
        if options and options.own_image and not problems:
            # Checked as the user, since the hub may not read it. The session uses the real path: a
            # link could point elsewhere later.
            try:
                if not self._config.images.own_images:
                    raise DeniedError("this site allows published images only")
                image = await self._helper.check_image(self._user, options.own_image)
                options = options.model_copy(update={"own_image": image.path})
            except UnavailableError as error:
                raise SessionFailure(
                    str(error), reason=error.reason, status_code=http_status(error)
                ) from error
            except CarmeError as error:
                problems = {"own_image": str(error)}
        if problems or options is None:
            raise SessionFailure(
                SessionOptions.summary(problems), reason="input", problems=problems
            )
        return options

    async def image(self, options: SessionOptions) -> tuple[Path, int, str]:
        """The image's file, its size if it is published, and the URL path of the application."""
        if options.own_image:
            return Path(options.own_image), 0, "/lab"
        catalogue = await self._catalogue()
        image = catalogue.find(options.image)
        paths = {application.name: application.path for application in image.applications}
        default_path = next(iter(paths.values()), "/lab")
        return catalogue.path(image), image.size_bytes, paths.get(options.application, default_path)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the user's turn to ask the view; SessionFailure above their limit."""
        try:
            async with self._questions.async_turn(self._user):
                yield
        except BusyError as error:
            raise SessionFailure(
                str(error), reason=error.reason, status_code=http_status(error)
            ) from None

    async def _catalogue(self) -> Catalogue:
        images = self._config.images
        return await asyncio.to_thread(load_catalogue, images.folder, bool(images.verify_key))


async def _unless_away(snapshot: Awaitable[Snapshot]) -> Snapshot | None:
    try:
        return await snapshot
    except CarmeError as error:
        get_logger().warning("No view of Slurm: %s", error)
        return None
