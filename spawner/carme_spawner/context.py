"""What the handlers and spawners of one hub share."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme.config import Config, config_path
from carme.fair_use import FairGate
from carme.helper.client import HelperClient
from carme.view.client import AsyncViewClient
from carme_spawner.availability import AvailabilityPanel
from carme_spawner.cluster_state import ClusterState
from carme_spawner.idle_policy import GpuIdleness
from carme_spawner.prediction_service import PredictionService
from carme_spawner.session_certificates import SessionCertificates

_QUESTIONS_AT_ONCE = 24
"""Fewer than the connections that the hub has at the view."""
_QUESTIONS_PER_USER = 4
_QUESTIONS_WAITING = 16
"""Questions of one user that wait: forms in several tabs ask again at every change."""


@dataclass(frozen=True)
class HubContext:
    """Made once, in `configure`."""

    config: Config
    cluster_state: ClusterState
    gpu_idleness: GpuIdleness
    availability: AvailabilityPanel
    prediction_service: PredictionService
    helper: HelperClient
    certificates: SessionCertificates
    questions: FairGate
    """Requests that ask the view or the prediction service."""

    @classmethod
    def of(cls, config: Config, service_token: str = "") -> "HubContext":
        """The context for a configuration; nothing is read yet."""
        view = AsyncViewClient(config.view.socket)
        public_file = os.environ.get("CARME_SESSION_AUTHORITY")
        return cls(
            config,
            ClusterState(view),
            GpuIdleness(view),
            AvailabilityPanel(),
            PredictionService(config, service_token),
            HelperClient(
                Path(sys.prefix) / "bin/carme-helper",
                config_path(),
                per_user=config.hub.helpers_per_user,
            ),
            SessionCertificates(Path.cwd(), Path(public_file) if public_file else None),
            FairGate("questions", _QUESTIONS_AT_ONCE, _QUESTIONS_PER_USER, _QUESTIONS_WAITING),
        )

    def __deepcopy__(self, memo: Any) -> "HubContext":
        """The context itself: traitlets copies configuration values for each spawner."""
        return self
