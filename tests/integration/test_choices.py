"""Account, QoS and reservation on a live Slurm: offered, checked, respected and used."""

import re
import time

import pytest

from support.cluster import wait_for
from support.hub import User
from support.slurm_live import Jobs, view

SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 0.5}
ACCOUNT, PLAN = "ct-course", "ct-class"


def sacctmgr(cluster, *arguments):
    result = cluster.run(["sacctmgr", "-i", *arguments])
    assert result.returncode == 0 or "Nothing" in result.stdout, result.stdout + result.stderr


@pytest.fixture(scope="module")
def course(cluster):
    """A second account for the first user, with limits of its own."""
    ann = cluster.users[0]
    where = f"cluster={cluster.config.cluster.name}"
    sacctmgr(cluster, "add", "account", ACCOUNT, where, "GrpTRES=gres/gpu=1", "MaxWall=02:00:00")
    sacctmgr(cluster, "add", "user", ann, f"account={ACCOUNT}", where, "qos=normal,short")
    # A running view would see it within 15 s; a new one reads it at once.
    cluster.stop("view")
    cluster.start("view")

    def has_rights():
        return ACCOUNT in str(view(cluster, cluster.config.hub.user, "rights", user=ann))

    wait_for(has_rights, 60, "the view knows the new account")
    yield ACCOUNT
    sacctmgr(cluster, "delete", "user", ann, f"account={ACCOUNT}")
    sacctmgr(cluster, "delete", "account", ACCOUNT)
    # A new view reads accounts at once; a running one would offer this one for some minutes.
    cluster.stop("view")
    cluster.start("view")


@pytest.fixture
def ann(cluster, course):
    person = User.fresh(cluster, cluster.users[0])
    yield person
    person.stop()


@pytest.fixture
def ben(cluster, course):
    return User.fresh(cluster, cluster.users[1])


@pytest.fixture
def plan(cluster, course):
    """A reservation of the CPU node for that account; asked for before users, it outlives them."""
    options = ["StartTime=now", "Duration=120", "Nodes=cpu01", f"Accounts={course}"]
    options.append("Flags=IGNORE_JOBS")
    result = cluster.run(["scontrol", "create", "reservation", f"ReservationName={PLAN}", *options])
    assert result.returncode == 0, result.stderr
    hub = cluster.config.hub.user

    def is_visible():
        # Reservations are read with each full poll only; a new view reads all.
        return PLAN in str(view(cluster, hub, "refresh", max_age_seconds=1).get("reservations"))

    cluster.stop("view")
    cluster.start("view")
    wait_for(is_visible, 60, "the view knows the reservation")

    visitor = User.fresh(cluster, cluster.users[0])

    def offered():
        return PLAN in visitor.web.get(f"{visitor.url}/hub/spawn", timeout=30).text

    wait_for(offered, 60, "the form offers the reservation")
    yield PLAN
    delete = ["scontrol", "delete", f"ReservationName={PLAN}"]
    wait_for(lambda: cluster.run(delete).returncode == 0, 60, "nobody uses the reservation")
    cluster.stop("view")
    cluster.start("view")


def test_everybody_sees_only_their_own_rights(cluster, course):
    ann, ben = cluster.users[:2]
    rights = view(cluster, ann, "rights", user=ann)
    assert {own["account"] for own in rights["associations"]} == {"research", course}
    assert rights["default_account"] == "research"
    assert view(cluster, ben, "rights", user=ann)["error"] == "denied"
    his = view(cluster, cluster.config.hub.user, "rights", user=ben)
    assert {own["account"] for own in his["associations"]} == {"research"}


def test_fields_for_those_who_have_a_choice(cluster, plan, ann, ben):
    def page_of(user):
        return user.web.get(f"{user.url}/hub/spawn", timeout=30).text

    # The form shows the hub's snapshot, which may not have the new reservation yet.
    wait_for(lambda: 'name="reservation"' in page_of(ann), 30, "the form knows the reservation")
    page = page_of(ann)
    for name in ("account", "qos"):
        assert f'name="{name}"' in page
    assert "up to 1 h" in page
    page = page_of(ben)
    assert 'name="qos"' in page
    assert 'name="account"' not in page
    assert 'name="reservation"' not in page
    assert course_free(page)


def course_free(page):
    return ACCOUNT not in page and PLAN not in page


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"account": "root"}, "account", "you have no account root; yours: research"),
        ({"qos": "nope"}, "qos", "has no QoS nope; it has normal, short"),
        ({"qos": "short", "hours": 2}, "hours", "QoS short allows at most 1 h"),
        ({"account": ACCOUNT, "hours": 3}, "hours", f"account {ACCOUNT} allows at most 2 h"),
        ({"account": ACCOUNT, "gpus": 2}, "gpus", "all its jobs together at most 1 GPU"),
        ({"qos": "short", "gpus": 3, "hours": 1}, "gpus", "QoS short gives one user at most 2"),
        ({"reservation": "nope"}, "reservation", "you have no reservation nope"),
    ],
)
def test_what_is_not_allowed_is_said_before_submission(cluster, ann, options, field, message):
    response = ann.spawn(**{"partition": "gpu", "gpus": 0, **options})
    assert response.status_code == 400
    body = response.json()
    assert [error["field"] for error in body["errors"]] == [field], body
    assert message in body["errors"][0]["message"]
    assert message in body["message"]
    assert not cluster.jobs(ann.name)


