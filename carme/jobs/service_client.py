"""Jobs over the hub's address and the service's API, for machines without carme-view."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError
from carme.jobs.models import JobLine, JobList, JobReport
from carme.slurm.models import SlurmModel

Model = TypeVar("Model", bound=SlurmModel)
_API = "/services/carme/api/v1"
_PAGE = 100
"""Jobs that the service gives at a time."""
_TIMEOUT_SECONDS = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for the hub alone: a redirect might lead elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServiceJobsClient:
    """As ViewClient answers about jobs. `url` is the hub's public address, `token` one of the
    hub's with the scope `access:services!service=carme`."""

    def __init__(self, url: str, token: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url!r} is not the address of a hub", "such as https://hub.example")
        self._hub = url.rstrip("/").removesuffix("/hub")
        if not token:
            raise InputError(
                f"{self._hub} wants a token",
                f"make one at {self._hub}/hub/token, and set CARME_TOKEN to it",
            )
        if not token.isascii() or not token.isprintable():
            raise InputError("this token has characters that no token has", "copy it again")
        self._headers = {"Authorization": f"token {token}", "Accept": "application/json"}
        self._timeout = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirect)

    def report(self, job_id: int) -> JobReport:
        """One job; MissingError if it is not there or not to be seen."""
        return self._read(JobReport, self._get(f"/jobs/{job_id}").get("job"))

    def reports(self, *, limit: int, **query: object) -> JobList:
        """Jobs as JobFilter chooses them, the newest `limit`."""
        jobs: dict[int, JobLine] = {}
        cursor: object = 0
        while True:
            page = self._get("/jobs", {**query, "limit": min(limit, _PAGE), "cursor": cursor})
            items = page.get("items")
            for item in items if isinstance(items, list) else ():
                job = self._read(JobLine, item)
                jobs[job.id] = job
            cursor = page.get("next")
            if not cursor or len(jobs) >= limit:
                break
        shown = tuple(jobs.values())[:limit]
        left_out = int(page.get("left_out") or 0) + len(jobs) - len(shown)
        return JobList(jobs=shown, left_out=left_out, problem=str(page.get("problem") or ""))

    def _get(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        values = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        address = f"{self._hub}{_API}{path}?{urllib.parse.urlencode(values)}"
        request = urllib.request.Request(address, headers=self._headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise self._explain(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"{self._hub} does not answer: {reason}") from None
        if not isinstance(answer, dict):
            raise self._unreadable()
        return answer

    def _read(self, model: type[Model], value: Any) -> Model:
        try:
            return model.model_validate(value)
        except ValidationError:
            raise self._unreadable() from None

    def _unreadable(self) -> UnavailableError:
        return UnavailableError(
            f"{self._hub}{_API} gives answers that this release cannot read",
            "is it the address of a hub with Carme's service?",
        )

    def _explain(self, error: urllib.error.HTTPError) -> CarmeError:
        """The service's own words, where it gave any."""
        try:
            problem = json.load(error)
            message, hint = str(problem["detail"]), str(problem.get("hint", ""))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            message, hint = f"{self._hub} answers {error.code} for Carme's service", ""
        if error.code in (401, 403):
            return DeniedError(
                "the hub does not accept this token for Carme's service",
                f"make one at {self._hub}/hub/token with access to the service, and set"
                " CARME_TOKEN to it",
            )
        if error.code == 404:
            return MissingError(message, hint)
        if error.code in (400, 422):
            return InputError(message, hint)
        return UnavailableError(message, hint or "is the service running? ask an administrator")
