"""Time for wrong credentials: a share for each peer, and one for all of them."""

import pytest

from carme.system.guess_limits import GuessLimiter, TooManyGuessesError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spend(limiter: GuessLimiter, clock: Clock, peers: list[str], seconds: float) -> float:
    """What the peers get to spend if each guesses whenever it may, at 50 ms a guess."""
    spent, end = 0.0, clock.now + seconds
    while clock.now < end:
        for peer in peers:
            try:
                limiter.check(peer)
            except TooManyGuessesError:
                continue
            limiter.charge(peer, 0.05)
            spent += 0.05
        clock.now += 0.1
    return spent


def test_a_peer_has_its_share() -> None:
    clock = Clock()
    limiter = GuessLimiter(peer_share=0.02, total_share=0.1, burst_seconds=0.25, clock=clock)
    assert spend(limiter, clock, ["eve"], 500) == pytest.approx(0.02 * 500, rel=0.1)


def test_all_peers_have_a_share_together() -> None:
    clock = Clock()
    limiter = GuessLimiter(peer_share=0.02, total_share=0.1, burst_seconds=0.25, clock=clock)
    peers = [f"eve {number}" for number in range(30)]
    # Each has one guess that nobody else can take away.
    assert spend(limiter, clock, peers, 500) == pytest.approx(0.1 * 500 + 30 * 0.05, rel=0.1)
    limiter.check("ann")


def test_how_long_to_wait() -> None:
    clock = Clock()
    limiter = GuessLimiter(peer_share=0.02, total_share=0.1, burst_seconds=0.25, clock=clock)
    limiter.charge("eve", 0.45)
    with pytest.raises(TooManyGuessesError) as refused:
        limiter.check("eve")
    assert refused.value.seconds == pytest.approx(10)
    clock.now += 10
    limiter.check("eve")


def test_a_peer_may_be_forgotten_in_the_middle_of_a_check() -> None:
    """Its ten minutes end between two looks at the clock."""
    times = [0.0]
    limiter = GuessLimiter(clock=lambda: times.pop(0) if len(times) > 1 else times[0])
    limiter.charge("stranger", 1000.0)
    times[:] = [500.0, 590.0, 700.0]
    with pytest.raises(TooManyGuessesError):
        limiter.check("stranger")
