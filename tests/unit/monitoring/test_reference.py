"""The reference in the docs is what the table says."""

from pathlib import Path

from carme_monitoring.reference import markdown

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"


def test_the_page_is_current() -> None:
    command = "./dev run python -m carme_monitoring.reference > docs/reference/metrics.md"
    assert PAGE.read_text(encoding="utf-8") == markdown(), f"renew it: {command}"
