"""The helper through sudo on a live Slurm, as the hub uses it."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carme.system.files import cache_dir
from carme_containers import ensure_image
from support.cluster import wait_for
from support.images import trapped_image
from support.slurm_live import Jobs, helper, python_as, view

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --partition=cpu --time=10 --mem=100 --job-name=helper-test
echo started with $(cat env)
trap 'echo got USR1' USR1
while :; do sleep 0.2; done
"""


@pytest.fixture(autouse=True)
def homes(cluster: Any) -> None:
    """Homes as the first login makes them."""
    for user in cluster.users[:2]:
        if not Path(f"~{user}").expanduser().exists():
            subprocess.run(["mkhomedir_helper", user, "0077"], check=True)


@pytest.fixture
def newcomer(cluster: Any) -> Iterator[str]:
    """A member of the users' group without a home and without an association in Slurm."""
    name = f"{cluster.users[0][:20]}-new"
    subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
    add = ["useradd", "--no-create-home", "--groups", cluster.config.hub.users_group, name]
    subprocess.run(add, check=True)
    yield name
    subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def test_a_session_from_submit_to_cancel(cluster: Any, jobs: Jobs) -> None:
    ann, ben = cluster.users[:2]
    submitted = helper(
        cluster, "submit", user=ann, name="t-1", script=SCRIPT, files={"env": "TOKEN=abc"}
    )
    job_id, folder = submitted["job_id"], Path(submitted["folder"])
    jobs.adopt(job_id)
    job = jobs.running(job_id)
    assert (job.user, job.partition, job.work_dir) == (ann, "cpu", str(folder))
    assert folder.owner() == (folder / "env").owner() == ann
    assert (folder.stat().st_mode & 0o777, (folder / "env").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )

    def log() -> str:
        response = helper(cluster, "tail_log", user=ann, name="t-1")
        return response if isinstance(response, str) else ""

    wait_for(lambda: "started with TOKEN=abc" in log(), 10, "the log shows the start")
    assert helper(cluster, "signal", user=ann, job_id=job_id, signal="USR1") is None
    wait_for(lambda: "got USR1" in log(), 10, "the signal arrives")
    assert helper(cluster, "extend", user=ann, job_id=job_id, seconds=600)["limit_seconds"] == 1200

    # Another user's helper cannot access it.
    assert helper(cluster, "cancel", user=ben, job_id=job_id)["error"] == "denied"
    refused = helper(cluster, "signal", user=ben, job_id=job_id, signal="TERM")
    assert refused["error"] in {"denied", "missing"}  # where jobs are private, there is none
    assert helper(cluster, "extend", user=ben, job_id=job_id, seconds=600)["error"] == "missing"
    assert helper(cluster, "tail_log", user=ben, name="t-1")["error"] == "missing"
    assert cluster.run_as(ben, ["cat", str(folder / "env")]).returncode != 0

    assert helper(cluster, "cancel", user=ann, job_id=job_id) is None
    ended = jobs.wait(job_id, lambda candidate: candidate.state.ended, "ends")
    assert ended.state.value == "CANCELLED"
    assert helper(cluster, "cancel", user=ann, job_id=job_id) is None, "again is no error"
    assert (
        helper(cluster, "signal", user=ann, job_id=99_999_999, signal="TERM")["error"] == "missing"
    )


def test_what_slurm_refuses_is_said_plainly(cluster: Any) -> None:
    ann = cluster.users[0]
    for option, reason, fragment in (
        ("--partition=gpu --gres=gpu:9", "input", "no node"),
        ("--partition=nowhere", "input", "no such partition"),
        ("--partition=gpu --qos=nowhere", "denied", "quality of service"),
        ("--partition=cpu --account=nowhere", "denied", "no account"),
    ):
        script = f"#!/bin/sh\n#SBATCH {option}\n:\n"
        response = helper(cluster, "submit", user=ann, name="t-2", script=script)
        assert (response.get("error"), fragment in response.get("message", "")) == (
            reason,
            True,
        ), response


def test_a_newcomer(cluster: Any, newcomer: str) -> None:
    response = helper(cluster, "submit", user=newcomer, name="t", script=SCRIPT)
    assert (response["error"], "home folder" in response["message"]) == ("missing", True), response
    home = Path(f"~{newcomer}").expanduser()
    home.mkdir(mode=0o700)
    subprocess.run(["chown", newcomer, str(home)], check=True)
    response = helper(cluster, "submit", user=newcomer, name="t", script=SCRIPT)
    assert (response["error"], "no account" in response["message"]) == ("denied", True), response
    # A new user without jobs sees the cluster, but no jobs.
    assert view(cluster, newcomer, "snapshot")["jobs"] == []


def test_who_the_hub_may_act_for(cluster: Any) -> None:
    for user in ("root", "nobody", cluster.config.hub.user, "no-such-user", "--preserve-env"):
        response = helper(cluster, "cancel", user=user, job_id=1)
        assert response["error"] in {"denied", "missing"}, user
    assert helper(cluster, "cancel", user=cluster.users[0], job_id="1; id")["error"] == "input"


