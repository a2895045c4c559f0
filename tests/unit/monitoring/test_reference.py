"""The reference in the docs is what the metric tables say."""

from pathlib import Path

from support.generators import metrics_reference

ROOT = Path(__file__).resolve().parents[3]
GENERATOR = "monitoring/generators/metrics_reference.py"


def test_the_page_is_current() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    made = metrics_reference.markdown()
    assert page == made, f"run: ./dev run python {GENERATOR} > docs/reference/metrics.md"
