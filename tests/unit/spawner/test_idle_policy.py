"""Idle sessions: which are warned, and which are ended."""

import asyncio
import gzip
import json

import pytest
from aiohttp import ClientSession, web

from carme.config import SessionSettings
from carme.errors import UnavailableError
from carme.jobs.models import Idleness
from carme.slurm.models import Job
from carme.slurm.states import JobState
from carme_spawner import idle_policy
from carme_spawner.idle_policy import (
    GpuIdleness,
    IdlePolicy,
    SessionActivity,
    judge,
    read_activity,
    read_session,
)

QUIET = Idleness(gpu_busy_ratio=0, cpu_cores=0.01)


@pytest.mark.parametrize(
    ("gpus", "activity", "verdict"),
    [
        (QUIET, SessionActivity(False, 0), "idle"),
        (QUIET, SessionActivity(False, 50), "idle"),
        (QUIET, SessionActivity(False, 150), "active"),  # somebody is there
        (QUIET, SessionActivity(True, 0), "working"),
        (Idleness(gpu_busy_ratio=0, cpu_cores=2), SessionActivity(False, 0), "working"),
        (Idleness(gpu_busy_ratio=0.05, cpu_cores=0), SessionActivity(False, 0), "active"),
    ],
)
def test_judge(gpus, activity, verdict):
    assert judge(gpus, activity, since=100) == verdict


def test_activity_is_read_from_kernels_and_terminals():
    kernel = {"last_activity": "2026-01-01T00:00:10.5Z", "execution_state": "idle"}
    terminal = {"name": "1", "last_activity": "2026-01-01T00:00:20Z"}

    def activity(kernels, terminals):
        return read_activity(json.dumps(kernels).encode(), json.dumps(terminals).encode())

    both = activity([kernel], [terminal])
    assert (both.is_busy, both.last % 60) == (False, 20)
    assert activity([{**kernel, "execution_state": "busy"}], []).is_busy
    assert activity([{**kernel, "execution_state": "starting"}], []).is_busy
    assert activity([], []) == SessionActivity(False, 0)


STRANGE = [
    b"", b"{}", b"[1]", b"[null]", b'["idle"]', b"[[]]", b"7", b"\xff", b"[" * 200_000,
    b'[{"last_activity": {}}]', b'[{"last_activity": "soon"}]', b'[{"execution_state": []}]',
    b'[{"last_activity": "2026-01-01T00:00:00"}]',
]  # fmt: skip
"""What a user's program may answer in place of Jupyter."""


@pytest.mark.parametrize("body", STRANGE, ids=range(len(STRANGE)))
def test_strange_activity_is_an_error_that_is_expected(body):
    for answers in ((body, b"[]"), (b"[]", body)):
        with pytest.raises(ValueError, match="Jupyter answers otherwise: ") as caught:
            read_activity(*answers)
        assert len(str(caught.value)) < 500


def answered(monkeypatch, body, headers=None, policy=None):
    """What the hub makes of a session that answers with this body, and the requests it sent."""
    requests = []

    async def answer(request):
        requests.append(request.headers)
        return web.Response(body=body, headers=headers)

    async def run():
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ClientSession() as client:

            async def fetch(url, raise_for_status, **options):
                return await client.get(url, **options)

            monkeypatch.setattr(idle_policy, "fetch", fetch)
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            try:
                if policy is None:
                    return await read_session(url, "secret")
                figures = GpuIdleness(View())
                job = Job(id=1, state=JobState.RUNNING, gpus={"": 1})
                return await policy.check(figures, job, url, lambda: "secret")
            finally:
                await runner.cleanup()

    return asyncio.run(run()), requests


def test_the_activity_of_a_session_is_asked_for_uncompressed(monkeypatch):
    activity, requests = answered(monkeypatch, b"[]")
    assert activity == SessionActivity(False, 0)
    assert [headers["Accept-Encoding"] for headers in requests] == ["identity"] * 2
    assert requests[0]["Authorization"] == "token secret"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" + b" " * 2_000_000 + b"]", {}),
        (gzip.compress(b"[" + b" " * 2_000_000 + b"]"), {"Content-Encoding": "gzip"}),
    ],
    ids=["large", "compressed"],
)
def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch, body, headers):
    with pytest.raises((OSError, ValueError), match=r"more than 1000000 bytes|answers otherwise"):
        answered(monkeypatch, body, headers)


@pytest.mark.parametrize("body", STRANGE[:3])
def test_a_session_with_strange_answers_is_neither_warned_nor_ended(monkeypatch, body):
    policy = IdlePolicy(SessionSettings(gpu_idle_hours=2, gpu_idle_notice_minutes=1))
    must_end, requests = answered(monkeypatch, body, policy=policy)
    assert (must_end, policy.warning, len(requests)) == (False, "", 2)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_warned_then_ended():
    clock = Clock()
    policy = IdlePolicy(SessionSettings(gpu_idle_hours=2, gpu_idle_notice_minutes=10), clock)
    assert policy.window_seconds == 7200
    assert not policy.apply("idle", 1)
    assert "did nothing with its GPU for 2 h" in policy.warning
    clock.now += 590
    assert not policy.apply("idle", 1)
    clock.now += 20
    assert policy.apply("idle", 1)
    assert "so it was ended" in policy.end_reason


def test_work_withdraws_the_announced_end():
    clock = Clock()
    policy = IdlePolicy(SessionSettings(gpu_idle_hours=2, gpu_idle_notice_minutes=10), clock)
    policy.apply("idle", 2)
    clock.now += 590
    assert not policy.apply("working", 2)
    assert "works, but not with its 2 GPUs" in policy.warning
    clock.now += 10_000
    assert not policy.apply("working", 2)
    assert not policy.apply("active", 2)
    assert policy.warning == ""
    assert not policy.apply("idle", 2), "the notice begins anew"


class View:
    def __init__(self):
        self.asked = []
        self.away = False

    async def idle(self, job_ids, seconds):
        self.asked.append(sorted(job_ids))
        if self.away:
            raise UnavailableError("away")
        return dict.fromkeys(job_ids, QUIET)


def test_all_sessions_share_one_request_for_idleness():
    view, clock = View(), Clock()
    figures = GpuIdleness(view, clock)

    def of(job):
        return asyncio.run(figures.of(job, 7200))

    assert of(1) == QUIET
    assert of(2) is None, "at the next round"
    clock.now += 31
    assert of(1) == of(2) == QUIET
    assert view.asked == [[1], [1, 2]]
    clock.now += 700
    view.away = True
    assert of(2) is None
    assert view.asked[-1] == [2], "a session that is over is forgotten"
