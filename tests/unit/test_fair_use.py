"""Limits per user: users take turns, and only who asks too much is refused."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from carme.errors import BusyError, UnavailableError, error_from_json, error_to_json
from carme.fair_use import FairGate, RateLimiter, refusals


def test_a_user_with_many_calls_delays_the_next_user_by_one() -> None:
    gate = FairGate("calls", at_once=1, per_user=1, waiting=5)
    ann = [gate.enter("ann") for _ in range(6)]
    ben = gate.enter("ben")
    assert [ticket.passed.done() for ticket in ann] == [True, *[False] * 5]
    ann[0].leave()
    assert [ticket.passed.done() for ticket in (ann[1], ben)] == [True, False]
    ann[1].leave()
    assert [ticket.passed.done() for ticket in (ann[2], ben)] == [False, True], "their turn"
    ben.leave()
    for ticket in ann[2:]:
        assert ticket.passed.done()
        ticket.leave()


def test_one_user_does_not_get_all_places() -> None:
    gate = FairGate("calls", at_once=3, per_user=2, waiting=2)
    ann = [gate.enter("ann") for _ in range(4)]
    assert sum(ticket.passed.done() for ticket in ann) == 2
    assert gate.enter("ben").passed.done(), "at once"
    assert not gate.enter("ben").passed.done(), "all places are taken"


def test_a_refusal_says_what_to_do() -> None:
    gate = FairGate("files", at_once=3, per_user=1, waiting=1)
    first, _ = gate.enter("ann"), gate.enter("ann")
    with pytest.raises(BusyError, match=r"you already have 2 files in progress \(wait until"):
        gate.enter("ann")
    first.leave()
    gate.enter("ann")
    assert refusals(gate, gate) == {"files": 2}


def test_without_waiting_others_have_the_places() -> None:
    gate = FairGate("streams", at_once=1, per_user=1, waiting=0)
    gate.enter("ann")
    with pytest.raises(UnavailableError, match="of other users") as caught:
        gate.enter("ben")
    assert not isinstance(caught.value, BusyError), "it is not ben's fault"


def test_a_place_is_given_back_once() -> None:
    gate = FairGate("calls", at_once=1, per_user=1, waiting=5)
    first, second, third = (gate.enter("ann") for _ in range(3))
    first.leave()
    first.leave()
    assert [ticket.passed.done() for ticket in (second, third)] == [True, False]
    third.leave()  # it gives up
    second.leave()
    assert gate.enter("ann").passed.done()
    assert not gate._queues


def test_threads_wait_for_their_turn() -> None:
    gate = FairGate("calls", at_once=1, per_user=1, waiting=5)
    passed = threading.Event()

    def wait() -> None:
        with gate.turn("ben"):
            passed.set()

    with gate.turn("ann"):
        thread = threading.Thread(target=wait)
        thread.start()
        with pytest.raises(UnavailableError, match="too many calls"), gate.turn("ada", 0.01):
            pytest.fail("ann has the place")
        assert not passed.is_set()
    thread.join(10)
    assert passed.is_set()


def test_an_event_loop_waits_for_its_turn() -> None:
    async def run() -> None:
        gate = FairGate("calls", at_once=1, per_user=1, waiting=5)
        order = []

        async def call(user: str) -> None:
            async with gate.async_turn(user):
                order.append(user)
                await asyncio.sleep(0)

        calls = [asyncio.create_task(call(user)) for user in ("ann", "ann", "ann", "ben")]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert order == ["ann", "ann", "ben"] or order == ["ann", "ben", "ann"]
        assert gate.enter("ann").passed.done(), "a cancelled call leaves no place behind"

    asyncio.run(run())


@pytest.mark.parametrize("how", ["run", "call"])
def test_a_caller_that_gives_up_keeps_its_place_until_the_work_has_ended(how: str) -> None:
    gate = FairGate("calls", at_once=2, per_user=1, waiting=0)
    began, may_end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_end.wait(10)

    async def give_up(threads: ThreadPoolExecutor) -> None:
        call = asyncio.create_task(gate.run("ann", threads, work))
        assert await asyncio.to_thread(began.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with ThreadPoolExecutor(2) as threads:
        try:
            if how == "run":
                asyncio.run(give_up(threads))
            else:
                with pytest.raises(TimeoutError):
                    gate.call("ann", threads.submit, work, seconds=0.01)
            with pytest.raises(BusyError):
                gate.enter("ann")
            assert gate.call("ben", threads.submit, str, 7, seconds=10) == "7"
        finally:
            may_end.set()
    assert gate.enter("ann").passed.done()


def clock_at(now: list[float]) -> Callable[[], float]:
    return lambda: now[0]


def test_a_rate_is_each_users_own() -> None:
    now = [0.0]
    rate = RateLimiter(60, clock_at(now))
    for _ in range(30):
        rate.check("ann")
    with pytest.raises(BusyError, match="more than 60 requests a minute") as caught:
        rate.check("ann")
    assert caught.value.retry_seconds == 1
    rate.check("ben")
    now[0] = 1.0
    rate.check("ann")
    assert rate.refused == 1


def test_a_refusal_passes_between_processes() -> None:
    value = error_to_json(BusyError("you have too many", "wait"))
    refusal = error_from_json(value)
    assert isinstance(refusal, BusyError)
    assert (refusal.message, refusal.hint, refusal.retry_seconds) == (
        "you have too many",
        "wait",
        5,
    )


def test_a_burst_has_its_own_size() -> None:
    now = [0.0]
    rate = RateLimiter(4, clock_at(now), burst=4)
    assert [rate.take("ann") for _ in range(5)] == [0, 0, 0, 0, 15]


def test_a_gate_and_a_rate_of_the_same_calls_are_counted_apart() -> None:
    gate, rate = FairGate("requests", 1, 1, 0), RateLimiter(2, clock_at([0.0]))
    gate.enter("ann")
    for call in (gate.enter, rate.check, rate.check):
        with contextlib.suppress(BusyError):
            call("ann")
    assert refusals(gate, rate) == {"requests": 1, "requests a minute": 1}
