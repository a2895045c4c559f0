"""The hub's side of the helper, with programs that take too long."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carme.errors import UnavailableError
from carme.helper.client import HelperClient


def client(folder: Path, script: str, seconds: float = 30) -> HelperClient:
    """A client whose `sudo` is `script`."""
    program = folder / "sudo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return HelperClient(Path("/helper"), Path("/carme.toml"), (str(program),), seconds)


def test_an_answer(tmp_path: Path) -> None:
    asyncio.run(client(tmp_path, "cat >/dev/null; echo '{}'").cancel("ann", 7))


def test_what_cannot_be_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sudo is root's, and the hub is not."""

    def denied(process: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess.Popen, "kill", denied)
    pid = tmp_path / "pid"
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.3 s"):
        asyncio.run(client(tmp_path, f"echo $$ >{pid}; exec sleep 30", 0.3).cancel("ann", 7))
    assert time.monotonic() - started < 5
    os.kill(int(pid.read_text()), signal.SIGTERM)


def test_slow_images_keep_nobody_from_ending_a_job(tmp_path: Path) -> None:
    slow = client(tmp_path, 'case "$*" in *check-image) sleep 5 ;; esac; echo "{}"')

    async def run() -> float:
        checks = [asyncio.ensure_future(slow.check_image("ben", "/x.sif")) for _ in range(9)]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await slow.cancel("ann", 7)
        took = time.monotonic() - started
        for check in checks:
            check.cancel()
        return took

    assert asyncio.run(run()) < 4


def test_the_helper_ends_itself() -> None:
    """With a clear answer, from wherever it hangs."""
    code = (
        "import sys; from carme.helper import program; program._MAX_SECONDS = 1;"
        " sys.argv[1:] = ['--config', '/carme.toml', 'cancel']; program.main()"
    )
    # It waits for its request, which never ends.
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.wait(20) == 1
        assert process.stdout
        assert "not done within 1 s" in process.stdout.read()
    finally:
        for stream in (process.stdin, process.stdout):
            assert stream
            stream.close()
