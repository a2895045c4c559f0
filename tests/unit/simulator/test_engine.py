"""The event engine by itself: order, queues, sharing, meeting points, accounts."""

import pytest

from carme.errors import InputError
from carme.simulator.events.engine import Simulation, TaskGraph
from carme.simulator.events.operations import Arrive, Compute, Get, Join, Load, Put, Transfer, Wait


def test_a_first_come_link_serves_in_the_order_asked():
    simulation = Simulation()
    link = simulation.link("net", bandwidth=100.0, latency=0.5)
    ends = {}

    def sender(name, at, size):
        yield Wait(at)
        yield Transfer(link, size)
        ends[name] = simulation.now

    simulation.process(sender("first", 0.0, 100))
    simulation.process(sender("second", 0.1, 200))
    simulation.process(sender("third", 0.2, 50))
    simulation.run()
    assert ends == pytest.approx({"first": 1.5, "second": 4.0, "third": 5.0})


def test_simultaneous_events_go_by_priority_then_sequence():
    simulation = Simulation()
    order = []

    def note(name):
        yield Wait(1.0)
        order.append(name)

    simulation.process(note("late"), priority=5)
    simulation.process(note("a"))
    simulation.process(note("b"))
    simulation.process(note("early"), priority=-1)
    simulation.run()
    assert order == ["early", "a", "b", "late"]


def test_unequal_flows_share_a_link_max_min_fairly():
    """Limits 1 and 3 of a link of 9 leave 5 to the third flow; then the rest is shared anew."""
    simulation = Simulation()
    link = simulation.link("net", bandwidth=9.0, fair=True)
    ends = {}

    def flow(name, size, limit=float("inf")):
        yield Transfer(link, size, limit=limit)
        ends[name] = simulation.now

    simulation.process(flow("small", 10.0, 1.0))
    simulation.process(flow("middle", 30.0, 3.0))
    simulation.process(flow("large", 50.0))
    report = simulation.run()
    assert ends == pytest.approx({"small": 10.0, "middle": 10.0, "large": 10.0})
    assert report.resources[0].bytes == pytest.approx(90.0)


def test_flows_over_a_path_are_held_by_the_tightest_link():
    """Two links of 10: one flow over both, one over the first alone, two over the second."""
    simulation = Simulation()
    first = simulation.link("first", bandwidth=10.0, fair=True)
    second = simulation.link("second", bandwidth=9.0, fair=True)
    ends = {}

    def flow(name, path, size):
        yield Transfer(path, size)
        ends[name] = simulation.now

    simulation.process(flow("both", (first, second), 3.0))
    simulation.process(flow("first only", first, 7.0))
    simulation.process(flow("second a", second, 3.0))
    simulation.process(flow("second b", second, 3.0))
    simulation.run()
    # The second link gives 3 to each of its three; the first has 7 left for its other flow.
    assert ends == pytest.approx(dict.fromkeys(ends, 1.0))


def test_storage_is_shared_and_readers_have_a_speed_of_their_own():
    simulation = Simulation()
    disk = simulation.storage("disk", bandwidth=10.0)
    ends = []

    def reader(limit):
        yield Load(disk, 20.0, limit=limit)
        ends.append(simulation.now)

    for limit in (2.0, 100.0):
        simulation.process(reader(limit))
    simulation.run()
    assert ends == pytest.approx([2.5, 10.0])


def test_barriers_mailboxes_and_joins_hand_over_values():
    simulation = Simulation()
    box, barrier = simulation.mailbox(), simulation.barrier(2)
    received = []

    def producer():
        yield Wait(2.0)
        yield Put(box, "hello")
        yield Arrive(barrier)
        return 42

    def consumer():
        received.append((yield Get(box)))
        yield Wait(1.0)
        yield Arrive(barrier)

    producing = simulation.process(producer(), "producer")
    simulation.process(consumer(), "consumer")

    def joiner():
        received.append((yield Join(producing)))
        received.append(simulation.now)

    simulation.process(joiner(), "joiner")
    report = simulation.run()
    assert received == ["hello", 42, 3.0]
    assert report.seconds == 3.0


def test_energy_is_the_integral_of_the_power_curve():
    simulation = Simulation()
    gpu = simulation.device("gpu", idle_watts=30.0, busy_watts=250.0)

    def work():
        yield Wait(1.0)
        yield Compute(gpu, 2.0)
        yield Compute(gpu, 1.0, watts=100.0)
        yield Wait(0.5)

    simulation.process(work())
    report = simulation.run()
    times, watts = report.power_curve("gpu")
    assert report.joules("gpu") == pytest.approx(30 * 1.5 + 250 * 2 + 100)
    assert float(((times[1:] - times[:-1]) * watts).sum()) == pytest.approx(report.joules("gpu"))


