"""Reads jobs from the service at the hub's address, on machines without carme-view."""

import http.client
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
_PAGE = 100
"""Jobs that the service gives at a time."""
_TIMEOUT_SECONDS = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could send the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _JobAnswer(SlurmModel):
    job: JobReport


class _JobPage(SlurmModel):
    items: tuple[JobLine, ...] = ()
    next: str | None = None
    left_out: int = 0
    problem: str = ""


class ServiceJobsClient:
    """Reads jobs as ViewClient does. `url` is the hub's public address, which may have a path;
    `token` is a token of the hub with the scope `access:services!service=carme`."""

    def __init__(self, url: str, token: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url!r} is not the address of a hub", "such as https://hub.example")
        self._hub = url.rstrip("/").removesuffix("/hub")
        self._api = f"{self._hub}/services/carme/api/v1"
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
        """One job; MissingError if there is none that the user may see."""
        return self._get(_JobAnswer, f"/jobs/{job_id}", {}).job

    def reports(self, *, limit: int, **query: object) -> JobList:
        """The newest `limit` jobs that JobFilter chooses."""
        jobs: dict[int, JobLine] = {}
        cursor: str | None = "0"
        while cursor and len(jobs) < limit:
            size = min(limit, _PAGE)
            page = self._get(_JobPage, "/jobs", {**query, "limit": size, "cursor": cursor})
            jobs |= {job.id: job for job in page.items}
            cursor = page.next
        shown = tuple(jobs.values())[:limit]
        left_out = page.left_out + len(jobs) - len(shown)
        return JobList(jobs=shown, left_out=left_out, problem=page.problem)

    def _get(self, model: type[Model], path: str, query: Mapping[str, object]) -> Model:
        values = {name: value for name, value in query.items() if value not in (None, "")}
        address = f"{self._api}{path}?{urllib.parse.urlencode(values)}"
        request = urllib.request.Request(address, headers=self._headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return model.model_validate_json(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._explain(error) from None
        except ValidationError:
            raise UnavailableError(
                f"{self._api} gives answers that this release cannot read",
                "is it the address of a hub with Carme's service?",
            ) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"{self._hub} does not answer: {reason}") from None

    def _explain(self, error: urllib.error.HTTPError) -> CarmeError:
        """The service's own message, if it sent one."""
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
