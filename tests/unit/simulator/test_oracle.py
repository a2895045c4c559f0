"""SimPy as oracle: random small models run in both, equal to 1e-9."""

import pytest
import simpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carme.simulator.events.engine import Simulation
from carme.simulator.events.link_sharing import Flow, set_fair_rates
from carme.simulator.events.operations import Arrive, Compute, Get, Link, Put, Transfer, Wait

DEVICES, LINKS = 2, 2
amounts = st.floats(0.0, 5.0, allow_nan=False).map(lambda x: round(x, 3))
step = st.one_of(
    st.tuples(st.just("compute"), st.integers(0, DEVICES - 1), amounts),
    st.tuples(st.just("transfer"), st.integers(0, LINKS - 1), amounts),
    st.tuples(st.just("wait"), st.just(0), amounts),
    st.tuples(st.just("put"), st.integers(0, 1), amounts),
)


# At exact ties SimPy's order depends on how many events a user spells an operation with (request,
# timeout, release), so no two amounts are equal here.
def distinct(programs):
    return [
        [(k, w, x + 0.001 * 2**0.5 * (7 * i + j + 1)) for j, (k, w, x) in enumerate(program)]
        for i, program in enumerate(programs)
    ]


programs = st.lists(st.lists(step, max_size=8), min_size=1, max_size=5).map(distinct)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def in_engine(programs, latency, meet):
    simulation = Simulation()
    devices = [simulation.device(f"d{i}", rate=2.0) for i in range(DEVICES)]
    links = [simulation.link(f"l{i}", bandwidth=3.0, latency=latency) for i in range(LINKS)]
    boxes = [simulation.mailbox(f"m{i}") for i in range(2)]
    barrier = simulation.barrier(len(programs))
    log = []

    def run(name, program):
        for kind, which, amount in program:
            if kind == "compute":
                yield Compute(devices[which], amount)
            elif kind == "transfer":
                yield Transfer(links[which], amount)
            elif kind == "wait":
                yield Wait(amount)
            else:
                yield Put(boxes[which], (name, amount))
            log.append((name, kind, simulation.now))
        if meet:
            yield Arrive(barrier)
            log.append((name, "met", simulation.now))

    def drain(box, count):
        for _ in range(count):
            item = yield Get(box)
            log.append(("drain", item, simulation.now))

    for index, program in enumerate(programs):
        simulation.process(run(index, program))
    for which in range(2):
        count = sum(k == "put" and w == which for p in programs for k, w, _ in p)
        simulation.process(drain(boxes[which], count))
    simulation.run()
    return log


def in_simpy(programs, latency, meet):
    env = simpy.Environment()
    devices = [simpy.Resource(env) for _ in range(DEVICES)]
    links = [simpy.Resource(env) for _ in range(LINKS)]
    boxes = [simpy.Store(env) for _ in range(2)]
    arrived, all_here = [0], env.event()
    log = []

    def hold(resource, seconds):
        with resource.request() as request:
            yield request
            yield env.timeout(seconds)

    def run(name, program):
        for kind, which, amount in program:
            if kind == "compute":
                yield from hold(devices[which], amount / 2.0)
            elif kind == "transfer":
                yield from hold(links[which], latency + amount / 3.0)
            elif kind == "wait":
                yield env.timeout(amount)
            else:
                yield boxes[which].put((name, amount))
            log.append((name, kind, env.now))
        if meet:
            arrived[0] += 1
            if arrived[0] == len(programs):
                all_here.succeed()
            yield all_here
            log.append((name, "met", env.now))

    def drain(box, count):
        for _ in range(count):
            item = yield box.get()
            log.append(("drain", item, env.now))

    for index, program in enumerate(programs):
        env.process(run(index, program))
    for which in range(2):
        count = sum(k == "put" and w == which for p in programs for k, w, _ in p)
        env.process(drain(boxes[which], count))
    env.run()
    return log


