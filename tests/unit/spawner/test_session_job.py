"""The life of a session's job against a Slurm in memory: clocks, outages, states, the end."""

import asyncio
import itertools
import pwd
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from traitlets.config import Config as Traits

from carme.config import Config, SessionSettings
from carme.errors import MissingError, UnavailableError
from carme.slurm.models import Job, Node
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import JobState
from carme_spawner import CarmeSpawner, configure, session_job
from carme_spawner.cluster_state import ClusterState
from carme_spawner.messages import SessionFailure
from carme_spawner.session_job import SessionJob

NODE = Node(name="n1", address="10.0.0.1")
SUBMISSION = "4f" * 16
SUBMITTED = {
    "user": "ann",
    "name": "carme-default",
    "comment": f"carme-image=base.sif,carme-submission={SUBMISSION}",
    "submitted_at": 1_800_000_000,
}
"""What Slurm says about the job that the hub submitted."""


class View:
    """What `carme-view` would say; counts how often it is asked."""

    def __init__(self, *states):
        self.states = list(states)
        self.submitted = dict(SUBMITTED)
        self.asked = 0
        self.newest = None

    async def refresh(self, max_age, jobs_only):
        self.asked += 1
        await asyncio.sleep(0)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        if state == "away":
            self.newest = Snapshot(taken_at=time.time(), controller="away")
            return self.newest
        nodes = () if state.waiting else ("n1",)
        job = Job(id=7, state=state, nodes=nodes, partition="gpu", **self.submitted)
        self.newest = Snapshot(taken_at=time.time(), jobs=(job,), nodes=(NODE,))
        return self.newest


class Helper:
    """Notes what is done as the user."""

    def __init__(self, view=None):
        self.done = []
        self.view = view
        self.obeys = True
        self.away = 0

    async def submit(self, *_):
        self.done.append("submit")
        await asyncio.sleep(0.01)
        return SimpleNamespace(job_id=7)

    async def tail_log(self, user, name, lines):
        return "its last line\n"

    async def extend(self, user, job_id, seconds):
        self.done.append("extend")
        return SimpleNamespace(ends_at=0)

    async def signal(self, user, job_id, name):
        self.done.append(name)
        if self.obeys is None:
            raise MissingError("no such job")
        if self.obeys:
            self.view.states = [JobState.COMPLETED]

    async def cancel(self, user, job_id):
        self.done.append("cancel")
        if self.away:
            self.away -= 1
            raise UnavailableError("Slurm does not answer")
        self.view.states = [JobState.CANCELLED]


def job_in(*states, **settings):
    view = View(*states)
    helper = Helper(view)
    config = Config(session=SessionSettings(**settings))
    context = SimpleNamespace(config=config, cluster_state=ClusterState(view), helper=helper)
    job = SessionJob(context, "ann", "default")
    saved = {"job_id": 7, "submitted_at": time.time(), "submission": SUBMISSION}
    job.restore({**saved, "slurm_submitted_at": SUBMITTED["submitted_at"]})
    return job, view, helper


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session_job, "STARTING_MAX_AGE_SECONDS", 0.01)
    monkeypatch.setattr(session_job, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(session_job, "CONFIRM_SECONDS", 0.01)


def test_waiting_does_not_count_as_starting():
    job, _, _ = job_in(*[JobState.PENDING] * 30, JobState.RUNNING, start_seconds=10)
    job.saved.submitted_at -= 3600  # it waited for an hour, and may start for ten seconds

    async def run():
        asyncio.get_running_loop().call_later(0.5, job.report, 4711)
        return await job.until_up()

    assert asyncio.run(run()) == f"https://10-0-0-1.{SUBMISSION}.carme-session.internal:4711"


def test_waiting_has_a_limit_of_its_own():
    job, _, _ = job_in(JobState.PENDING, wait_hours=1)
    job.saved.submitted_at -= 3700
    with pytest.raises(SessionFailure, match="waited for 1 h"):
        asyncio.run(job.until_up())


def test_starting_has_a_limit(monkeypatch):
    job, _, _ = job_in(JobState.RUNNING, start_seconds=10)
    now = time.time()
    clock = iter(range(10_000))
    monkeypatch.setattr(session_job.time, "time", lambda: now + next(clock))
    with pytest.raises(SessionFailure, match="did not start within 10 s"):
        asyncio.run(job.until_up())


@pytest.mark.parametrize("trouble", ["away", UnavailableError("no view")])
def test_an_outage_is_unknown_and_not_the_end(trouble):
    job, _, _ = job_in(JobState.RUNNING, trouble, trouble, JobState.RUNNING)

    async def run():
        assert (await job.read_job(0)).state == JobState.RUNNING
        assert await job.read_job(0) is None
        assert await job.read_job(0) is None
        assert (await job.read_job(0)).state == JobState.RUNNING

    asyncio.run(run())


@pytest.mark.parametrize("state", [s for s in JobState if s.ended])
def test_a_job_that_dies_before_its_server_ends_the_spawn_at_once(state):
    job, _, _ = job_in(JobState.PENDING, state)
    with pytest.raises(SessionFailure) as over:
        asyncio.run(asyncio.wait_for(job.until_up(), 5))
    assert over.value.message
    assert over.value.message.endswith("its last line")
    assert "unknown" not in over.value.message.lower()


@pytest.mark.parametrize("state", [s for s in JobState if not s.ended and not s.ending])
def test_a_job_that_has_not_ended_does_not_end_the_spawn(state):
    job, _, _ = job_in(state)

    async def run():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.until_up(), 0.1)

    asyncio.run(run())


