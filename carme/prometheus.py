"""A client of Prometheus' HTTP API."""

import base64
import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.errors import ConfigError, DeniedError, InputError, UnavailableError

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A series with its one value."""

    labels: Mapping[str, str]
    value: float

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "")


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """A series with its values over time, as (Unix seconds, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A scrape target and its health: up, down or unknown."""

    job: str
    instance: str
    health: str
    error: str = ""


class PrometheusClient:
    """The HTTP API of a Prometheus server. Blocks: an event loop calls it from a thread."""

    def __init__(
        self, url: str, login: str = "", timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url} is not an address of Prometheus", "http://HOST:9090")
        self.url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if login:
            token = base64.b64encode(login.strip().encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    @classmethod
    def of(
        cls, url: str, login_file: Path | None, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> "PrometheusClient":
        """With the `user:password` that `login_file` holds."""
        try:
            login = login_file.read_text(encoding="utf-8") if login_file else ""
        except OSError as error:
            raise ConfigError(
                f"{login_file}: the login for Prometheus cannot be read: {error.strerror}",
                "only administrators have one; prometheus.login_file or --login names the file",
            ) from None
        return cls(url, login, timeout_seconds)

    def query(self, expression: str, at: float | None = None) -> tuple[Sample, ...]:
        """The value of every series now, or at Unix time `at`; NaN is left out."""
        moment = {} if at is None else {"time": f"{at:.3f}"}
        rows = _rows(self._ask("query", {"query": expression, **moment}))
        return tuple(
            Sample(labels, value)
            for labels, row in rows
            if "value" in row and not math.isnan(value := float(row["value"][1]))
        )

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> tuple[RangeSeries, ...]:
        """Every series from `start` to `end`."""
        parameters = {
            "query": expression,
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "step": f"{step:.3f}",
        }
        return tuple(
            RangeSeries(
                labels, tuple((float(at), float(value)) for at, value in row.get("values", ()))
            )
            for labels, row in _rows(self._ask("query_range", parameters))
        )

    def label_values(self, label: str, match: Sequence[str] = ()) -> tuple[str, ...]:
        """Values of a label, of the series that match."""
        query = urllib.parse.urlencode([("match[]", text) for text in match])
        path = f"label/{urllib.parse.quote(label, safe='')}/values?{query}"
        return tuple(str(value) for value in self._ask(path))

    def label_names(self, match: Sequence[str]) -> tuple[str, ...]:
        """The labels of the series that match; none if there are no such series."""
        query = urllib.parse.urlencode([("match[]", text) for text in match])
        return tuple(str(name) for name in self._ask(f"labels?{query}"))

    def targets(self) -> tuple[ScrapeTarget, ...]:
        """The active scrape targets."""
        try:
            return tuple(
                ScrapeTarget(
                    row["labels"].get("job", ""),
                    row["labels"].get("instance", ""),
                    row["health"],
                    row.get("lastError", ""),
                )
                for row in self._ask("targets?state=active")["activeTargets"]
            )
        except (KeyError, TypeError, AttributeError):
            raise UnavailableError("Prometheus' answer cannot be read") from None

    def alertmanagers(self) -> tuple[str, ...]:
        """Addresses that the server sends alerts to."""
        try:
            return tuple(
                str(row["url"]) for row in self._ask("alertmanagers")["activeAlertmanagers"]
            )
        except (KeyError, TypeError):
            raise UnavailableError("Prometheus' answer cannot be read") from None

    def _ask(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """The data of an answer; `parameters` are sent by POST."""
        body = urllib.parse.urlencode(parameters).encode() if parameters else None
        address = f"{self.url}/api/v1/{path}"
        request = urllib.request.Request(address, body, self._headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:  # noqa: S310
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(self.url, error) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"{self.url} does not answer: {reason}") from None


def _rows(data: Any) -> list[tuple[dict[str, str], dict[str, Any]]]:
    try:
        if data["resultType"] == "scalar":
            return [({}, {"value": data["result"]})]
        return [(dict(row["metric"]), row) for row in data["result"]]
    except (KeyError, TypeError):
        raise UnavailableError("Prometheus' answer cannot be read") from None


def _refused(
    url: str, error: urllib.error.HTTPError
) -> DeniedError | InputError | UnavailableError:
    if error.code in (401, 403):
        return DeniedError(f"{url} wants other credentials", "--login FILE, prometheus.login_file")
    try:
        message = str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        message = ""
    if error.code in (400, 422):
        return InputError(f"Prometheus refuses the query: {message}")
    return UnavailableError(f"{url} answers {error.code} {message}".rstrip())
