"""Idle sessions: which are warned, and which are ended."""

import asyncio

import pytest

from carme.config import SessionSettings
from carme.errors import UnavailableError
from carme.jobs.models import Idleness
from carme_spawner.idle_policy import GpuIdleness, IdlePolicy, SessionActivity, judge, read_activity

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
    activity = read_activity([kernel], [terminal])
    assert (activity.is_busy, activity.last % 60) == (False, 20)
    assert read_activity([{**kernel, "execution_state": "busy"}], []).is_busy
    assert read_activity([{**kernel, "execution_state": "starting"}], []).is_busy
    assert read_activity([], []) == SessionActivity(False, 0)


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