def test_a_port_is_taken_at_once_even_while_slurm_is_slow():
    job, view, _ = job_in(JobState.RUNNING)

    async def run():
        await job.read_job()
        slow = asyncio.Event()

        async def never(max_age, jobs_only):
            await slow.wait()

        view.refresh = never
        asyncio.get_running_loop().call_later(0.05, job.report, 4711)
        await asyncio.sleep(0.02)
        url = await asyncio.wait_for(job.until_up(), 2)
        slow.set()
        return url

    assert asyncio.run(run()) == f"https://10-0-0-1.{SUBMISSION}.carme-session.internal:4711"


def test_fifty_waiting_sessions_share_one_request_to_the_view():
    view = View(JobState.PENDING)
    state = ClusterState(view)

    async def run():
        await asyncio.gather(*(state.fresh_snapshot(1) for _ in range(50)))

    asyncio.run(run())
    assert view.asked == 1


def test_a_stop_sends_a_signal_first_and_does_not_cancel_if_that_ends_the_session():
    job, _, helper = job_in(JobState.RUNNING)
    job.report(4711)
    asyncio.run(job.end(5))
    assert helper.done == ["TERM"]
    asyncio.run(job.end(5))
    assert helper.done == ["TERM"], "again is nothing to do"


def test_a_stop_cancels_a_job_that_ignores_the_signal(monkeypatch):
    job, _, helper = job_in(JobState.RUNNING)
    job.report(4711)
    helper.obeys = False
    asyncio.run(job.end(0.1))
    assert helper.done == ["TERM", "cancel"]


def test_a_stop_cancels_if_the_signal_cannot_be_sent():
    job, _, helper = job_in(JobState.RUNNING)
    job.report(4711)
    helper.obeys = None
    asyncio.run(job.end(5))
    assert helper.done == ["TERM", "cancel"]


def test_a_waiting_job_and_a_stop_without_grace_are_cancelled_at_once():
    job, _, helper = job_in(JobState.PENDING)
    asyncio.run(job.end(5))
    assert helper.done == ["cancel"]
    job, _, helper = job_in(JobState.RUNNING)
    job.report(4711)
    asyncio.run(job.end(0))
    assert helper.done == ["cancel"]


def test_a_stop_during_the_submission_still_finds_the_job():
    job, _, helper = job_in(JobState.PENDING)

    async def run():
        submission = asyncio.ensure_future(job.submit("#!", {}, "hash", SUBMISSION))
        await asyncio.sleep(0)
        submission.cancel()
        await job.end(5)

    asyncio.run(run())
    assert helper.done == ["submit", "cancel"]


def test_a_stop_is_repeated_until_slurm_answers():
    job, _, helper = job_in("away")
    helper.away = 3
    asyncio.run(job.end(0))
    assert helper.done == ["cancel"] * 4


def test_a_stop_while_slurm_is_away_ends_with_the_job():
    job, _, helper = job_in("away", "away", JobState.COMPLETED)
    helper.away = 1000
    asyncio.run(job.end(0))
    assert helper.away


def unconfirmed(*states, **submitted):
    """A session that the helper has just reported, and whose job is this in Slurm."""
    job, view, helper = job_in(*states)
    saved = {**job.state(), "slurm_submitted_at": 0}
    job = SessionJob(job._context, "ann", "default")
    job.restore(saved)
    view.submitted.update(submitted)
    return job, view, helper


