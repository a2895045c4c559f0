"""How often Slurm is asked: with a clock that the test turns, so an hour takes no time."""

import asyncio

import pytest

from carme.view import poller as module
from carme.view.poller import Poller
from support.slurm_memory import Cluster

CALLS = {"jobs": 1, "nodes": 2, "partitions": 1, "reservations": 1, "version": 1}
"""Of Slurm's commands; `scontrol show node` reads the partitions as well."""


class Counted(Cluster):
    def version(self) -> str:
        self._ask("version")
        return super().version()


@pytest.mark.parametrize("with_nodes", [False, True])
@pytest.mark.parametrize("seconds", [30, 60, 300])
def test_sixty_calls_a_minute_at_most_while_somebody_always_asks(
    monkeypatch: pytest.MonkeyPatch, seconds: int, with_nodes: bool
) -> None:
    now = 1000.0
    cluster = Counted()

    async def at_once(call, *arguments, **more):  # type: ignore[no-untyped-def]
        return call(*arguments, **more)

    monkeypatch.setattr(module.asyncio, "to_thread", at_once)
    poller = Poller(cluster, 30, clock=lambda: now)

    async def run() -> None:
        nonlocal now
        await poller._read()
        now += 20  # nobody was there for a while
        cluster.asked.clear()
        end = now + seconds
        while now < end:
            poller._needed_since = now + 0.01  # somebody waits for a session
            if with_nodes:
                poller._nodes_needed_since = now + 0.01  # and somebody looks at free GPUs
            now = max(now, poller._next_read_at())
            await poller._read()

    asyncio.run(run())
    calls = sum(CALLS[what] for what in cluster.asked)
    assert calls * 60 / seconds <= 60, (calls, seconds)
    assert cluster.asked.count("jobs") >= seconds / 2.5


def test_the_first_reads_are_quick() -> None:
    now = 1000.0
    poller = Poller(Cluster(), 30, clock=lambda: now)

    async def run() -> list[float]:
        nonlocal now
        await poller._read()
        now += 20
        gaps = []
        for _ in range(4):
            poller._needed_since = now + 0.01
            gaps.append(max(0.0, poller._next_read_at() - now))
            now = max(now, poller._next_read_at())
            await poller._read()
        return gaps

    assert max(asyncio.run(run())) <= 1
