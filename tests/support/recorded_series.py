"""A private Prometheus on series that a test invents or replays."""

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from carme.prometheus import PrometheusClient
from support.cluster import wait_for
from support.ports import free_port

Point = tuple[float, float]


def line(name: str, labels: Mapping[str, str], points: Iterable[Point]) -> str:
    """A series as OpenMetrics text, with its values at (Unix seconds, value)."""
    named = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
    head = f"{name}{{{named}}}"
    return "".join(f"{head} {value!r} {at:.3f}\n" for at, value in points)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def blocks(text: Iterable[str], data: Path) -> None:
    """Make TSDB blocks of OpenMetrics text in `data`."""
    data.mkdir(parents=True, exist_ok=True)
    source = data.with_suffix(".txt")
    with source.open("w", encoding="utf-8") as file:
        file.writelines(text)
        file.write("# EOF\n")
    add_blocks(source, data)


def add_blocks(source: Path, data: Path) -> None:
    """Make TSDB blocks of a file of OpenMetrics text in `data`, and delete the file."""
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(data)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    source.unlink()


@contextmanager
def serving(data: Path, config: str = "") -> Iterator[PrometheusClient]:
    """A Prometheus on the blocks in `data`, on a free port of loopback.

    `config` defines what it scrapes and evaluates; `@self` in it is its own address.
    """
    program = shutil.which("prometheus", path="/usr/bin:/usr/local/bin")
    assert program, "prometheus is not installed"
    address = f"127.0.0.1:{free_port()}"
    file = data.with_suffix(".yml")
    file.write_text(config.replace("@self", address), encoding="ascii")
    command = [
        *(program, f"--config.file={file}", f"--storage.tsdb.path={data}"),
        *(f"--web.listen-address={address}", "--log.level=error"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://{address}"
    try:
        wait_for(lambda: _ready(url), 60, "Prometheus is ready")
        yield PrometheusClient(url, timeout_seconds=60)
    finally:
        process.terminate()
        process.wait(30)


def _ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/-/ready", timeout=5).status_code == 200
    except requests.ConnectionError:
        time.sleep(0.2)
        return False