FOREIGN = [
    {"user": "ben"},
    {"user": "ben", "uid": 4_000_001},
    {"user": "ann", "uid": 4_000_001},  # the name of an account that was another's
    {"name": "carme-named-other"},
    {"name": "training", "comment": ""},
    {"comment": ""},
    {"comment": "carme-image=base.sif"},
    {"comment": "carme-submission=" + "5e" * 16},  # another submission of the same session
]
"""What makes a job another one than the one that was submitted."""


def users(**uids):
    """A directory service with these users: a `getpwnam`."""

    def getpwnam(name):
        if name not in uids:
            raise KeyError(name)
        return SimpleNamespace(pw_uid=uids[name])

    return getpwnam


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_job_that_is_not_this_sessions_does_not_start_it_and_is_not_touched(
    foreign, caplog, monkeypatch
):
    monkeypatch.setattr(pwd, "getpwnam", users(ann=4_000_000))
    job, _, helper = unconfirmed(JobState.RUNNING, **foreign)
    job.report(4711)  # the port comes with the session's own token, whatever the job is

    async def run():
        with pytest.raises(SessionFailure, match="is not this session's"):
            await asyncio.wait_for(job.until_up(), 5)
        with pytest.raises(SessionFailure, match="is not this session's"):
            await job.extend(600)
        await asyncio.wait_for(job.end(5), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.confirmed_id(), 0.05)

    asyncio.run(run())
    assert helper.done == []
    assert (job.last, job.saved.address) == (None, "")
    assert "session default of ann: job 7, which was reported" in caplog.text


def test_the_submitted_job_is_confirmed_and_used():
    job, _, helper = unconfirmed(JobState.RUNNING)
    job.report(4711)

    async def run():
        url = await asyncio.wait_for(job.until_up(), 5)
        assert await job.confirmed_id() == 7
        await job.extend(600)
        await job.end(5)
        return url

    assert asyncio.run(run()) == f"https://10-0-0-1.{SUBMISSION}.carme-session.internal:4711"
    assert helper.done == ["extend", "TERM"]


def test_a_confirmed_job_stays_the_sessions_if_its_user_changes_its_comment():
    job, view, _ = unconfirmed(JobState.RUNNING)

    async def run():
        await job.read_job(0)
        view.submitted.update(comment="carme-profile", name="mine")
        assert await job.read_job(0)
        after_restart = SessionJob(job._context, "ann", "default")
        after_restart.restore(job.state())
        assert await after_restart.read_job(0)
        # Another job has the number: Slurm began to count anew.
        view.submitted.update(submitted_at=SUBMITTED["submitted_at"] + 60)
        for session in (job, after_restart):
            with pytest.raises(SessionFailure):
                await session.read_job(0)

    asyncio.run(run())


def test_a_session_goes_on_while_the_directory_service_is_away(monkeypatch):
    job, view, _ = unconfirmed(JobState.RUNNING, uid=4_000_000)
    monkeypatch.setattr(pwd, "getpwnam", users())

    async def run():
        assert await job.read_job(0), "known by the user's name"
        view.submitted.update(user="ben")
        with pytest.raises(SessionFailure):
            await job.read_job(0)
        monkeypatch.setattr(pwd, "getpwnam", users(ann=4_000_000))
        view.submitted.update(user="ann")
        assert await job.read_job(0), "the failed lookup is not kept"
        monkeypatch.setattr(pwd, "getpwnam", users())
        assert await job.read_job(0)
        view.submitted.update(uid=4_000_001)
        with pytest.raises(SessionFailure):
            await job.read_job(0)

    asyncio.run(run())


def test_a_node_is_looked_up_once_and_by_ipv4_if_it_has_that(monkeypatch):
    looked_up = []

    def getaddrinfo(host, *arguments, **options):
        looked_up.append(host)
        if host == "n2":
            raise socket.gaierror("no such host")
        v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", 0))
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::9", 0, 0, 0)), v4]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    job, _, _ = job_in(JobState.RUNNING)

    async def run():
        for _ in range(3):
            await job.read_job(0)
        assert (job.saved.address, looked_up) == ("10.0.0.9", ["10.0.0.1"])
        for node in ("n2", "n2", "n3", "n3"):
            await job._find(node)
        assert looked_up == ["10.0.0.1", "n2", "n2", "n3"], "a failed lookup is repeated"

    asyncio.run(run())


def test_a_requeued_job_stays_the_sessions():
    job, view, _ = unconfirmed(JobState.RUNNING)

    async def run():
        await job.read_job(0)
        view.submitted.update(submitted_at=SUBMITTED["submitted_at"] + 60)
        assert await job.read_job(0)

    asyncio.run(run())


