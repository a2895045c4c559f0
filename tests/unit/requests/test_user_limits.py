"""What a person may have of a cluster: accounts, QoS, reservations, limits and what is left."""

import pytest

from carme.requests import user_limits
from carme.requests.resource_request import ResourceRequest
from carme.requests.slurm_user import SlurmUser
from carme.slurm.models import Job
from carme.slurm.rights import JobLimits, Qos
from carme.slurm.states import JobState
from support.small_cluster import ANN, GIB, NOW, RIGHTS, reservation


def make_request(**values):
    base = {"partition": "gpu", "gpus": 1, "cpus": 2, "memory_gb": 2, "hours": 1}
    return ResourceRequest(**{**base, **values})


def running(number, **values):
    base = {"user": "ann", "account": "lab", "qos": "normal", "partition": "gpu", "cpus": 1}
    return Job(id=number, state=JobState.RUNNING, **{**base, "gpus": {"a100": 1}, **values})


def held(request, snapshot):
    return user_limits.wait_reason(user_limits.shortages(request, snapshot, ANN))


def reduced(request, snapshot):
    return user_limits.reduced(request, user_limits.shortages(request, snapshot, ANN))


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"account": "theirs"}, "account", "you have no account theirs; yours: lab, course"),
        ({"qos": "urgent"}, "qos", "account lab has no QoS urgent; it has normal, short"),
        ({"account": "course", "qos": "short"}, "qos", "account course has no QoS short"),
        ({"account": "gpuless"}, "account", "account gpuless may not use gpu"),
        ({"hours": 9}, "hours", "gpu allows at most 8 h"),
        ({"qos": "short", "hours": 1.5}, "hours", "QoS short allows at most 1 h"),
        ({"account": "course", "hours": 3}, "hours", "account course allows at most 2 h"),
        (
            {"account": "course", "gpus": 2, "hours": 2},
            "hours",
            "gres/gpu) allows at most 1 h 30 min",
        ),
        ({"account": "course", "memory_gb": 4}, "memory_gb", "a session at most 2 GiB"),
        ({"account": "course", "cpus": 5}, "cpus", "a session at most 4 cores"),
        ({"gpus": 4}, "gpus", "QoS normal gives one user at most 3 GPUs"),
        ({"account": "course", "gpus": 3}, "gpus", "account school gives all its jobs together"),
        ({"reservation": "r"}, "reservation", "you have no reservation r; yours: none"),
    ],
)
def test_what_is_not_ones_own_is_said_at_its_field(values, field, says, snapshot):
    problems = user_limits.user_problems(make_request(**values), snapshot, ANN, NOW)
    assert list(problems) == [field]
    assert says in problems[field]


def test_what_is_ones_own_is_fine(snapshot):
    good = [{}, {"account": "lab", "qos": "short"}, {"account": "course"}]
    good.append({"account": "gpuless", "partition": "cpu", "gpus": 0})
    for values in good:
        assert user_limits.user_problems(make_request(**values), snapshot, ANN, NOW) == {}, values


def test_without_rights_only_the_partition_counts(snapshot):
    stranger = SlurmUser("ann")
    assert user_limits.user_problems(make_request(), snapshot, stranger, NOW) == {}
    assert "hours" in user_limits.user_problems(make_request(hours=9), snapshot, stranger, NOW)
    problems = user_limits.user_problems(
        make_request(account="lab", qos="short"), snapshot, stranger, NOW
    )
    assert problems.keys() == {"account", "qos"}
    assert "cannot be read" in problems["account"]


def with_partition(snapshot, **values):
    partitions = tuple(
        p.model_copy(update=values) if p.name == "gpu" else p for p in snapshot.partitions
    )
    return snapshot.model_copy(update={"partitions": partitions})


@pytest.mark.parametrize(
    ("rule", "field", "says"),
    [
        ({"allow_accounts": ("other",)}, "account", "gpu is closed to account lab"),
        ({"deny_accounts": ("lab",)}, "account", "gpu is closed to account lab"),
        ({"allow_qos": ("urgent",)}, "qos", "gpu is closed to QoS normal"),
        ({"deny_qos": ("normal",)}, "qos", "gpu is closed to QoS normal"),
        ({"allow_groups": ("staff",)}, "partition", "open to other groups"),
        ({"allow_accounts": ("lab",)}, "", ""),
        ({"allow_accounts": ("root",)}, "account", "closed"),
        ({"allow_groups": ("students",)}, "", ""),
    ],
)
def test_what_the_partition_says(rule, field, says, snapshot):
    problems = user_limits.user_problems(make_request(), with_partition(snapshot, **rule), ANN, NOW)
    assert list(problems) == ([field] if field else [])
    assert says in problems.get(field, "")


def test_a_partition_open_to_the_account_above(snapshot):
    school = with_partition(snapshot, allow_accounts=("school",))
    assert user_limits.user_problems(make_request(account="course"), school, ANN, NOW) == {}


