"""What the handlers and spawners of one hub share."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.config import Config, config_path
from carme.helper.client import HelperClient
from carme.view.client import AsyncViewClient
from carme_spawner.availability import AvailabilityPanel
from carme_spawner.cluster_state import ClusterState
from carme_spawner.idle_policy import GpuIdleness
from carme_spawner.prediction_service import PredictionService


@dataclass(frozen=True)
class HubContext:
    """Made once, in `configure`."""

    config: Config
    cluster_state: ClusterState
    gpu_idleness: GpuIdleness
    availability: AvailabilityPanel
    prediction_service: PredictionService
    helper: HelperClient

    @classmethod
    def of(cls, config: Config, service_token: str = "") -> "HubContext":
        """The context for a configuration; nothing is read yet."""
        view = AsyncViewClient(config.view.socket)
        return cls(
            config,
            ClusterState(view),
            GpuIdleness(view),
            AvailabilityPanel(),
            PredictionService(config, service_token),
            HelperClient(Path(sys.prefix) / "bin/carme-helper", config_path()),
        )

    def __deepcopy__(self, memo: Any) -> "HubContext":
        """The context itself: traitlets copies configuration values for each spawner."""
        return self
