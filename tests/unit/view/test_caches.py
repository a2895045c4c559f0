"""Slow answers of Slurm are read seldom, and those that are cached are given at once."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from carme.errors import UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import ExpectedStart
from carme.view.caches import ExpectedStarts, HistoryCache
from support.slurm_memory import Cluster


def test_expected_starts_are_asked_seldom() -> None:
    async def run() -> None:
        now = [0.0]
        cluster = Cluster()
        starts = ExpectedStarts(cluster, lambda: now[0])
        one = ResourceRequest(partition="gpu")
        await asyncio.gather(*(starts.expected_start(one) for _ in range(10)))
        assert cluster.asked == ["test-only"], "the same choice is asked once"
        for gpus in range(1, 6):
            await starts.expected_start(ResourceRequest(partition="gpu", gpus=gpus))
        assert len(cluster.asked) == 6
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(ResourceRequest(partition="gpu", gpus=7))
        assert (await starts.expected_start(one)).starts_at == 5
        now[0] = 61
        await starts.expected_start(ResourceRequest(partition="gpu", gpus=7))
        assert len(cluster.asked) == 7
        now[0] = 122
        await starts.expected_start(one)
        assert len(cluster.asked) == 8, "after a minute it is asked anew"

    asyncio.run(run())


def test_an_expected_start_older_than_five_minutes_is_not_given() -> None:
    class Later(Cluster):
        def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
            return ExpectedStart(starts_at=10**6, asked_at=0)

    async def run() -> None:
        now = [0.0]
        starts = ExpectedStarts(Later(), lambda: now[0])
        one = ResourceRequest(partition="gpu")
        await starts.expected_start(one)
        for now[0] in (100.0, 290.0):  # other requests use up what Slurm may be asked
            for gpus in range(1, 7):
                await starts.expected_start(ResourceRequest(partition="gpu", gpus=gpus))
            assert (await starts.expected_start(one)).starts_at == 10**6
        now[0] = 301.0
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(one)

    asyncio.run(run())


class Slow(Cluster):
    """Reads of Slurm take until the test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.began, self.may_end = threading.Event(), threading.Event()

    def _ask(self, request: str) -> None:
        super()._ask(request)
        if self.is_slow:
            self.began.set()
            assert self.may_end.wait(10)


@pytest.mark.parametrize("cache", ["expected starts", "history"])
def test_a_cached_answer_does_not_wait_for_a_slow_read(cache: str) -> None:
    cluster = Slow()
    starts, histories = ExpectedStarts(cluster, lambda: 1.0), HistoryCache(cluster, lambda: 1.0)

    async def read(number: int) -> object:
        if cache == "history":
            return await histories.history(1000, 2000 + number, "")
        return await starts.expected_start(ResourceRequest(partition="gpu", gpus=number))

    async def run() -> None:
        first = await read(1)
        cluster.is_slow = True
        slow = asyncio.create_task(read(2))
        try:
            assert await asyncio.to_thread(cluster.began.wait, 10)
            assert await asyncio.wait_for(read(1), 5) is first
            assert not slow.done()
        finally:
            cluster.may_end.set()
        await slow

    asyncio.run(run())


def test_a_start_that_has_passed_is_no_answer() -> None:
    """Slurm said "now", then somebody else took the GPUs: the answer must not live a minute."""

    class Asked(Cluster):
        def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
            self.asked.append("test-only")
            gpus = [int(o.rpartition(":")[2]) for o in sbatch_options if "--gres" in o]
            return ExpectedStart(starts_at=1000 + 30 * sum(gpus), asked_at=1000)

    async def run() -> None:
        now = [0.0]
        cluster = Asked()
        starts = ExpectedStarts(cluster, lambda: now[0])
        at_once, later = (ResourceRequest(partition="gpu", gpus=gpus) for gpus in (0, 1))
        await starts.expected_start(at_once)
        await starts.expected_start(later)
        now[0] = 10
        await starts.expected_start(at_once)
        await starts.expected_start(later)
        assert len(cluster.asked) == 3, "only what has passed is asked anew"
        now[0] = 40
        for _ in range(3):
            await starts.expected_start(later)
            now[0] += 0.1
        assert len(cluster.asked) == 4
        await starts.expected_start(ResourceRequest(partition="gpu", gpus=2))
        await starts.expected_start(ResourceRequest(partition="gpu", gpus=3))
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(at_once)

    asyncio.run(run())
