"""Which nodes take a request, and whether it starts now."""

import pytest
from pydantic import ValidationError

from carme.errors import InputError
from carme.requests.placement import (
    Outlook,
    has_features,
    outlook,
    smaller_request,
    starts_now,
    usable_nodes,
    with_expected_start,
)
from carme.requests.resource_request import GIB, ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.slurm.models import ExpectedStart, Node, Reservation

NOW = 1000.0


def make_request(**values):
    base = {"partition": "gpu", "gpus": 1, "cpus": 2, "memory_gb": 4, "hours": 1}
    return ResourceRequest(**{**base, **values})


def test_a_request_that_fits_starts_now(snapshot):
    assert starts_now(make_request(gpu_type="a100"), snapshot, NOW)
    assert starts_now(make_request(gpus=2), snapshot, NOW)


def test_free_gpus_on_two_nodes_are_no_block(snapshot):
    assert not starts_now(make_request(gpus=3), snapshot, NOW)
    assert smaller_request(make_request(gpus=3), snapshot, NOW) == {
        "gpus": 2,
        "cpus": 2,
        "memory_gb": 4,
    }


def test_nothing_useful_is_not_offered(snapshot):
    full = tuple(node.model_copy(update={"cpus_used": node.cpus}) for node in snapshot.nodes)
    assert smaller_request(make_request(), snapshot.model_copy(update={"nodes": full}), NOW) is None


def test_maintenance_before_the_end_counts(snapshot):
    plan = Reservation(
        name="m",
        starts_at=int(NOW) + 1800,
        ends_at=int(NOW) + 9000,
        nodes=("gpu02",),
        flags=("MAINT",),
    )
    near = snapshot.model_copy(update={"reservations": (plan,)})
    assert not starts_now(make_request(gpu_type="t4", hours=1), near, NOW)
    assert starts_now(make_request(gpu_type="t4", hours=0.4), near, NOW)


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
    assert not starts_now(make_request(gpu_type="t4"), busy, NOW)
    assert starts_now(make_request(gpu_type="t4", reservation="course"), busy, NOW)
    assert not starts_now(make_request(gpu_type="a100", reservation="course"), busy, NOW)
    assert not usable_nodes(make_request(partition="gpu", reservation="other"), busy, NOW)
    later = plan.model_copy(update={"starts_at": int(NOW) + 60})
    ahead = busy.model_copy(update={"reservations": (later,)})
    assert not starts_now(make_request(gpu_type="t4", reservation="course"), ahead, NOW)


def test_all_nodes_of_a_request_must_be_free(snapshot):
    assert starts_now(make_request(nodes=2), snapshot, NOW)
    assert not starts_now(make_request(nodes=2, gpus=2), snapshot, NOW)
    offered = smaller_request(make_request(nodes=2, gpus=2), snapshot, NOW)
    assert offered is not None
    assert (offered["nodes"], offered["gpus"]) == (1, 2)


def test_an_outlook_says_why_it_waits(snapshot):
    ann = SlurmUser("ann")
    assert outlook(make_request(), snapshot, ann, NOW).starts_now
    waiting = outlook(make_request(gpus=4, gpu_type="a100"), snapshot, ann, NOW)
    assert waiting.needs_slurm_estimate
    assert waiting.smaller == {"gpus": 1, "cpus": 2, "memory_gb": 4}
    assert "gpus" in outlook(make_request(gpus=9), snapshot, ann, NOW).problems
    assert "nodes" in outlook(make_request(nodes=2), snapshot, ann, NOW, max_nodes=1).problems
    course = Reservation(name="course", starts_at=0, nodes=("gpu01", "gpu02"))
    closed = snapshot.model_copy(update={"reservations": (course,)})
    assert "reserved" in outlook(make_request(), closed, ann, NOW).wait_reason


def test_nothing_starts_now_while_slurm_is_away(snapshot):
    away = snapshot.model_copy(update={"controller": "away", "error": "timeout"})
    assert outlook(make_request(), away, SlurmUser("ann"), NOW) == Outlook(
        wait_reason="Slurm does not answer now."
    )


def test_an_outlook_with_the_start_that_slurm_expects():
    waiting = Outlook(smaller={"gpus": 1})
    at_once = with_expected_start(waiting, ExpectedStart(starts_at=int(NOW) + 1), NOW)
    assert at_once.starts_now
    later = with_expected_start(waiting, ExpectedStart(starts_at=int(NOW) + 60), NOW)
    assert (later.starts_now, later.starts_at) == (False, NOW + 60)
    assert later.smaller == waiting.smaller
    refused = with_expected_start(waiting, InputError("Slurm did not take the job"), NOW)
    assert refused.problems == {"": "Slurm did not take the job"}
    assert with_expected_start(waiting, None, NOW) == waiting


