"""Fixtures for all tests: the measured data, and a private cluster with everything in it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONG = (
    "ansible/test_deploy",
    "browser/test_images",
    *(f"integration/test_{name}" for name in (
        "lifecycle", "ending", "images_docker", "rules", "job_report", "gpu_idle", "resilience",
        "exporter_energy", "service", "doctor", "time_limits",
    )),
)  # fmt: skip
"""Files that take minutes, the longest first. Workers start with these, so that no long file runs
alone at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long files first if several workers share the files (`./dev test`)."""
    if hasattr(config, "workerinput"):
        order = {f"{ROOT}/tests/{name}.py": index for index, name in enumerate(LONG)}
        items.sort(key=lambda item: order.get(str(item.path), len(LONG)))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measured data, which is not part of the project."""
    folder = os.environ.get("CARME_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no measured data: CARME_DATA names no folder")
    return Path(folder)


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """A private cluster with its own folder, ports and users; removed after the tests."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("the one-machine cluster needs root on Debian")
    from carme.local.cluster import LocalCluster
    from carme.system.files import locked
    from support.cluster import Cluster, worker_config

    config = worker_config()
    # Two runs with one configuration take turns: they have the same folder, ports and users.
    with locked(Path(f"/run/carme-tests-{config.cluster.name}.lock")):
        local = LocalCluster(config)
        local.purge(print)
        try:
            local.up(print)
            running = Cluster(local)
            running.wait_for_routes()
            yield running
        finally:
            local.purge(print)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's Chromium; installed if it is missing and the user is root."""
    import shutil

    program = shutil.which("chromium")
    if not program:
        if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
            pytest.skip("no Chromium; on Debian: apt-get install chromium")
        from carme.local import packages

        packages.install({"chromium": "the browser of the tests"}, print, Path("/dev/null"))
        program = shutil.which("chromium")
    assert program
    return program


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    """A real browser, new for each module."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def screenshots() -> object:
    """`screenshots(page, name)` renews the picture in docs/, when CARME_SCREENSHOTS is set."""

    def take(page: object, name: str) -> None:
        if os.environ.get("CARME_SCREENSHOTS"):
            folder = ROOT / "docs/pictures"
            folder.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=folder / f"{name}.png")  # type: ignore[attr-defined]

    return take
