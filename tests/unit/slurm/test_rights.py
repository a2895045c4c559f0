"""Accounts, QoS and limits: what sacctmgr prints, what that means, how seldom it is asked."""

import asyncio
from typing import Any

import pytest

from carme.errors import UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.requests.slurm_user import within_rights
from carme.slurm import parse
from carme.slurm.command_client import CommandClient
from carme.slurm.limits import JOBS, SECONDS, SUBMITTED, Limit, job_limits, time_limits
from carme.slurm.models import Job, Partition
from carme.slurm.rights import Rights, UserRights
from carme.slurm.states import JobState
from carme.system.programs import CommandResult
from carme.view.caches import RightsCache
from support.slurm_memory import Cluster
from support.slurm_samples import ASSOCIATIONS, CONFIG, QOS_22, QOS_24, USERS

GIB = 2**30


@pytest.fixture
def rights() -> Rights:
    cluster, enforced = parse.parse_accounting(CONFIG)
    return Rights(
        enforced=enforced,
        associations=parse.parse_associations(ASSOCIATIONS, cluster),
        qos=parse.parse_qos(QOS_22),
        default_accounts=parse.parse_default_accounts(USERS),
    )


@pytest.fixture
def ann(rights: Rights) -> UserRights:
    return rights.of("ann")


def test_accounting() -> None:
    assert parse.parse_accounting(CONFIG) == ("carme", ("associations", "limits", "qos"))
    assert parse.parse_accounting("AccountingStorageEnforce = none\n") == ("", ())
    assert parse.parse_accounting("AccountingStorageEnforce=all") == ("", ("all",))


def test_associations_of_this_cluster() -> None:
    associations = parse.parse_associations(ASSOCIATIONS, "carme")
    assert [(a.account, a.user) for a in associations if a.user] == [
        ("root", "root"),
        ("sub", "ann"),
        ("research", "ann"),
        ("research", "ben"),
    ]
    other = next(a for a in associations if (a.account, a.user) == ("other", ""))
    assert other.parent == "root"
    assert other.limits.group == {"cpu": 100, "gres/gpu": 3, "mem": 1500 * GIB}
    sub = next(a for a in associations if (a.account, a.user) == ("sub", "ann"))
    assert (sub.qos, sub.limits.max_seconds) == (("short",), 7200)
    assert sub.limits.per_job == {"gres/gpu:a100": 1}
    assert sub.limits.minutes_per_job == {"gres/gpu": 240}
    research = next(a for a in associations if (a.account, a.user) == ("research", "ann"))
    assert (research.default_qos, research.limits.max_jobs) == ("normal", 4)
    assert len(parse.parse_associations(ASSOCIATIONS)) == len(associations) + 1


def test_qos_of_two_releases() -> None:
    normal, short = parse.parse_qos(QOS_22)
    assert normal.limits.per_user == {"gres/gpu": 6}
    assert (short.limits.max_seconds, short.limits.max_jobs) == (3600, 2)
    assert short.flags == ("DenyOnLimit", "OverPartQOS")
    by_name = {qos.name: qos for qos in parse.parse_qos(QOS_24)}
    assert by_name["shared"].limits.per_job == {"gres/gpu": 2, "node": 1}
    assert by_name["shared"].limits.max_seconds == 2 * 86400
    assert by_name["debug"].limits.max_submitted == 5
    assert by_name["bigmem"].limits.per_user == {"mem": int(1.5 * 2**40)}
    assert by_name["long"].replaces_partition_time


@pytest.mark.parametrize("text", ["", "sacctmgr: error: x\n", "a|b\n", "Account|User\n|\n1|2|3\n"])
def test_other_texts_give_nothing(text: str) -> None:
    assert parse.parse_associations(text) == parse.parse_qos(text) == ()
    assert parse.parse_default_accounts(text) == {}


