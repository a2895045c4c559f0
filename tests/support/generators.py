"""The generators of committed files, which the installed package does not have."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "monitoring/generators"))

import metrics_reference
import recording_rules

__all__ = ["metrics_reference", "recording_rules"]
