"""`carme.toml` as one frozen tree: every setting, its default and the reason for it."""

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

from carme.config.local import LocalGpus, LocalNode, LocalSettings
from carme.config.monitoring import (
    AlertSettings,
    ExporterSettings,
    PrometheusSettings,
    ServiceSettings,
)
from carme.config.platform import (
    ClusterSettings,
    HubSettings,
    ImageSettings,
    Preset,
    SessionSettings,
    SlurmSettings,
    ViewSettings,
)
from carme.config.section import Section
from carme.errors import ConfigError
from carme.validation import field_path, message

__all__ = [
    "AlertSettings",
    "Config",
    "ExporterSettings",
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
        most = 2 * self.exporter.interval_seconds
        if self.prometheus.scrape_seconds > most:
            raise ValueError(
                f"prometheus.scrape_seconds must be at most twice exporter.interval_seconds: {most}"
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
        lines = [f"{source}: {_explain(problem)}" for problem in error.errors()]
        raise ConfigError("\n".join(lines), "carme config show lists every key") from None


def _explain(problem: Any) -> str:
    parents = problem["loc"][:-1]
    where = field_path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{where}: no such key; allowed here: {', '.join(_keys_at(list(parents)))}"
    if isinstance(problem["input"], dict):  # about several keys: it names them itself
        text = problem["msg"].removeprefix("Value error, ")
        return f"{where}: {text}" if where else text
    return f"{where}: {message(problem)}, not {problem['input']!r}"


def _keys_at(path: list[Any]) -> list[str]:
    """The keys allowed in the table at `path`, list positions skipped."""
    model: Any = Config
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := _model_in(inner):
            return found
    return None
