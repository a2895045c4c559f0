"""`carme.toml` as one frozen tree: every setting, its default and the reason for it."""

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from carme.config.settings import (
    AlertSettings,
    ClusterSettings,
    ExporterSettings,
    HubSettings,
    ImageSettings,
    LocalGpus,
    LocalNode,
    LocalSettings,
    Preset,
    PrometheusSettings,
    Section,
    ServiceSettings,
    SessionSettings,
    SlurmSettings,
    ViewSettings,
)
from carme.errors import ConfigError
from carme.validation import explain

__all__ = [
    "AlertSettings",
    "Config",
    "ExporterSettings",
    "HubSettings",
    "ImageSettings",
    "LocalGpus",
    "LocalNode",
    "Preset",
    "PrometheusSettings",
    "Section",
    "SessionSettings",
    "SlurmSettings",
    "ViewSettings",
    "config_path",
    "load",
    "parse",
]
DEFAULT_PATH = Path("/etc/carme/carme.toml")


class Config(Section):
    """The whole file."""

    cluster: ClusterSettings = ClusterSettings()
    slurm: SlurmSettings = SlurmSettings()
    view: ViewSettings = ViewSettings()
    hub: HubSettings = HubSettings()
    images: ImageSettings = ImageSettings()
    session: SessionSettings = SessionSettings()
    exporter: ExporterSettings = ExporterSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    alerts: AlertSettings = AlertSettings()
    service: ServiceSettings = ServiceSettings()
    local: LocalSettings = LocalSettings()

    @model_validator(mode="after")
    def _scraped_in_time(self) -> "Config":
        maximum = 2 * self.exporter.interval_seconds
        if self.prometheus.scrape_seconds > maximum:
            raise ValueError(
                "prometheus.scrape_seconds must be at most twice exporter.interval_seconds:"
                f" {maximum}"
            )
        if 60 % self.prometheus.scrape_seconds or self.prometheus.scrape_seconds % 1:
            # Grafana rounds the steps of plots to minutes, and they must be multiples of this.
            raise ValueError(
                "prometheus.scrape_seconds must divide a minute:"
                " 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60"
            )
        return self


def config_path() -> Path:
    """The file that CARME_CONFIG names, else the machine's, else the one-machine cluster's."""
    named = os.environ.get("CARME_CONFIG")
    if named:
        return Path(named)
    local = LocalSettings().dir / "etc/carme.toml"
    return local if local.exists() and not DEFAULT_PATH.exists() else DEFAULT_PATH


def load(path: Path | None = None) -> Config:
    """The configuration in `path`; without one, the machine's, or all defaults if it has none."""
    if path is None:
        path = config_path()
        if not path.exists() and "CARME_CONFIG" not in os.environ:
            return Config()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "check the path or CARME_CONFIG") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return parse(data, str(path))


def parse(data: dict[str, Any], source: str) -> Config:
    """The configuration in `data`; errors name source, key, problem and what is allowed."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [f"{source}: {line}" for line in explain(error, root="", model=Config)]
        raise ConfigError("\n".join(lines), "carme config show lists every key") from None