def with_limits(snapshot, **limits):
    partitions = (
        p.model_copy(update=limits) if p.name == "gpu" else p for p in snapshot.partitions
    )
    return snapshot.model_copy(update={"partitions": tuple(partitions)})


@pytest.mark.parametrize(
    ("limits", "values", "problems"),
    [
        ({"min_nodes": 2}, {}, {"nodes": "gpu takes jobs of at least 2 nodes"}),
        ({"max_nodes": 1}, {"nodes": 2}, {"nodes": "gpu allows at most 1 node"}),
        ({"max_cpus_per_node": 1}, {}, {"cpus": "gpu allows at most 1 core on a node"}),
        (
            {"max_memory_per_node_bytes": 2 * GIB},
            {},
            {"memory_gb": "gpu allows at most 2 GiB on a node"},
        ),
        ({"max_memory_per_cpu_bytes": GIB}, {}, {}),
        (
            {"max_memory_per_cpu_bytes": GIB, "max_cpus_per_node": 3},
            {},
            {"memory_gb": "gpu allows 1 GiB for each core and 3 cores on a node"},
        ),
        (
            {"max_memory_per_cpu_bytes": GIB},
            {"memory_gb": 40},
            {"cpus": "a node of gpu has at most 32 cores, and this much memory takes 40"},
        ),
    ],
)
def test_limits_of_the_partition(snapshot, limits, values, problems):
    limited = with_limits(snapshot, **limits)
    assert outlook(make_request(**values), limited, SlurmUser("ann"), NOW).problems == problems


def test_memory_beyond_the_partition_s_limit_for_a_core_takes_more_cores(snapshot):
    limited = with_limits(snapshot, max_memory_per_cpu_bytes=GIB // 4)
    request = make_request(gpu_type="a100", memory_gb=3)
    assert starts_now(request, snapshot, NOW)
    assert not starts_now(request, limited, NOW)
    assert smaller_request(request, limited, NOW) == {"gpus": 1, "cpus": 2, "memory_gb": 2}


def with_features(snapshot, **features):
    nodes = (n.model_copy(update={"features": features.get(n.name, ())}) for n in snapshot.nodes)
    return snapshot.model_copy(update={"nodes": tuple(nodes)})


@pytest.mark.parametrize(
    ("constraint", "is_met"),
    [
        ("", True),
        ("nvlink", True),
        ("ib", False),
        ("nvlink&cpu1", True),
        ("nvlink&ib", False),
        ("ib|nvlink", True),
        ("nvlink|ib&ib", False),
        ("ib&ib|nvlink", True),
    ],
)
def test_a_constraint_is_read_from_the_left(constraint, is_met):
    assert has_features(Node(name="n", features=("nvlink", "cpu1")), constraint) is is_met


@pytest.mark.parametrize(
    "text", ["a b", "a&", "|a", "a&&b", "a,b", "(a)", "a*2", "[a|b]", "!a", "a\n", "$(id)", "-a"]
)
def test_a_constraint_has_names_and_two_operators_only(text):
    with pytest.raises(ValidationError, match="constraint"):
        make_request(constraint=text)


def test_only_nodes_with_the_features_count(snapshot):
    seen = with_features(snapshot, gpu01=("nvlink", "ib"), gpu02=("ib",))
    ann = SlurmUser("ann")
    assert starts_now(make_request(gpus=2), seen, NOW)
    assert not starts_now(make_request(gpus=2, constraint="nvlink"), seen, NOW)
    assert smaller_request(make_request(gpus=2, constraint="nvlink"), seen, NOW)["gpus"] == 1
    problems = outlook(
        make_request(gpus=1, gpu_type="t4", constraint="nvlink"), seen, ann, NOW
    ).problems
    assert problems == {"gpus": "gpu with nvlink has no GPUs of type t4"}
    assert outlook(make_request(constraint="fast"), seen, ann, NOW).problems == {
        "constraint": "no node of gpu has these features; there are ib, nvlink"
    }
    assert outlook(make_request(nodes=2, constraint="nvlink"), seen, ann, NOW).problems == {
        "nodes": "gpu with nvlink has 1 node with enough GPUs, cores and memory"
    }


def test_the_constraint_is_an_option_of_sbatch():
    assert "--constraint=a&b|c" in make_request(constraint="a&b|c").sbatch_options()
    assert not [o for o in make_request().sbatch_options() if "constraint" in o]