def test_bytes_sent_are_bytes_received():
    simulation = Simulation()
    slow = simulation.link("slow", bandwidth=3.0)
    fair = simulation.link("fair", bandwidth=5.0, fair=True)

    def talk(a, b, link, size):
        yield Transfer(link, size, source=a, target=b)

    for index in range(10):
        link = fair if index % 2 else slow
        simulation.process(talk(f"n{index % 3}", f"n{index % 4}", link, 1.5 * index))
    report = simulation.run()
    sent, received = sum(report.sent_bytes.values()), sum(report.received_bytes.values())
    assert sent == pytest.approx(received)
    assert sent == pytest.approx(sum(r.bytes for r in report.resources))


def test_a_run_can_stop_and_go_on():
    simulation = Simulation()
    gpu = simulation.device("gpu")

    def work():
        for _ in range(3):
            yield Compute(gpu, 1.0)

    simulation.process(work())
    assert simulation.run(until=1.5).seconds == 1.5
    assert simulation.run().seconds == 3.0


def test_without_a_trace_energy_is_still_counted():
    simulation = Simulation(trace=False)
    gpu = simulation.device("gpu", idle_watts=10, busy_watts=110)

    def work():
        yield Compute(gpu, 2.0)

    simulation.process(work())
    report = simulation.run()
    assert report.operations == 0
    assert report.joules() == pytest.approx(220)


def test_a_deadlock_names_who_waits_for_what():
    simulation = Simulation()
    box = simulation.mailbox("orders")

    def slave():
        yield Get(box)

    simulation.process(slave(), "slave 1")
    with pytest.raises(InputError, match=r"^Deadlock at t = 0 s: .*: slave 1 \(for orders\)$"):
        simulation.run()


def test_yielding_something_else_says_what_to_yield():
    simulation = Simulation()

    def confused():
        yield 3.0

    simulation.process(confused(), "confused")
    with pytest.raises(InputError, match=r"confused yielded 3\.0"):
        simulation.run()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_amounts_must_be_finite_and_not_negative(bad):
    simulation = Simulation()
    gpu, link = simulation.device("gpu"), simulation.link("net", bandwidth=1.0)
    for make in (lambda: Compute(gpu, bad), lambda: Transfer(link, bad), lambda: Wait(bad)):
        with pytest.raises(InputError):
            make()
    with pytest.raises(InputError):
        simulation.link("bad", bandwidth=bad)


def test_only_fair_links_make_a_path():
    simulation = Simulation()
    a, b = simulation.link("a", bandwidth=1.0), simulation.link("b", bandwidth=1.0, fair=True)
    with pytest.raises(InputError, match="fairly shared"):
        Transfer((a, b), 1.0)


def test_a_graph_fires_tasks_when_their_inputs_are_done():
    simulation = Simulation()
    gpu, other = simulation.device("gpu"), simulation.device("other")
    graph = TaskGraph()
    a = graph.add("a", Compute(gpu, 1.0))
    b = graph.add("b", Compute(other, 2.0))
    graph.add("c", Compute(gpu, 1.0), [a, b])
    graph.start(simulation)
    assert simulation.run().seconds == 3.0


def test_a_cyclic_graph_is_refused():
    simulation = Simulation()
    gpu = simulation.device("gpu")
    graph = TaskGraph()
    graph.add("a", Compute(gpu, 1.0), [1])
    graph.add("b", Compute(gpu, 1.0), [0])
    with pytest.raises(InputError, match="cycle"):
        graph.start(simulation)


def test_hundreds_of_readers_share_storage_quickly():
    simulation = Simulation()
    disk = simulation.storage("disk", bandwidth=100.0)
    ends = []

    def reader(size):
        yield Load(disk, size)
        ends.append(simulation.now)

    for index in range(400):
        simulation.process(reader(1.0 + index))
    simulation.run()
    # Fair shares: the k-th smallest ends when all have got as much as it.
    sizes = [1.0 + index for index in range(400)]
    expected = [(sum(sizes[:k]) + sizes[k] * (400 - k)) / 100.0 for k in range(400)]
    assert ends == pytest.approx(expected)