@pytest.mark.parametrize(
    ("values", "mine"),
    [
        ({"users": ("ann",)}, True),
        ({"users": ("ben",)}, False),
        ({"users": ("-ben",)}, True),
        ({"users": ("-ann",)}, False),
        ({"accounts": ("lab",)}, True),
        ({"accounts": ("school",)}, True),
        ({"accounts": ("-lab", "-course", "-gpuless")}, False),
        ({"users": ("ann",), "accounts": ("other",)}, False),
        ({"groups": ("students",)}, True),
        ({"groups": ("staff",)}, False),
        ({}, False),
        ({"users": ("ann",), "flags": ("MAINT",)}, False),
        ({"users": ("ann",), "ends_at": 900}, False),
        ({"users": ("ann",), "starts_at": 1000 + 23 * 3600, "ends_at": None}, True),
        ({"users": ("ann",), "starts_at": 1000 + 25 * 3600, "ends_at": None}, False),
    ],
)
def test_reservations_that_one_may_name(values, mine, snapshot):
    seen = snapshot.model_copy(update={"reservations": (reservation(**values),)})
    assert bool(ANN.reservations(seen, NOW)) is mine


def test_a_reservation_goes_with_account_partition_and_time(snapshot):
    seen = snapshot.model_copy(update={"reservations": (reservation(accounts=("course",)),)})
    good = make_request(account="course", reservation="class")
    assert user_limits.user_problems(good, seen, ANN, NOW) == {}
    problems = user_limits.user_problems(make_request(reservation="class"), seen, ANN, NOW)
    assert problems == {"reservation": "class is not for account lab"}
    cpu = make_request(account="course", reservation="class", partition="cpu", gpus=0)
    assert "no nodes of cpu" in user_limits.user_problems(cpu, seen, ANN, NOW)["reservation"]
    long = make_request(account="course", reservation="class", hours=2)
    assert "left" in user_limits.user_problems(long, seen, ANN, NOW)["hours"]
    # What was not asked for is made to fit.
    raw = {"account": "course", "reservation": "class"}
    values = {**raw, "partition": "gpu", "qos": "", "hours": 5}
    assert 1.7 < user_limits.with_allowed_hours(values, raw, seen, ANN, NOW)["hours"] < 1.86


def test_what_runs_already_counts(snapshot):
    busy = snapshot.model_copy(update={"jobs": (running(1), running(2))})
    assert held(make_request(), busy) == ""
    reason = held(make_request(gpus=2), busy)
    assert reason == "You already have 2 GPUs, and QoS normal gives one user at most 3 GPUs."
    assert reduced(make_request(gpus=2), busy).gpus == 1
    assert held(make_request(qos="short", gpus=2), busy) == ""


def test_what_others_of_the_account_run_counts(snapshot):
    others = (running(1, user="ben", account="course"), running(2, user="cy", account="course"))
    busy = snapshot.model_copy(update={"jobs": others})
    reason = held(make_request(account="course"), busy)
    assert reason == "Account school is limited to 2 GPUs for all its jobs; 2 are in use."
    assert reduced(make_request(account="course"), busy) is None
    assert held(make_request(), busy) == ""


def test_as_many_jobs_as_one_may(snapshot):
    two = tuple(running(n, qos="short", gpus={}) for n in (1, 2))
    busy = snapshot.model_copy(update={"jobs": two})
    assert "2 running jobs" in held(make_request(qos="short", gpus=0), busy)
    assert reduced(make_request(qos="short", gpus=0), busy) is None


def test_no_more_may_be_submitted(snapshot):
    few = RIGHTS.model_copy(
        update={"qos": (Qos(name="normal", limits=JobLimits(max_submitted=1)),)}
    )
    busy = snapshot.model_copy(update={"jobs": (running(1, gpus={}),)})
    person = SlurmUser("ann", frozenset(), few)
    assert user_limits.user_problems(make_request(), snapshot, person, NOW) == {}
    problems = user_limits.user_problems(make_request(), busy, person, NOW)
    assert problems == {"": "QoS normal allows 1 queued or running job per user; you have 1"}


def test_a_qos_in_a_line():
    assert user_limits.describe(JobLimits()) == ""
    limits = JobLimits(max_seconds=3600, per_job={"mem": GIB}, per_user={"gres/gpu:a100": 1})
    assert user_limits.describe(limits) == (
        "up to 1 h; at most 1 GiB in a job; at most 1 GPU of type a100 in all your jobs"
    )


def test_unknown_options_do_not_matter_to_the_time(snapshot):
    values = {"partition": "gpu", "account": "", "qos": "", "reservation": "", "hours": 1}
    for name in ("cls", "self", "_fields_set", "no-such-option"):
        assert user_limits.with_allowed_hours(values, {name: "x"}, snapshot, ANN, NOW) == values