def test_the_account_of_others_is_refused(cluster, ben):
    response = ben.spawn(**SMALL, account=ACCOUNT)
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "account")
    assert not cluster.jobs(ben.name)


def test_all_errors_come_at_once_as_a_list(ann):
    response = ann.spawn(partition="none", cpus="x", hours=-1, cmd="id")
    assert response.status_code == 400
    assert {error["field"] for error in response.json()["errors"]} == {"cpus", "hours", ""}
    for body in (b"1", b'"x"', b"{", b'{"user_options": 5}', b'{"\\ud800": 1}'):
        response = ann.api("POST", f"/users/{ann.name}/server", data=body)
        assert (response.status_code, bool(response.json()["errors"])) == (400, True), response.text


def test_the_form_keeps_the_rest_and_marks_the_field(ann):
    page = ann.web.get(f"{ann.url}/hub/spawn", timeout=30)
    token = re.search(r'action="[^"]*_xsrf=([^"&]+)', page.text)
    sent = {**SMALL, "hours": "1.25", "image": "base", "account": "research", "qos": "short"}
    url = f"{ann.url}/hub/spawn?_xsrf={token[1]}"
    response = ann.web.post(url, data=sent, timeout=30)
    assert response.status_code == 400
    assert re.search(r'id="hours-problem">\s*QoS short allows at most 1 h', response.text)
    assert re.search(r'value="1.25"[^>]*id="hours"', response.text)
    assert 'data-value="short"' in response.text


def test_a_session_in_account_qos_and_reservation(cluster, plan, ann):
    ann.start(**SMALL, account=ACCOUNT, qos="short", reservation=plan)
    [job] = cluster.jobs(ann.name)
    queue = cluster.run(["squeue", "-h", "-j", job["id"], "-O", "Account:|,QOS:|,Reservation:|"])
    assert queue.stdout.strip() == f"{ACCOUNT}|short|{plan}|"
    # The QoS limits more time, below the limits of partition and site.
    body = {"server": "", "minutes": 30}
    assert ann.api("POST", "/carme/extend", json=body).status_code == 200
    refused = ann.api("POST", "/carme/extend", json=body)
    assert (refused.status_code, "QoS short allows 1 h" in refused.text) == (400, True)


def outlook(user, **options):
    query = {**SMALL, "image": "base", **options}
    response = user.api("GET", "/carme/outlook", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_outlook_considers_reservations(cluster, plan, ann, ben):
    wait_for(lambda: not outlook(ben)["starts_now"], 20, "the node is closed to others")
    assert "reserved" in outlook(ben)["held"]
    assert outlook(ann, account=ACCOUNT, reservation=plan)["starts_now"]
    start_outlook = outlook(ann, reservation=plan)
    assert start_outlook["errors"][0]["field"] == "reservation"


def test_the_outlook_considers_what_the_account_uses(cluster, ann):
    jobs = Jobs(cluster)
    gpu = {"partition": "gpu", "gpus": 1}
    assert wait_for(lambda: outlook(ann, **gpu, account=ACCOUNT)["starts_now"], 60, "a free GPU")
    try:
        job = jobs.submit(ann.name, "-p", "gpu", f"--account={ACCOUNT}", "--gres=gpu:1", "-t", "5")
        jobs.running(job)
        held = wait_for(lambda: outlook(ann, **gpu, account=ACCOUNT).get("held"), 20, "its use")
        assert held == f"Account {ACCOUNT} is limited to 1 GPU for all its jobs; 1 is in use."
        assert outlook(ann, **gpu, account="research")["starts_now"]
    finally:
        jobs.clear()


def test_without_slurmdbd_the_last_known_rights_are_used(cluster, ann):
    hub = cluster.config.hub.user
    cluster.stop("slurmdbd")
    try:

        def noticed():
            return view(cluster, hub, "rights", user=ann.name, max_age_seconds=0)["error"]

        wait_for(noticed, 60, "the view knows that slurmdbd is away")
        old = view(cluster, hub, "rights", user=ann.name)
        assert {own["account"] for own in old["associations"]} == {"research", ACCOUNT}
        assert old["taken_at"] < time.time()
        started = time.monotonic()
        page = ann.web.get(f"{ann.url}/hub/spawn", timeout=30)
        assert (page.status_code, 'name="account"' in page.text) == (200, True)
        assert time.monotonic() - started < 5
    finally:
        cluster.start("slurmdbd")
    wait_for(lambda: not view(cluster, hub, "rights", user=ann.name)["error"], 60, "it is back")
