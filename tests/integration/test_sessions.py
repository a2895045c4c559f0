"""Two users, two sessions: each gets the requested resources, and cannot access the other's."""

import pytest
import requests

from support.cluster import wait_for
from support.hub import User

ONE_GPU = {
    "partition": "gpu",
    "gpus": 1,
    "gpu_type": "virtual-a100",
    "cpus": 1,
    "memory_gb": 1,
    "hours": 0.5,
}


@pytest.fixture(scope="module")
def two(cluster):
    """Both users with a session on a GPU each, of the same node."""
    people = [User.fresh(cluster, name) for name in cluster.users]
    for person in people:
        person.start(**ONE_GPU)
    yield people
    for person in people:
        person.stop()


def test_the_home_is_made_at_the_first_login(cluster, two):
    for person in two:
        owner = cluster.run(["stat", "-c", "%a %U", f"/home/{person.name}"]).stdout.split()
        assert owner == ["700", person.name]


def test_each_job_runs_as_its_user_on_a_gpu_of_its_own(cluster, two):
    held = []
    for person in two:
        [job] = cluster.jobs(person.name)
        assert (job["user"], job["state"], job["node"]) == (person.name, "RUNNING", "gpu01")
        held.append(cluster.gpu_indices(job["id"]))
    assert held[0] != held[1]
    assert all(text.startswith("gpu01 gpu:virtual-a100:1(IDX:") for text in held)


def test_nobody_sees_the_others_job(cluster, two):
    ann, ben = two
    [job] = cluster.jobs(ben.name)
    assert job["id"] not in cluster.run_as(ann.name, ["squeue", "-h"]).stdout
    output = cluster.run_as(ann.name, ["scontrol", "show", "job", job["id"]])
    assert ben.name not in output.stdout
    assert (
        ben.name not in cluster.run_as(ann.name, ["sacct", "-a", "-n", "-P", "-o", "user"]).stdout
    )


def test_nobody_reaches_the_others_server(two):
    ann, ben = two
    response = ann.web.get(f"{ben.session_url}/api/kernels", timeout=20)
    assert response.status_code in (403, 404) or "/hub/" in response.url
    assert requests.get(f"{ann.session_url}/api/kernels", timeout=20).status_code == 403


def test_the_token_is_in_no_command_line_and_in_a_closed_file(cluster, two):
    import json

    ann = two[0]
    folder = f"/home/{ann.name}/.carme/sessions/default"
    assert cluster.run(["stat", "-c", "%a", folder, f"{folder}/session.json"]).stdout.split() == [
        "700",
        "600",
    ]
    token = json.loads(cluster.run(["cat", f"{folder}/session.json"]).stdout)["environment"][
        "JUPYTERHUB_API_TOKEN"
    ]
    assert token not in cluster.run(["ps", "-eo", "args"]).stdout
    [job] = cluster.jobs(ann.name)
    assert token not in cluster.run(["scontrol", "show", "job", job["id"]]).stdout
    assert token not in cluster.run(["scontrol", "write", "batch_script", job["id"], "-"]).stdout


def test_a_session_reads_its_users_jobs_with_its_own_token(cluster, two):
    """As `carme jobs` does in a session's terminal."""
    import json

    ann = two[0]
    path = f"/home/{ann.name}/.carme/sessions/default/session.json"
    environment = json.loads(cluster.run(["cat", path]).stdout)["environment"]
    assert environment["CARME_HUB_URL"] == cluster.config.hub.url
    url = f"{environment['CARME_HUB_URL'].rstrip('/')}/services/carme/api/v1/jobs"
    own = {"Authorization": f"token {environment['JUPYTERHUB_API_TOKEN']}"}
    answer = requests.get(url, headers=own, timeout=20)
    assert answer.status_code == 200, answer.text
    assert {job["user"] for job in answer.json()["items"]} <= {ann.name}


def test_a_reported_port_is_all_that_a_session_can_change(cluster, two):
    """batchspawner's endpoint is removed; Carme's accepts only a port, with the session's token."""
    ann = two[0]
    url = f"http://127.0.0.1:{cluster.config.hub.api_port}/hub/api"
    token = ann.api("POST", f"/users/{ann.name}/tokens", json={"note": "test"}).json()["token"]
    headers = {"Authorization": f"token {token}"}
    body = {"exec_prefix": "touch /tmp/pwned"}
    assert (
        requests.post(f"{url}/batchspawner", json=body, headers=headers, timeout=10).status_code
        == 404
    )
    response = requests.post(f"{url}/carme/port", json={"port": 40000}, headers=headers, timeout=10)
    assert (response.status_code, "does not belong to a session" in response.text) == (403, True)
    assert requests.post(f"{url}/carme/port", json={"port": 40000}, timeout=10).status_code == 403


def test_stopping_ends_the_job(cluster):
    ada = User.fresh(cluster, cluster.admin)
    ada.start(partition="cpu", gpus=0, cpus=1, memory_gb=1, hours=0.2)
    [job] = cluster.jobs(ada.name)
    assert job["node"] == "cpu01"
    ada.stop()
    wait_for(lambda: not cluster.jobs(ada.name), 20, "the job's end")


def test_a_wrong_password_lets_nobody_in(cluster):
    response = User(cluster, cluster.users[0]).login("wrong")
    assert response.status_code == 403
    assert "Invalid username or password" in response.text


def test_who_is_not_in_the_group_is_not_let_in(cluster):
    outsider = f"{cluster.users[0]}-outsider"
    cluster.run(["useradd", "-M", outsider])
    try:
        cluster.run(["chpasswd"], input=f"{outsider}:secret word\n")
        assert User(cluster, outsider).login("secret word").status_code == 403
    finally:
        cluster.run(["userdel", outsider])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "none"}, "there is no partition none"),
        ({"gpus": 99}, "less than or equal to 64"),
        ({"hours": 9}, "at most 8 h"),
        ({"cmd": "id"}, "unknown option"),
        ({"image": "../../etc/passwd"}, "characters that are not allowed"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "characters that are not allowed"),
    ],
)
def test_wrong_options_are_a_400_that_says_why(cluster, options, message):
    ada = User.fresh(cluster, cluster.admin)
    response = ada.spawn(**options)
    assert (response.status_code, message in response.json()["message"]) == (400, True), (
        response.text
    )
    assert not cluster.jobs(ada.name)


def test_without_an_association_the_message_is_clear(cluster):
    ada = User.fresh(cluster, cluster.admin)
    cluster.run(["sacctmgr", "-i", "delete", "user", ada.name], check=True)
    try:
        response = ada.spawn(partition="cpu", gpus=0)
        assert response.status_code == 400
        assert "account" in response.json()["message"].lower(), response.text
    finally:
        cluster.run(
            [
                "sacctmgr",
                "-i",
                "add",
                "user",
                ada.name,
                "account=research",
                "qos=normal,short",
                "defaultqos=normal",
            ],
            check=True,
        )
