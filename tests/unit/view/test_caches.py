"""Slow answers of Slurm are read seldom, and those that are cached are given at once."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from carme.errors import BusyError, UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import ExpectedStart
from carme.view.caches import ExpectedStarts, HistoryCache
from support.slurm_memory import Cluster


def test_expected_starts_are_asked_seldom() -> None:
    async def run() -> None:
        now = [0.0]
        cluster = Cluster()
        starts = ExpectedStarts(cluster, 6, 6, lambda: now[0])
        one = ResourceRequest(partition="gpu")
        await asyncio.gather(*(starts.expected_start(one, f"user{i}") for i in range(10)))
        assert cluster.asked == ["test-only"], "the same choice is asked once"
        for gpus in range(1, 6):
            await starts.expected_start(ResourceRequest(partition="gpu", gpus=gpus), "ann")
        assert len(cluster.asked) == 6
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(ResourceRequest(partition="gpu", gpus=7), "ann")
        assert (await starts.expected_start(one, "ann")).starts_at == 5
        now[0] = 61
        await starts.expected_start(ResourceRequest(partition="gpu", gpus=7), "ann")
        assert len(cluster.asked) == 7
        now[0] = 122
        await starts.expected_start(one, "ann")
        assert len(cluster.asked) == 8, "after a minute it is asked anew"

    asyncio.run(run())


def test_an_expected_start_older_than_five_minutes_is_not_given() -> None:
    class Later(Cluster):
        def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
            return ExpectedStart(starts_at=10**6, asked_at=0)

    async def run() -> None:
        now = [0.0]
        starts = ExpectedStarts(Later(), 6, 6, lambda: now[0])
        one = ResourceRequest(partition="gpu")
        await starts.expected_start(one, "ann")
        for now[0] in (100.0, 300.0):  # other requests use up what Slurm may be asked
            for gpus in range(1, 7):
                await starts.expected_start(ResourceRequest(partition="gpu", gpus=gpus), "ann")
            assert (await starts.expected_start(one, "ann")).starts_at == 10**6
        now[0] = 301.0
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(one, "ann")

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
    starts, histories = (
        ExpectedStarts(cluster, 6, 6, lambda: 1.0),
        HistoryCache(cluster, lambda: 1.0),
    )

    async def read(number: int) -> object:
        if cache == "history":
            return await histories.history(1000, 2000 + number, "", "ann")
        return await starts.expected_start(ResourceRequest(partition="gpu", gpus=number), "ann")

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
        starts = ExpectedStarts(cluster, 6, 6, lambda: now[0])
        at_once, later = (ResourceRequest(partition="gpu", gpus=gpus) for gpus in (0, 1))
        await starts.expected_start(at_once, "ann")
        await starts.expected_start(later, "ann")
        now[0] = 10
        await starts.expected_start(at_once, "ann")
        await starts.expected_start(later, "ann")
        assert len(cluster.asked) == 3, "only what has passed is asked anew"
        now[0] = 40
        for _ in range(3):
            await starts.expected_start(later, "ann")
            now[0] += 0.1
        assert len(cluster.asked) == 4
        for gpus in range(2, 7):  # others use up what Slurm may be asked
            await starts.expected_start(ResourceRequest(partition="gpu", gpus=gpus), "ann")
        with pytest.raises(UnavailableError, match="6 times within a minute"):
            await starts.expected_start(at_once, "ann")

    asyncio.run(run())


def test_one_user_cannot_use_up_the_expected_starts() -> None:
    async def run() -> None:
        now = [0.0]
        starts = ExpectedStarts(Cluster(), 6, 2, lambda: now[0])
        requests = [ResourceRequest(partition="gpu", gpus=gpus) for gpus in range(1, 9)]
        for request in requests[:2]:
            await starts.expected_start(request, "ann")
        with pytest.raises(BusyError, match="asked for you 2 times within a minute"):
            await starts.expected_start(requests[2], "ann")
        await starts.expected_start(requests[2], "ben")
        assert (await starts.expected_start(requests[2], "ann")).starts_at == 5, "known by now"
        for number, user in enumerate(("ben", "ada", "ada"), start=3):
            await starts.expected_start(requests[number], user)
        with pytest.raises(UnavailableError, match="Slurm was asked 6 times"):
            await starts.expected_start(requests[6], "eve")
        now[0] = 61
        await starts.expected_start(requests[7], "ann")

    asyncio.run(run())


def test_one_users_questions_about_past_jobs_delay_no_other_user() -> None:
    async def run() -> None:
        cluster = Slow()
        cluster.is_slow = True
        histories = HistoryCache(cluster, lambda: 1.0)
        ann = [asyncio.create_task(histories.history(n, 2000, "ann", "ann")) for n in range(12)]
        assert await asyncio.to_thread(cluster.began.wait, 10)
        try:
            refused = [task.exception() for task in ann if task.done()]
            assert len(refused) == 3
            assert all(isinstance(error, BusyError) for error in refused)
            cluster.is_slow = False  # ann's question still hangs
            await asyncio.wait_for(histories.history(1000, 2000, "ben", "ben"), 10)
            assert sum(task.done() for task in ann) == 3
        finally:
            cluster.may_end.set()
        await asyncio.gather(*ann, return_exceptions=True)

    asyncio.run(run())


def test_equal_questions_about_past_jobs_are_asked_once() -> None:
    async def run() -> None:
        cluster = Slow()
        cluster.is_slow = True
        histories = HistoryCache(cluster, lambda: 1.0)
        reads = [asyncio.create_task(histories.history(1, 2000, "", u)) for u in ("ann", "ben")]
        assert await asyncio.to_thread(cluster.began.wait, 10)
        cluster.may_end.set()
        first, second = await asyncio.gather(*reads)
        assert first is second
        assert cluster.asked == ["history"]

    asyncio.run(run())
