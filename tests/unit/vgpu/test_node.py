"""Cards follow the job that holds them, and not a picojoule is lost."""

import json
import random

from carme.local.vgpu.cards import cards, model_of
from carme.local.vgpu.node import MAX_GAP_NS, VirtualNode

from .conftest import World

T4 = model_of("virtual-t4")


def totals(node: VirtualNode) -> dict[int | None, int]:
    picojoules: dict[int | None, int] = {}
    for span in node.record.read() + node.open_spans():
        picojoules[span["jobid"]] = picojoules.get(span["jobid"], 0) + span["picojoules"]
    return picojoules


def counters(node: VirtualNode) -> int:
    return sum(meter.energy_pj for meter in node.meters)


def test_idle_power_while_nobody_holds_it(world: World) -> None:
    node = world.node()
    world.pass_seconds(10)
    node.tick()
    assert totals(node) == {None: 2 * 10 * T4.idle_mw * 10**9}


def test_power_follows_the_cpu_use_of_the_holder(world: World) -> None:
    node = world.node()
    world.start(5, [1])
    node.tick(force=True)
    world.pass_seconds(0.2)
    node.tick()
    for _ in range(20):
        world.pass_seconds(0.05)
        world.burn(5, 0.025)
        node.tick()
    assert node.meters[1].power_mw == T4.power_mw(0.5)
    assert node.meters[0].power_mw == T4.idle_mw
    assert totals(node)[5] == 200 * 10**6 * T4.idle_mw + 10**9 * T4.power_mw(0.5)


def test_the_record_adds_up_to_the_counter_over_random_histories(world: World) -> None:
    source, node, running, jobid = random.Random(4), world.node(), {}, 0
    for _ in range(400):
        world.pass_seconds(source.uniform(0.001, 0.3))
        action = source.random()
        free = {0, 1}.difference(*running.values())
        if action < 0.15 and free:
            jobid += 1
            running[jobid] = sorted(source.sample(sorted(free), source.randint(1, len(free))))
            world.start(jobid, running[jobid])
        elif action < 0.3 and running:
            ended = source.choice(list(running))
            world.record(ended, running.pop(ended), ended=True)
        elif action < 0.35:
            node = world.node()  # the daemon was killed and is back
        for job in running:
            world.burn(job, source.uniform(0, 0.2))
        node.tick(force=True)
    spans = node.record.read() + node.open_spans()
    assert sum(totals(node).values()) == counters(node)
    assert all(span["picojoules"] >= 0 for span in spans)
    assert len({(span["gpu"], span["span"]) for span in spans}) == len(spans) > 100


def test_a_hand_over_while_the_daemon_was_away_is_settled(world: World) -> None:
    node = world.node()
    power = node.meters[0].power_mw
    world.pass_seconds(2)
    world.start(9, [0])
    world.pass_seconds(3)
    world.record(9, [0], ended=True)
    world.pass_seconds(4)
    again = world.node()
    assert totals(again)[9] == 3 * power * 10**9
    assert counters(again) == 2 * 9 * power * 10**9


def test_a_machine_that_was_off_used_nothing(world: World) -> None:
    world.node()
    world.now_ns += MAX_GAP_NS + 1
    assert counters(world.node()) == 0
    world.now_ns = 5 * 10**9  # another boot: the clock starts again
    assert counters(world.node()) == 0


def test_a_daemon_killed_between_record_and_state_counts_once(world: World) -> None:
    node = world.node()
    world.pass_seconds(1)
    node.tick()
    node.record.append([node.meters[0].current(world.now_ns)])  # written, then killed
    again = world.node()
    assert sum(totals(again).values()) == counters(again) == 2 * T4.idle_mw * 10**9


def test_a_lost_epilog_does_not_keep_a_card(world: World) -> None:
    node = world.node()
    world.start(1, [0])
    world.pass_seconds(1)
    world.start(2, [0])
    node.tick(force=True)
    assert [meter.jobid for meter in node.meters] == [2, 0]


def test_broken_records_are_passed_over(world: World) -> None:
    node = world.node()
    (world.root / "run/jobs/gpu01.3.0.json").write_bytes(b"\xff{")
    (world.root / "run/jobs/gpu01.4.0.json").write_text('{"node": "gpu01", "jobid": -1}')
    (world.root / "run/jobs/gpu01.6.0.json").write_text(json.dumps({"node": "x", "jobid": 6}))
    node.tick(force=True)
    assert [meter.jobid for meter in node.meters] == [0, 0]


def test_every_name_says_virtual() -> None:
    for gres in ("virtual-a100", "virtual-t4", "virtual-v100", "virtual-h100", "titanx", "x"):
        assert model_of(gres).name.startswith("Virtual ")


def test_minors_are_unique_on_the_machine() -> None:
    from carme.config import Config

    cards_of = cards(Config().local.nodes)
    assert [card.minor for card in cards_of["gpu02"]] == [4, 5, 6, 7]
    assert cards_of["cpu01"] == ()
