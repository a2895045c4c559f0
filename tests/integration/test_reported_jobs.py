"""A user who replaces what the helper reports to the hub, on a live Slurm: the hub asks Slurm whose
job it is before it uses or ends it."""

import asyncio
import dataclasses
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carme.helper.client import HelperClient
from carme.slurm.models import Job
from carme_spawner.context import HubContext
from carme_spawner.messages import SessionFailure
from carme_spawner.session_job import SessionJob
from support.hub import User
from support.slurm_live import Jobs

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --partition=cpu --time=10 --mem=100 --job-name=carme-default
#SBATCH --comment=carme-submission={submission}
sleep 600
"""
ANSWERS_SUBMIT = """#!/bin/sh
echo "$*" >>{log}
case "$*" in *" submit") cat >/dev/null; echo '{{"job_id": {job_id}, "folder": "/x"}}'; exit ;; esac
exec sudo -n "$@"
"""


@pytest.fixture
def session(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int | None], tuple[SessionJob, Path]]:
    """A session of the first user at a hub whose helper reports this job's number for whatever is
    submitted (None: the helper is honest), and the log of the helper's calls."""
    monkeypatch.setenv("CARME_CONFIG", cluster.env["CARME_CONFIG"])

    def make(reported: int | None) -> tuple[SessionJob, Path]:
        log, program = tmp_path / "calls", tmp_path / "sudo"
        program.write_text(ANSWERS_SUBMIT.format(log=log, job_id=reported))
        program.chmod(0o755)
        sudo = (str(program),) if reported else ("sudo", "-n")
        helper = HelperClient(
            Path(sys.prefix) / "bin/carme-helper", Path(cluster.env["CARME_CONFIG"]), sudo
        )
        context = dataclasses.replace(HubContext.of(cluster.config), helper=helper)
        return SessionJob(context, cluster.users[0], "default"), log

    return make


@pytest.fixture(autouse=True)
def homes(cluster: Any) -> None:
    for user in cluster.users[:2]:
        assert User(cluster, user).login().status_code == 302


async def _submit(session: SessionJob) -> str:
    submission = secrets.token_hex(16)
    await session.submit(SCRIPT.format(submission=submission), {}, "hash", submission)
    return submission


def test_another_job_is_neither_used_nor_touched(
    cluster: Any, jobs: Jobs, session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ann, ben = cluster.users[:2]
    options = ("-p", "cpu", "--job-name=carme-default", "--comment=carme-submission=0")
    for owner in (ben, ann):
        other = jobs.running(jobs.submit(owner, *options))
        job, log = session(other.id)

        async def run(job: SessionJob = job) -> None:
            await _submit(job)
            job.report(4711)
            with pytest.raises(SessionFailure, match="is not this session's"):
                await asyncio.wait_for(job.until_up(), 30)
            with pytest.raises(SessionFailure, match="is not this session's"):
                await job.extend(600)
            await asyncio.wait_for(job.end(20), 30)

        asyncio.run(run())
        assert jobs.running(other.id).limit_seconds == other.limit_seconds
        assert [line.split()[-1] for line in log.read_text().splitlines()] == ["submit"]
        assert f"job {other.id}, which was reported as the session's" in caplog.text
        restarted, _ = session(other.id)
        restarted.restore(job.state())
        with pytest.raises(SessionFailure, match="is not this session's"):
            asyncio.run(restarted.read_job())
        log.unlink()


def test_the_submitted_job_is_used_and_ended(cluster: Any, jobs: Jobs, session: Any) -> None:
    job, _ = session(None)

    async def run() -> Job | None:
        submission = await _submit(job)
        jobs.adopt(job.saved.job_id)
        await asyncio.to_thread(jobs.running, job.saved.job_id)
        seen = await job.read_job()
        assert seen
        assert submission in seen.comment
        assert await job.confirmed_id() == seen.id
        restarted, _ = session(None)
        restarted.restore(job.state())
        assert await restarted.read_job()
        await restarted.end(0)
        return seen

    seen = asyncio.run(run())
    assert seen
    ended = jobs.wait(seen.id, lambda found: found.state.ended, "ends")
    assert ended.state.value == "CANCELLED"