def test_one_user(rights: Rights, ann: UserRights) -> None:
    assert ann.account_names() == ("research", "sub")
    assert ann.default_qos("", "gpu") == "normal"
    assert ann.default_qos("sub", "gpu") == "short"
    assert [item.account for item in ann.lineage("sub")] == ["sub", "other", "root"]
    assert "sub" in ann.lineage("sub")[1].below
    assert rights.of("nobody").account_names() == ()
    assert (rights.has_account("ann"), rights.has_account("nobody")) == (True, False)


def test_an_association_of_one_partition() -> None:
    header = "Cluster|Account|User|Partition|QOS|Def QOS\n"
    rows = "c|lab|ann|gpu|fast|fast\nc|lab|ann||slow|slow\nc|only|ann|cpu|slow|\n"
    own = Rights(associations=parse.parse_associations(header + rows)).of("ann")
    assert own.account_names("gpu") == ("lab",)
    assert own.account_names("cpu") == ("lab", "only")
    assert own.default_qos("lab", "gpu") == "fast"
    assert own.default_qos("lab", "cpu") == "slow"
    assert own.association("only", "gpu") is None


GPU = Partition(name="gpu", max_seconds=8 * 3600)


def limits_of(own: UserRights, partition: Partition = GPU, account: str = "", qos: str = "") -> Any:
    made = job_limits(partition, (partition,), own, account, qos)
    return {(bound.resource, bound.scope, bound.source): bound.maximum for bound in made}


def test_what_holds_for_a_choice(ann: UserRights) -> None:
    assert limits_of(ann) == {
        (SECONDS, "job", "partition gpu"): 8 * 3600,
        ("gres/gpu", "user", "QoS normal"): 6,
        (JOBS, "user", "account research"): 4,
    }
    assert limits_of(ann, account="sub") == {
        (SECONDS, "job", "partition gpu"): 8 * 3600,
        (SECONDS, "job", "QoS short"): 3600,  # before the account's two hours
        ("gres/gpu:a100", "job", "account sub"): 1,
        ("gres/gpu", "user", "QoS short"): 2,
        (JOBS, "user", "QoS short"): 2,
        ("cpu", "group", "account other"): 100,
        ("gres/gpu", "group", "account other"): 3,
        ("mem", "group", "account other"): 1500 * GIB,
    }


def test_the_partitions_qos_goes_first_unless_told_otherwise(ann: UserRights) -> None:
    with_qos = GPU.model_copy(update={"qos": "normal"})
    made = job_limits(with_qos, (with_qos,), ann, "research", "normal")
    assert next(b for b in made if b.resource == "gres/gpu").partitions == ("gpu",)
    made = job_limits(with_qos, (with_qos,), ann, "research", "short")
    assert next(b for b in made if b.resource == "gres/gpu").source == "QoS short", "OverPartQOS"


def test_limits_that_are_not_enforced_are_none(ann: UserRights) -> None:
    lax = ann.model_copy(update={"enforced": ("associations",)})
    assert list(limits_of(lax)) == [(SECONDS, "job", "partition gpu")]
    assert [b.maximum for b in time_limits(GPU, None, "", "")] == [8 * 3600]


def test_use_is_counted_for_whom_it_concerns() -> None:
    def job(number: int, **values: Any) -> Job:
        base = {"user": "ann", "account": "sub", "qos": "short", "partition": "gpu", "cpus": 4}
        return Job(id=number, state=JobState.RUNNING, gpus={"a100": 2}, **{**base, **values})

    jobs = (
        job(1),
        job(2, user="ben"),
        job(3, account="research"),
        Job(id=4, user="ann", account="sub", qos="short", state=JobState.PENDING),
        job(5, qos="normal", partition="cpu"),
    )
    mine = Limit("gres/gpu", 9, "", "user", user="ann", qos="short")
    assert mine.used(jobs) == 4
    assert Limit("cpu", 9, "", "group", accounts=("sub",)).used(jobs) == 12
    assert Limit("gres/gpu:a100", 9, "", "group", partitions=("cpu",)).used(jobs) == 2
    assert Limit(JOBS, 9, "", "user", user="ann").used(jobs) == 3
    assert Limit(SUBMITTED, 9, "", "user", user="ann").used(jobs) == 4
    assert Limit("cpu", 9, "", "job").used(jobs) == 0
    assert Limit("billing", 9, "", "group").used(jobs) == 0


