from carme.slurm.models import Reservation
from carme.slurm.snapshot import QueueLoad
from carme_spawner.availability import AvailabilityPanel, closed, smaller, starts_now
from carme_spawner.options import Options

NOW = 1000.0


def overview(snapshot, now):
    return AvailabilityPanel().of(snapshot, now)


def choice(**values):
    base = {"partition": "gpu", "gpus": 1, "cpus": 2, "memory_gb": 4, "hours": 1, "image": "base"}
    return Options(**{**base, **values})


def test_overview_has_what_the_panel_shows(snapshot):
    busy = snapshot.model_copy(update={"load": {"gpu": QueueLoad(waiting=3)}, "taken_at": NOW - 5})
    gpu, cpu, old = overview(busy, NOW)["partitions"]
    assert gpu["gpus"] == [
        {"type": "a100", "total": 4, "free": 1, "block": 1},
        {"type": "t4", "total": 2, "free": 2, "block": 2},
    ]
    assert (gpu["waiting"], cpu["waiting"], old["up"]) == (3, 0, False)
    assert gpu["largest"] == {"gpus": 4, "cpus": 8, "memory_gb": 8}
    assert overview(busy, NOW)["age_seconds"] == 5


def test_a_choice_that_fits_starts_now(snapshot):
    assert starts_now(choice(gpu_type="a100"), snapshot, NOW)
    assert starts_now(choice(gpus=2), snapshot, NOW)


def test_free_gpus_on_two_nodes_are_no_block(snapshot):
    assert not starts_now(choice(gpus=3), snapshot, NOW)
    assert smaller(choice(gpus=3), snapshot, NOW) == {"gpus": 2, "cpus": 2, "memory_gb": 4}


def test_nothing_useful_is_not_offered(snapshot):
    full = tuple(node.model_copy(update={"cpus_used": node.cpus}) for node in snapshot.nodes)
    assert smaller(choice(), snapshot.model_copy(update={"nodes": full}), NOW) is None


def test_maintenance_before_the_end_counts(snapshot):
    plan = Reservation(
        name="m",
        starts_at=int(NOW) + 1800,
        ends_at=int(NOW) + 9000,
        nodes=("gpu02",),
        flags=("MAINT",),
    )
    near = snapshot.model_copy(update={"reservations": (plan,)})
    assert overview(near, NOW)["maintenance"] == [
        {
            "name": "m",
            "starts_at": int(NOW) + 1800,
            "ends_at": int(NOW) + 9000,
            "nodes": 1,
            "partitions": ["gpu"],
        }
    ]
    assert not starts_now(choice(gpu_type="t4", hours=1), near, NOW)
    assert starts_now(choice(gpu_type="t4", hours=0.4), near, NOW)


def test_a_reservation_of_others_closes_its_nodes(snapshot):
    plan = Reservation(name="course", starts_at=0, ends_at=int(NOW) + 9000, nodes=("gpu02",))
    busy = snapshot.model_copy(
        update={
            "reservations": (plan,),
            "nodes": tuple(
                n.model_copy(update={"flags": ("RESERVED",)}) if n.name == "gpu02" else n
                for n in snapshot.nodes
            ),
        }
    )
    assert not starts_now(choice(gpu_type="t4"), busy, NOW)
    assert starts_now(choice(gpu_type="t4", reservation="course"), busy, NOW)
    assert not starts_now(choice(gpu_type="a100", reservation="course"), busy, NOW)
    assert closed(choice(partition="gpu", reservation="other"), busy, NOW)
    later = plan.model_copy(update={"starts_at": int(NOW) + 60})
    ahead = busy.model_copy(update={"reservations": (later,)})
    assert not starts_now(choice(gpu_type="t4", reservation="course"), ahead, NOW)


def test_all_nodes_of_a_choice_must_be_free(snapshot):
    assert starts_now(choice(nodes=2), snapshot, NOW)
    assert not starts_now(choice(nodes=2, gpus=2), snapshot, NOW)
    offered = smaller(choice(nodes=2, gpus=2), snapshot, NOW)
    assert offered is not None
    assert (offered["nodes"], offered["gpus"]) == (1, 2)
