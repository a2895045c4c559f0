"""The hub's access to the view: pages do not wait for Slurm and show how old the data is."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from carme.errors import UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.snapshot import Snapshot
from carme.view.client import AsyncViewClient
from carme_spawner import cluster_state as cluster_state
from carme_spawner.cluster_state import ClusterState
from support.slurm_memory import Cluster, RunningView, config


class Slow(Cluster):
    """A controller that takes its time."""

    seconds = 0.0

    def jobs(self):
        time.sleep(self.seconds)
        return super().jobs()

    def expected_start(self, sbatch_options):
        time.sleep(self.seconds)
        return super().expected_start(sbatch_options)


@pytest.fixture
def serving(tmp_path):
    with RunningView(Slow(), config(tmp_path)) as serving:
        yield serving


def test_the_latest_snapshot_comes_at_once_and_is_renewed(serving):
    async def run():
        state = ClusterState(AsyncViewClient(serving.path))
        await state.fresh_snapshot(5)
        first = await state.latest_snapshot(60)
        serving.cluster.seconds = 1.0
        started = time.monotonic()
        assert (await state.latest_snapshot(0)) is first
        assert (await state.latest_snapshot(0)) is first
        assert time.monotonic() - started < 0.5
        await asyncio.wait_for(state._renewal, 10)
        assert (await state.latest_snapshot(60)).taken_at > first.taken_at

    asyncio.run(run())


def test_an_old_snapshot_that_is_new_enough_is_not_waited_for():
    async def run():
        refreshing, answered = asyncio.Event(), asyncio.Event()

        async def refresh(max_age_seconds, jobs_only):
            refreshing.set()
            await answered.wait()
            return newest

        newest = Snapshot(taken_at=time.time() - 10)
        state = ClusterState(SimpleNamespace(newest=newest, refresh=refresh))
        starting = asyncio.ensure_future(state.fresh_snapshot(1))
        await refreshing.wait()
        assert await asyncio.wait_for(state.fresh_snapshot(60), 5) is newest
        answered.set()
        await starting

    asyncio.run(run())


@pytest.mark.parametrize("is_away", [False, True])
def test_of_many_that_need_the_newest_snapshot_at_once_only_two_have_slurm_read(is_away):
    """The second because the first reading may have begun before the others asked."""
    readings = []

    async def refresh(max_age_seconds, jobs_only):
        readings.append(time.monotonic())
        await asyncio.sleep(0.05)
        if is_away:
            raise UnavailableError("away", "wait")
        return Snapshot(taken_at=time.time())

    async def read(state):
        asked = time.monotonic()
        try:
            await state.fresh_snapshot(0)
        except UnavailableError as error:
            assert is_away and str(error) == "away (wait)"  # noqa: PT017, PT018
        return asked

    async def run():
        state = ClusterState(SimpleNamespace(newest=None, refresh=refresh))
        first = asyncio.ensure_future(read(state))
        await asyncio.sleep(0.01)
        asked = await asyncio.gather(first, *(read(state) for _ in range(100)))
        assert len(readings) == 2
        await read(state)
        assert len(readings) == 3, "a later call gets no older answer"
        return asked

    asked = asyncio.run(run())
    assert readings[1] >= max(asked)


def test_an_outage_of_slurm_is_shown(serving):
    async def run():
        state = ClusterState(AsyncViewClient(serving.path))
        await state.fresh_snapshot(5)
        serving.cluster.away = True
        assert (await state.latest_snapshot(0)).controller == "up"
        await asyncio.wait_for(state._renewal, 10)
        end = time.monotonic() + 5
        while (await state.latest_snapshot(60)).controller != "away":
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    asyncio.run(run())


def test_a_slow_estimate_of_the_start_is_not_waited_for(serving):
    async def run():
        state = ClusterState(AsyncViewClient(serving.path))
        serving.cluster.seconds = 0.5
        resources = ResourceRequest(partition="gpu")
        with pytest.raises(TimeoutError):
            await state.expected_start(resources, "ann")
        while state._starts:
            await asyncio.sleep(0.05)
        assert (await state.expected_start(resources, "ann")).starts_at == 5

    asyncio.run(run())


def test_a_user_whose_rights_cannot_be_read(serving, monkeypatch):
    async def run():
        state = ClusterState(AsyncViewClient(serving.path))
        assert (await state.slurm_user("alice")).accounts == ("lab",)
        assert (
            await ClusterState(AsyncViewClient(serving.path / "no")).slurm_user("alice")
        ).rights is None
        monkeypatch.setattr(cluster_state, "RIGHTS_SECONDS", 0)
        assert (await state.slurm_user("alice")).rights is None

    asyncio.run(run())