@quick
@given(programs, st.sampled_from([0.0, 0.25]), st.booleans())
def test_every_event_is_at_the_same_time(programs, latency, meet):
    ours, theirs = in_engine(programs, latency, meet), in_simpy(programs, latency, meet)

    def by_process(log):
        events = {}
        for name, kind, when in log:
            events.setdefault(name, []).append((kind, when))
        # What two processes put at the same moment may be taken in either order.
        events.get("drain", []).sort(key=str)
        return events

    ours, theirs = by_process(ours), by_process(theirs)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert [kind for kind, _ in ours[name]] == [kind for kind, _ in theirs[name]]
        assert [when for _, when in ours[name]] == pytest.approx(
            [when for _, when in theirs[name]], abs=1e-9
        )


def fair_in_simpy(flows, bandwidth):
    """Processor sharing written for SimPy from scratch: one manager that is interrupted."""
    env = simpy.Environment()
    active, ends = {}, {}

    def rates():
        unlimited, capacity, speeds = dict(active), bandwidth, {}
        while unlimited:
            share = capacity / len(unlimited)
            tight = {n: limit for n, (_, limit) in unlimited.items() if limit <= share}
            if not tight:
                speeds.update(dict.fromkeys(unlimited, share))
                return speeds
            for name, limit in tight.items():
                speeds[name] = limit
                capacity -= limit
                del unlimited[name]
        return speeds

    def manager():
        while True:
            now, speed = env.now, rates()
            first = min((active[n][0] / speed[n] for n in active), default=float("inf"))
            try:
                if first == float("inf"):
                    yield env.event()
                else:
                    yield env.timeout(max(first, 0.0))
            except simpy.Interrupt:
                pass
            for name in list(active):
                size, limit = active[name]
                active[name] = (size - speed.get(name, 0.0) * (env.now - now), limit)
                if active[name][0] <= 1e-12 * bandwidth and name in speed:
                    ends[name] = env.now
                    del active[name]

    def start(name, at, size, limit):
        yield env.timeout(at)
        active[name] = (size, limit)
        boss.interrupt()

    boss = env.process(manager())
    for name, (at, size, limit) in enumerate(flows):
        env.process(start(name, at, size, limit))
    env.run(until=1e6)
    return ends


@quick
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40).map(lambda x: x / 8),
            st.integers(1, 100).map(lambda x: x / 4),
            st.sampled_from([0.5, 1.0, 2.5, 1e9]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_fair_sharing_is_that_of_an_independent_model(flows):
    simulation = Simulation()
    link = simulation.link("net", bandwidth=4.0, fair=True)
    ends = {}

    def flow(name, at, size, limit):
        yield Wait(at)
        yield Transfer(link, size, limit=limit)
        ends[name] = simulation.now

    for name, each in enumerate(flows):
        simulation.process(flow(name, *each))
    report = simulation.run()
    assert report.seconds == max(ends.values())
    assert report.resources[0].bytes == pytest.approx(sum(size for _, size, _ in flows))
    theirs = fair_in_simpy(flows, 4.0)
    assert ends.keys() == theirs.keys()
    for name, when in ends.items():
        assert when == pytest.approx(theirs[name], abs=1e-9)


@quick
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.sets(st.integers(0, 3), min_size=1), st.sampled_from([0.5, 2.0, 7.0, 1e9])),
        min_size=1,
        max_size=8,
    ),
)
def test_rates_over_paths_are_max_min_fair(bandwidths, wanted):
    """Each flow has its limit, or a full link on which no flow is faster; no link is overfull."""
    links = [Link(f"l{i}", bandwidth=float(b), fair=True) for i, b in enumerate(bandwidths)]
    flows = []
    for path, limit in wanted:
        over = tuple(links[i] for i in sorted({i % len(links) for i in path}))
        flows.append(Flow(None, Transfer(over, 1.0, limit=limit), 0.0))
    set_fair_rates(flows)
    for link in links:
        assert sum(f.rate for f in flows if link in f.links) <= link.bandwidth * (1 + 1e-9)
    for flow in flows:
        assert 0 < flow.rate <= flow.transfer.limit
        if flow.rate == flow.transfer.limit:
            continue
        assert any(
            sum(f.rate for f in flows if link in f.links) >= link.bandwidth * (1 - 1e-9)
            and all(f.rate <= flow.rate * (1 + 1e-9) for f in flows if link in f.links)
            for link in flow.links
        )