def test_questions_leave_out_what_the_asker_has_not(ann: UserRights) -> None:
    asked = ResourceRequest(partition="gpu", account="sub", qos="short", reservation="class")
    assert within_rights(asked, ann) == asked
    view = UserRights(user="view")
    assert within_rights(asked, view) == ResourceRequest(partition="gpu", reservation="class")


def test_the_commands_are_asked_in_four_calls() -> None:
    printed = {
        "config": CONFIG,
        "associations": ASSOCIATIONS,
        "qos": QOS_22,
        "users": USERS,
    }
    calls: list[str] = []

    def run(argv: Any, stdin: str | None = None) -> CommandResult:
        calls.append(argv[0])
        return CommandResult(next(printed[word] for word in argv if word in printed), "", 0)

    client = CommandClient(run, 0)  # type: ignore[arg-type]
    assert client.rights().of("ann").default_account == "research"
    assert calls == ["scontrol", "sacctmgr", "sacctmgr", "sacctmgr"]


@pytest.mark.parametrize(
    ("printed", "away"),
    [
        ("You are not running a supported accounting_storage plugin\nOnly …\n", False),
        ("sacctmgr: error: slurm_persist_conn_open: failed: Connection refused\n", True),
        ("Unknown field 'qos'\n", True),
    ],
)
def test_no_accounting_is_not_the_same_as_none_in_reach(printed: str, away: bool) -> None:
    def run(argv: Any, stdin: str | None = None) -> CommandResult:
        return (
            CommandResult(CONFIG, "", 0) if argv[0] == "scontrol" else CommandResult("", printed, 1)
        )

    client = CommandClient(run, 0)  # type: ignore[arg-type]
    if away:
        with pytest.raises(UnavailableError):
            client.rights()
    else:
        assert client.rights() == Rights()


def test_one_reading_for_all_and_the_last_one_while_slurmdbd_is_away() -> None:
    async def run() -> None:
        now = [0.0]
        cluster = Cluster()
        registry = RightsCache(cluster, 300, lambda: now[0])
        many = await asyncio.gather(*(registry.of(user) for user in ["alice", "bob"] * 10))
        assert {own.default_account for own in many} == {"lab"}
        assert cluster.asked == ["rights"]
        now[0] = 299
        await registry.of("alice")
        assert registry.reads == 1
        await registry.of("carol")
        await registry.of("carol")
        assert registry.reads == 2, "an unknown user is looked for, but not each time"
        now[0] = 320
        await registry.of("alice", max_age_seconds=0)
        assert registry.reads == 3
        cluster.away = True
        now[0] = 700
        old = await registry.of("alice")
        assert (old.account_names(), "away" in old.error) == (("lab",), True)
        await registry.of("bob")
        assert registry.reads == 4, "not asked again at once"
        cluster.away = False
        now[0] = 720
        assert (await registry.of("bob")).error == ""

    asyncio.run(run())


def test_nothing_known_is_an_error() -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.away = True
        with pytest.raises(UnavailableError, match="away"):
            await RightsCache(cluster, 300).of("alice")

    asyncio.run(run())


def test_a_bug_in_reading_is_an_error_of_reading() -> None:
    class Buggy(Cluster):
        def rights(self) -> Rights:
            raise ZeroDivisionError

    with pytest.raises(UnavailableError, match="ZeroDivisionError"):
        asyncio.run(RightsCache(Buggy(), 300).of("alice"))


@pytest.mark.parametrize("word", ["a b", "a;b", "$(id)", "a\nb", "a'b"])
def test_names_that_are_no_names_are_not_asked(word: str) -> None:
    with pytest.raises(ValueError, match="account"):
        ResourceRequest(partition="gpu", account=word)
