"""Sphinx: MyST pages, and reference pages generated from the code."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
sys.path.append(str(Path(__file__).parents[1] / "monitoring/generators"))

project = "Carme"
copyright = "the Carme authors"
release = version = installed("carme")
extensions = [
    "myst_parser",
    "sphinx_click",
    "carme_reference",
    "carme_catalogue",
    "carme_rules",
    "carme_dashboards",
    "carme_api",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Carme"
exclude_patterns = ["_build"]
nitpicky = True