@pytest.mark.parametrize("trouble", ["away", UnavailableError("no view")])
def test_an_unconfirmed_number_is_not_acted_on_while_slurm_is_away(trouble):
    job, _, helper = unconfirmed(trouble)

    async def run():
        with pytest.raises(UnavailableError, match="cannot be read"):
            await job.extend(600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.end(0), 0.2)

    asyncio.run(run())
    assert helper.done == []
    job, _, helper = unconfirmed(trouble, trouble, JobState.RUNNING)
    asyncio.run(asyncio.wait_for(job.end(0), 5))
    assert helper.done == ["cancel"], "it is this session's"


def test_a_job_that_is_confirmed_soon_is_cancelled_soon(monkeypatch):
    """The pauses before a repeated cancel, up to a minute, are not for reading Slurm."""
    assert session_job.CONFIRM_SECONDS <= 3
    monkeypatch.setattr(session_job, "RETRY_SECONDS", (60, 60))
    job, _, helper = unconfirmed("away", "away", JobState.RUNNING)
    asyncio.run(asyncio.wait_for(job.end(0), 5))
    assert helper.done == ["cancel"]


class LookedAt:
    """As much of a spawner as `look_now` needs."""

    look_now, _look_now = CarmeSpawner.look_now, CarmeSpawner._look_now

    def __init__(self):
        self.ready = True
        self._look, self._must_look, self._looked_at = None, False, float("-inf")
        self._job = self
        self.looks = []

    async def read_job(self, max_age_seconds):
        self.looks.append(time.monotonic())
        await asyncio.sleep(0.02)

    async def poll_and_notify(self):
        await asyncio.sleep(0.01)


def test_looks_that_are_asked_for_have_pauses_and_the_last_request_counts(monkeypatch):
    monkeypatch.setattr(sys.modules[CarmeSpawner.__module__], "LOOK_SECONDS", 0.2)
    spawner = LookedAt()

    async def run():
        for _ in range(10):
            spawner.look_now()
            await asyncio.sleep(0.001)
        await spawner._look
        assert len(spawner.looks) == 2, "the first look had begun before the last request"
        spawner.look_now()
        await spawner._look
        assert len(spawner.looks) == 3
        spawner.ready = False
        spawner.look_now()
        assert spawner._look.done()

    asyncio.run(run())
    pauses = [after - before for before, after in itertools.pairwise(spawner.looks)]
    assert min(pauses) > 0.19


def test_a_restarted_hub_looks_again_and_ends_a_session_whose_number_is_anothers():
    job, _, helper = job_in(JobState.RUNNING)
    state = {**job.state(), "port": 4711, "address": "10.0.0.1"}
    restarted = SessionJob(job._context, "ann", "default")
    restarted.restore(state)
    job._context.cluster_state._client.submitted.update(
        user="ben", submitted_at=SUBMITTED["submitted_at"] + 86400
    )
    log = SimpleNamespace(warning=lambda *_: None)
    spawner = SimpleNamespace(_job=restarted, log=log, _log_name="ann", _check_pending=True)
    spawner._poll_job = lambda: CarmeSpawner._poll_job(spawner)
    assert asyncio.run(CarmeSpawner.poll(spawner)) == 1
    assert "is not this session's" in spawner.ended_message
    asyncio.run(restarted.end(5))
    assert helper.done == []


def test_a_session_of_an_older_release_is_known_by_owner_and_name():
    job, view, _ = unconfirmed(JobState.RUNNING, comment="")
    del (state := job.state())["submission"]
    job.restore(state)
    assert asyncio.run(job.read_job(0))
    view.submitted.update(name="other")
    job.restore(state)
    job._confirmed.clear()
    with pytest.raises(SessionFailure):
        asyncio.run(job.read_job(0))


def test_a_session_that_is_being_submitted_polls_as_alive():
    """The hub calls stop, which waits for the job, only for what it takes for alive."""
    job, _, _ = job_in(JobState.PENDING)

    async def run():
        submission = asyncio.ensure_future(job.submit("#!", {}, "hash", SUBMISSION))
        await asyncio.sleep(0)
        submission.cancel()
        await asyncio.sleep(0)
        return await CarmeSpawner.poll(SimpleNamespace(_job=job))

    assert asyncio.run(run()) is None
    job, _, _ = job_in(JobState.PENDING)
    job.saved.job_id = 0
    assert asyncio.run(CarmeSpawner.poll(SimpleNamespace(_job=job))) == 0


def test_spawns_in_the_queue_are_not_limited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    c = Traits()
    configure(c, Config())
    assert c.JupyterHub.concurrent_spawn_limit == 0
    assert CarmeSpawner.start_timeout.default_value > 72 * 3600
