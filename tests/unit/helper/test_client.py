"""The hub's side of the helper, with programs that take too long."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from carme.errors import BusyError, UnavailableError
from carme.helper.client import HelperClient


def client(folder: Path, script: str, seconds: float = 30) -> HelperClient:
    """A client whose `sudo` is `script`."""
    program = folder / "sudo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return HelperClient(Path("/helper"), Path("/carme.toml"), (str(program),), seconds)


def test_an_answer(tmp_path: Path) -> None:
    asyncio.run(client(tmp_path, "cat >/dev/null; echo '{}'").cancel("ann", 7))


@pytest.mark.parametrize("where", ["1", "2"])
def test_an_endless_answer_is_cut(tmp_path: Path, where: str) -> None:
    """The helper runs as the user, who may replace its answer: the hub must not keep all of it."""
    endless = client(tmp_path, f"cat >/dev/null; exec yes >&{where}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnavailableError, match="printed more than 1048576 bytes"):
        asyncio.run(endless.cancel("ann", 7))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_long_request_arrives_whole(tmp_path: Path) -> None:
    kept = tmp_path / "request"
    prints = 'yes x | head -c 500000 >&2; echo \'{"job_id": 5, "folder": "/x"}\''
    long = client(tmp_path, f"{prints}; cat >{kept}")
    script = "#!/bin/sh\n" + "x" * 10**6
    assert asyncio.run(long.submit("ann", "default", script)).job_id == 5
    assert json.loads(kept.read_text())["script"] == script


@pytest.mark.parametrize(
    ("verb", "arguments", "answer"),
    [
        ("submit", ("default", "#!/bin/sh"), {"job_id": -5, "folder": "/x"}),
        ("submit", ("default", "#!/bin/sh"), {"job_id": "7", "folder": "/x"}),
        ("submit", ("default", "#!/bin/sh"), {"job_id": 2**40, "folder": "/x"}),
        ("submit", ("default", "#!/bin/sh"), {"job_id": True, "folder": "/x"}),
        ("extend", (7, 600), {"limit_seconds": 10**30, "ends_at": 0}),
        ("extend", (7, 600), {"limit_seconds": 60, "ends_at": -1}),
        ("check_image", ("/x.sif",), {"path": "x.sif", "size_bytes": 1}),
        ("check_image", ("/x.sif",), {"path": "/x.sif,/etc:/etc", "size_bytes": 1}),
        ("check_image", ("/x.sif",), {"path": "/x\n#SBATCH --uid=0", "size_bytes": 1}),
        ("check_image", ("/x.sif",), {"path": "/x.sif", "size_bytes": 10**30}),
        ("tail_log", ("default",), {"text": "x" * 2**19}),
        ("cancel", (7,), [1]),
    ],
)
def test_answers_that_no_helper_gives_are_refused(
    tmp_path: Path, verb: str, arguments: tuple[Any, ...], answer: object
) -> None:
    (tmp_path / "answer").write_text(json.dumps(answer))
    lying = client(tmp_path, f"cat >/dev/null; cat {tmp_path}/answer")
    with pytest.raises(UnavailableError, match="cannot be read"):
        asyncio.run(getattr(lying, verb)("ann", *arguments))


def test_deep_json_is_refused(tmp_path: Path) -> None:
    deep = client(tmp_path, "cat >/dev/null; head -c 900000 /dev/zero | tr '\\0' '['")
    with pytest.raises(UnavailableError, match="the helper failed"):
        asyncio.run(deep.cancel("ann", 7))


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


def test_one_users_calls_leave_helpers_to_others(tmp_path: Path) -> None:
    """Extensions of ann hang, and so do more of her submissions than she may have at a time."""
    hang = f'case "$*" in *user=ann*) while [ ! -e {tmp_path}/go ]; do sleep 0.05; done;; esac'
    slow = client(tmp_path, f'cat >/dev/null; {hang}; echo \'{{"job_id": 5, "folder": "/x"}}\'')

    async def run() -> None:
        ann = [asyncio.create_task(slow.extend("ann", 7, 600)) for _ in range(40)]
        ann += [asyncio.create_task(slow.submit("ann", "default", "#!/bin/sh")) for _ in range(12)]
        ann += [asyncio.create_task(slow.check_image("ann", "/x.sif")) for _ in range(12)]
        await asyncio.sleep(0)
        refused = [task for task in ann if task.done() and task.exception()]
        try:
            submitted = await asyncio.wait_for(slow.submit("ben", "default", "#!/bin/sh"), 20)
            assert submitted.job_id == 5
            assert not [task for task in ann if task.done() and task not in refused]
        finally:
            (tmp_path / "go").touch()
        await asyncio.gather(*ann, return_exceptions=True)
        assert len(refused) == 35, "one extension runs, four wait"
        assert all(isinstance(task.exception(), BusyError) for task in refused)
        assert all(task.result().job_id == 5 for task in ann[40:52]), "sessions are not refused"

    asyncio.run(run())
