"""Sections of what measures and predicts: exporter, Prometheus, alerts, service."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from carme.config.section import Port, Section, UnixName


class RedfishSettings(Section):
    """The node's management controller, asked for the power of the whole node."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """The Power or EnvironmentMetrics resource, with the full path."""
    user: str = ""
    password_file: Path | None = None
    """Holds nothing but the password; readable by the exporter alone."""
    ca_file: Path | None = None


class ExporterSettings(Section):
    """`carme-exporter`: what is measured on every node and charged to jobs."""

    listen: str = "127.0.0.1"
    """The address it serves on; nodes of a cluster set the one Prometheus reaches."""
    port: Port = 9810
    web_config: Path | None = Path("/etc/carme/exporter-web.yml")
    """Users and TLS, in the form of Prometheus' exporter-toolkit; `none` only with --open."""
    run: Path = Path("/run/carme")
    """Where prolog and epilog keep their records and find the exporter's socket."""
    state: Path = Path("/var/lib/carme-exporter")
    """Counters survive a restart here."""
    interval_seconds: Annotated[float, Field(ge=1, le=300)] = 15
    """Between collections; Prometheus' usual scrape interval."""
    series_limit: Annotated[int, Field(ge=100)] = 20_000
    """Beyond this, further jobs share the series with jobid `other`."""
    keep_seconds: Annotated[float, Field(ge=0, le=86400)] = 300
    """A job's series end so long after the job."""
    profiles: tuple[Literal["dcgm", "nvidia-gpu", "cgroup", "slurm-exporter"], ...] = ()
    """Further names for the same values, for dashboards made for other exporters."""
    unrecorded_jobs: bool = True
    """Also count jobs that have a cgroup and no record of the prolog; off where clusters share
    a machine, and so the cgroups."""
    readers: tuple[UnixName, ...] = ()
    """Unix users besides root who see every job in `carme top`; others see their own."""
    bursts: Literal["asked", "always", "never"] = "asked"
    """Profiles at 20 Hz for jobs submitted with --comment=carme-profile, for all, or for none."""
    ipmi: bool = False
    """Ask IPMI DCMI for node power; needs ipmitool and the right to use it."""
    redfish: RedfishSettings | None = None
    emissions_grams_per_kwh: Annotated[float, Field(ge=0)] | None = None
    """CO2 equivalent of the site's electricity; unset: no emissions are exported."""
    price_per_kwh: Annotated[float, Field(ge=0)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "EUR"
    factors_file: Path | None = None
    """JSON kept current by another program (grams_per_kwh, price_per_kwh); wins over the above."""


class ServiceSettings(Section):
    """The prediction service: a JupyterHub service with an API and pages."""

    user: UnixName = "carme-service"
    """The Unix user it runs as; may read all jobs from carme-view."""
    listen: str = "127.0.0.1"
    """The hub's proxy reaches it here; nobody else needs to."""
    port: Port = 8610
    database: str = "sqlite:////var/lib/carme-service/service.sqlite"
    """Any SQLAlchemy URL; PostgreSQL for larger sites."""
    token_cache_seconds: Annotated[float, Field(ge=0, le=600)] = 30
    """How long the hub's word on a token counts; a revoked one works so long at most."""
    requests_per_minute: Annotated[int, Field(ge=10)] = 6000
    """Of one user; beyond it the answer is 429."""
    most_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 1_000_000
    most_onnx_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 64_000_000
    """Of an uploaded ONNX file; graphs without their weights are far smaller."""
    processes: Annotated[int, Field(ge=1, le=64)] = 2
    """Simulate the points of large suites, beside the process that answers."""
    points_at_once: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Suites up to this size are answered at once, larger ones as a task."""
    most_points: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    grams_co2_per_kwh: Annotated[float, Field(ge=0)] = 480
    """World average of 2023 (Ember); `exporter.emissions_grams_per_kwh` wins if it is set."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Facility energy over node energy."""
    hardware: dict[str, str] = Field(default_factory=dict)
    """Slurm's GPU types by what `carme hardware` calls them, where the names do not tell."""


class PrometheusSettings(Section):
    """Where Prometheus answers, how often it reads the exporters, how long it keeps the series."""

    url: Annotated[str, Field(pattern=r"^https?://")] = "http://127.0.0.1:9090"
    """Where it answers."""
    login_file: Path | None = Path("/etc/carme/prometheus-login")
    """Holds `user:password`; for carme-view, which answers about jobs, and nobody else to read."""
    scrape_seconds: Annotated[float, Field(ge=1, le=60)] = 15
    """No more than twice `exporter.interval_seconds`: a new user's first figures would be lost."""
    evaluation_seconds: Annotated[float, Field(ge=1, le=60)] = 30
    """Between evaluations of recording and alert rules: figures are over five minutes and more."""
    retention_days: Annotated[int, Field(ge=1, le=3660)] = 90
    """What is older goes; how much disk that takes is in how-to/monitoring."""
    retention_gb: Annotated[int, Field(ge=1)] | None = None
    """Beyond this much the oldest goes earlier; unset: no limit."""
    targets: Path = Path("/var/lib/carme-discovery/nodes.json")
    """Where `carme-discovery` writes the nodes that Slurm has, for Prometheus to read."""
    runbooks_url: Annotated[str, Field(pattern=r"^(https?://[^\s\"']+)?$")] = ""
    """Where the site publishes docs/runbooks; alerts then link there."""


class AlertSettings(Section):
    """Who hears of alerts. With nobody named they only show in Alertmanager and Grafana."""

    email_to: str = ""
    """Severities critical and warning by mail; several addresses with commas."""
    email_from: str = ""
    smtp_host: Annotated[str, Field(pattern=r"^([^\s:]+:\d+)?$")] = ""
    """HOST:PORT of the mail server."""
    webhook_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Gets every alert as JSON: a chat's gateway, an on-call service."""

    @model_validator(mode="after")
    def _whole(self) -> "AlertSettings":
        if self.email_to and not (self.email_from and self.smtp_host):
            raise ValueError("email_to needs email_from and smtp_host")
        return self