def test_nothing_but_the_helper_runs_through_sudo(cluster: Any) -> None:
    program, ann = str(Path(sys.prefix) / "bin/carme-helper"), cluster.users[0]
    config = cluster.env["CARME_CONFIG"]
    for argv in (
        ["/bin/sh", "-c", "id"],
        [program, "--config", "/tmp/other.toml", "cancel"],
        [program, "--config", config, "cancel", "more"],
        [program, "--config", config, "run"],
        [program],
    ):
        sudo = ["sudo", "-n", "-u", ann, "--", *argv]
        result = cluster.run_as(cluster.config.hub.user, sudo, input="{}")
        assert result.returncode == 1
        assert "password is required" in result.stderr or "not allowed" in result.stderr, (
            result.stderr
        )


def test_the_users_environment_is_not_believed(cluster: Any) -> None:
    program, ann = str(Path(sys.prefix) / "bin/carme-helper"), cluster.users[0]
    lies = ["SLURM_CONF=/nowhere", "PATH=/nowhere", "SBATCH_PARTITION=nowhere", "HOME=/root"]
    argv = ["env", *lies, program, "--config", cluster.env["CARME_CONFIG"], "cancel"]
    result = cluster.run_as(ann, argv, input='{"job_id": 99999999}')
    assert (result.returncode, result.stdout.strip()) == (0, "{}"), result.stderr


def test_images(cluster: Any, tmp_path: Path) -> None:
    ann = cluster.users[0]
    image = ensure_image("base", cluster.config, cache_dir(), print)
    real = cluster.config.images.folder / image.file
    checked = helper(cluster, "check_image", user=ann, path=str(real))
    assert checked == {"path": str(real.resolve()), "size_bytes": real.stat().st_size}
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            parent.chmod(0o755)
    closed = tmp_path / "closed.sif"
    closed.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"\0" * 100)
    closed.chmod(0o600)
    assert helper(cluster, "check_image", user=ann, path=str(closed))["error"] == "denied"
    assert helper(cluster, "check_image", user=ann, path="/etc/passwd")["error"] == "input"
    assert helper(cluster, "check_image", user=ann, path="/nowhere.sif")["error"] == "missing"


@pytest.fixture
def trap(cluster: Any) -> Iterator[tuple[Path, list[Path]]]:
    """An image that notices when anything in it is run, and the files that it then writes."""
    home = Path(f"~{cluster.users[0]}").expanduser()
    marks = [home / "carme-trap", Path("/tmp/carme-trap")]
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="carme-trap-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield trapped_image(folder, cluster.config.images.apptainer, home, "carme-trap"), marks
    for mark in marks:
        mark.unlink(missing_ok=True)


def test_nothing_of_an_image_runs_when_it_is_checked(
    cluster: Any, jobs: Jobs, trap: tuple[Path, list[Path]]
) -> None:
    ann, (image, marks) = cluster.users[0], trap
    checked = helper(cluster, "check_image", user=ann, path=str(image))
    assert checked == {"path": str(image), "size_bytes": image.stat().st_size}
    left = cluster.run(["pgrep", "--list-full", "--uid", ann, "--full", "sleep 98765|apptainer"])
    assert ([mark for mark in marks if mark.exists()], left.stdout) == ([], "")

    # The same image in a job springs the trap.
    program = cluster.config.images.apptainer
    job_id = jobs.submit(
        ann, "-p", "cpu", command=f"{program} exec {image} jupyterhub-singleuser --version"
    )
    jobs.wait(job_id, lambda job: job.state.ended, "ends")
    assert marks[0].exists()


def test_a_check_reads_and_runs_nothing_of_a_signed_image_either(
    cluster: Any, trap: tuple[Path, list[Path]]
) -> None:
    """Apptainer verifies the signature, within the limits of the check."""
    ann, (image, marks) = cluster.users[0], trap
    secret, public = image.with_name("key.pem"), image.with_name("key.pub")
    for command in (
        ["openssl", "genrsa", "-out", secret, "2048"],
        ["openssl", "rsa", "-in", secret, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    public.chmod(0o644)
    program = cluster.config.images.apptainer
    code = (
        "import json, sys; from pathlib import Path\n"
        "from carme.errors import CarmeError\n"
        "from carme.helper.limited_call import call_limited\n"
        "from carme.images.own_image import check_own_image\n"
        "image, program, key = sys.argv[1:]\n"
        "check = lambda: {'version': check_own_image(image, Path(program),"
        " verify_key=Path(key)).jupyterhub}\n"
        "try: print(json.dumps(call_limited(check, 60)))\n"
        "except CarmeError as error: print(json.dumps(str(error)))\n"
    )
    arguments = (str(image), str(program), str(public))
    assert "is not signed with this site's key" in python_as(cluster, ann, code, *arguments)
    sign = [program, "sign", "--key", secret, image]
    subprocess.run(sign, check=True, capture_output=True, timeout=120)
    assert python_as(cluster, ann, code, *arguments) == {"version": "6.1.0"}
    left = cluster.run(["pgrep", "--list-full", "--uid", ann, "--full", "sleep 98765|apptainer"])
    assert ([mark for mark in marks if mark.exists()], left.stdout) == ([], "")
