from carme.slurm.models import Reservation
from carme.slurm.snapshot import QueueLoad
from carme_spawner.availability import AvailabilityPanel

NOW = 1000.0


def overview(snapshot, now):
    return AvailabilityPanel().of(snapshot, now)


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


def test_maintenance_is_announced(snapshot):
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
