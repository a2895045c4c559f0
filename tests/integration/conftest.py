"""Fixtures of the integration tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.slurm_live import Jobs


@pytest.fixture
def jobs(cluster: Any) -> Iterator[Jobs]:
    """Submits jobs as users; cancels them after the test."""
    test_jobs = Jobs(cluster)
    yield test_jobs
    test_jobs.clear()
